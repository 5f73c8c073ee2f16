#include "cli/text_table.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/json.h"

namespace weightwire {

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
