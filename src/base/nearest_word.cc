#include "base/nearest_word.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace weightwire {
namespace {

// The number of letters to insert, remove or replace, and of neighbours to swap.
std::size_t Edits(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> rows(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  std::iota(rows[0].begin(), rows[0].end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    rows[i][0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = rows[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      rows[i][j] = std::min({replaced, rows[i - 1][j] + 1, rows[i][j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
    }
  }
  return rows[a.size()][b.size()];
}

}  // namespace

std::optional<std::string> NearestWord(std::string_view word, std::span<const std::string> candidates) {
  constexpr std::size_t kMaxEdits = 3;
  constexpr std::size_t kMaxWordBytes = 100;
  constexpr std::size_t kMinBeginning = 3;
  if (word.size() > kMaxWordBytes || candidates.empty()) return std::nullopt;
  // Some programs take the beginning of a word for the word.
  const auto begins = [word](const std::string& candidate) { return candidate.starts_with(word); };
  const auto whole = std::find_if(candidates.begin(), candidates.end(), begins);
  if (word.size() >= kMinBeginning && whole != candidates.end()) return *whole;
  const auto nearest = std::min_element(candidates.begin(), candidates.end(),
                                        [&](const auto& a, const auto& b) { return Edits(word, a) < Edits(word, b); });
  const std::size_t edits = Edits(word, *nearest);
  if (edits > kMaxEdits || 2 * edits >= word.size()) return std::nullopt;
  return *nearest;
}

}  // namespace weightwire
