// Text for people: numbers as they write and read them, and tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace weightwire {

// "1,234,567".
[[nodiscard]] std::string WithCommas(std::uint64_t number);

// "123 B", "1.21 MiB": three digits that matter.
[[nodiscard]] std::string HumanBytes(std::uint64_t bytes);

// "1.20 %" of a whole; "–" when there is no whole.
[[nodiscard]] std::string Percent(std::uint64_t part, std::uint64_t whole);

// "0.812": a ratio with three places; "–" when there is nothing to divide by.
[[nodiscard]] std::string Ratio(double dividend, double divisor);

// "812 µs", "18.1 ms", "2.30 s".
[[nodiscard]] std::string HumanSeconds(double seconds);

// Parses a whole number: decimal digits and nothing else, below 2^64.
Result<std::uint64_t> ParseNumber(const std::string& text);

// A table in plain text: columns as wide as their widest cell, two spaces apart.
class TextTable {
 public:
  enum class Align : unsigned char { kLeft, kRight };

  // One character a column: 'l' or 'r'.
  explicit TextTable(const char* columns);

  // Control characters are escaped: names come from outside. REQUIRES: as many cells as columns.
  void AddRow(std::vector<std::string> cells);

  // A line for each row, each with a line break; nothing without rows. Columns without any text are left out.
  [[nodiscard]] std::string Render() const;

 private:
  std::vector<Align> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Characters of UTF-8 text, which is what counts for columns.
[[nodiscard]] std::size_t DisplayWidth(const std::string& text);

}  // namespace weightwire
