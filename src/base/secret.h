// A key or token that must never be seen: it cannot be printed, formatted or compared by accident. Only Reveal gives
// the text, to the one place that signs or sends it.
#pragma once

#include <ostream>
#include <string>
#include <utility>

namespace weightwire {

class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string text) : text_(std::move(text)) {}

  [[nodiscard]] bool empty() const { return text_.empty(); }
  [[nodiscard]] const std::string& Reveal() const { return text_; }

 private:
  std::string text_;
};

std::ostream& operator<<(std::ostream& out, const Secret& secret) = delete;

}  // namespace weightwire
