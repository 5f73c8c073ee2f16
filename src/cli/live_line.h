// One line on standard error of a terminal that is written again and again; nothing in a pipe.
#pragma once

#include <string>

namespace weightwire {

class LiveLine {
 public:
  LiveLine();
  // Erases it.
  ~LiveLine();
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  [[nodiscard]] bool is_shown() const { return is_terminal_; }
  void Show(const std::string& text);
  // Before something else is printed.
  void Erase();

 private:
  const bool is_terminal_;
  std::string text_;
};

}  // namespace weightwire
