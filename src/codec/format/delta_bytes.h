// The bytes of a delta file that is on its way somewhere.
//
// It is hashed when they are first asked for: whoever encoded it need not wait for that. Safe to share between threads.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "codec/format/delta_file.h"

namespace weightwire {

class DeltaBytes {
 public:
  explicit DeltaBytes(UnsealedDelta delta) : size_bytes_(delta.size_bytes()), delta_(std::move(delta)) {}

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] const std::vector<std::uint8_t>& Sealed() const {
    std::call_once(once_, [&] { file_ = std::move(delta_).Seal(); });
    return file_;
  }

 private:
  std::uint64_t size_bytes_;
  mutable std::once_flag once_;
  mutable UnsealedDelta delta_;
  mutable std::vector<std::uint8_t> file_;
};

}  // namespace weightwire
