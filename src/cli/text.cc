#include "cli/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/check.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

constexpr const char* kNone = "–";

// Three digits that matter, for numbers below 1024.
std::string ThreeDigits(double number) {
  if (number >= 99.95) return fmt::format("{:.0f}", number);
  if (number >= 9.995) return fmt::format("{:.1f}", number);
  return fmt::format("{:.2f}", number);
}

}  // namespace

std::string WithCommas(std::uint64_t number) {
  std::string digits = fmt::format("{}", number);
  for (std::size_t from_end = 3; from_end < digits.size(); from_end += 4) digits.insert(digits.size() - from_end, ",");
  return digits;
}

std::string HumanBytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double number = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; number >= 1023.5 && unit + 1 < kUnits.size(); ++unit) number /= 1024;
  return fmt::format("{} {}", ThreeDigits(number), kUnits[unit]);
}

std::string Percent(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return kNone;
  const double share = 100 * static_cast<double>(part) / static_cast<double>(whole);
  // A share that is not quite nothing, or not quite all, must not look so.
  if (part != 0 && share < 0.005) return "<0.01 %";
  if (part < whole && share >= 99.995) return ">99.99 %";
  return fmt::format("{:.2f} %", share);
}

std::string Ratio(double dividend, double divisor) {
  if (divisor == 0) return kNone;
  return fmt::format("{:.3f}", dividend / divisor);
}

std::string HumanSeconds(double seconds) {
  if (seconds < 1e-3) return ThreeDigits(seconds * 1e6) + " µs";
  if (seconds < 1) return ThreeDigits(seconds * 1e3) + " ms";
  return ThreeDigits(seconds) + " s";
}

Result<std::uint64_t> ParseNumber(const std::string& text) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || rest != end) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("'{}' is no whole number from 0 to 18446744073709551615", text));
  }
  return number;
}

std::size_t DisplayWidth(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

TextTable::TextTable(const char* columns) {
  for (; *columns != '\0'; ++columns) columns_.push_back(*columns == 'r' ? Align::kRight : Align::kLeft);
}

void TextTable::AddRow(std::vector<std::string> cells) {
  WW_CHECK(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string TextTable::Render() const {
  std::vector<std::size_t> widths(columns_.size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], DisplayWidth(row[c]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      if (widths[c] == 0) continue;
      const std::string padding(widths[c] - DisplayWidth(row[c]), ' ');
      if (!line.empty()) line += "  ";
      line += columns_[c] == Align::kRight ? padding + row[c] : row[c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

}  // namespace weightwire
