#include "cli/live_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace weightwire {

LiveLine::LiveLine() : is_terminal_(::isatty(STDERR_FILENO) == 1) {}

LiveLine::~LiveLine() { Erase(); }

void LiveLine::Show(const std::string& text) {
  if (!is_terminal_ || text == text_) return;
  text_ = text;
  fmt::print(stderr, "\r\x1b[K{}", text_);
  std::fflush(stderr);
}

void LiveLine::Erase() {
  if (text_.empty()) return;
  text_.clear();
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace weightwire
