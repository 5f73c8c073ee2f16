// A table in plain text: columns as wide as their widest cell, two spaces apart.
#pragma once

#include <string>
#include <vector>

namespace weightwire {

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
