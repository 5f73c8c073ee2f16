// The part of a version on its way to the bucket.
//
// It is hashed when its bytes are first asked for, in the background: whoever trains has gone on by then. Safe to share
// between threads.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "codec/delta_file.h"

namespace weightwire {

class PartBytes {
 public:
  explicit PartBytes(UnsealedDelta delta) : size_bytes_(delta.size_bytes()), delta_(std::move(delta)) {}

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
