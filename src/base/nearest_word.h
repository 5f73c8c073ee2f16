// Finds what a misspelled word was probably meant to be.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace weightwire {

// The first candidate that begins with the word, if the word has at least three letters. Otherwise the candidate that
// the fewest edits turn the word into, if they are at most three and fewer than half of its letters.
[[nodiscard]] std::optional<std::string> NearestWord(std::string_view word, std::span<const std::string> candidates);

}  // namespace weightwire
