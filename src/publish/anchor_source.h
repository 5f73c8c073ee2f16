// The weights of an anchor: the sources that give them, and the share of an anchor that one process writes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "publish/base_copy.h"
#include "tensor/checkpoint.h"
#include "tensor/layout.h"

namespace weightwire {

// Anything that holds the exact bits of a version.
class AnchorSource {
 public:
  AnchorSource() = default;
  AnchorSource(const AnchorSource&) = delete;
  AnchorSource& operator=(const AnchorSource&) = delete;
  virtual ~AnchorSource() = default;

  [[nodiscard]] virtual const Layout& layout() const = 0;
  // Bytes of a tensor of that layout. REQUIRES: within the tensor.
  virtual Status ReadAt(std::size_t tensor, std::uint64_t offset, std::span<std::uint8_t> out) = 0;
};

// A version that is or was in a base copy, which must outlive the source.
class BaseSource final : public AnchorSource {
 public:
  BaseSource(const BaseCopy& base, std::shared_ptr<const BasePin> pin) : base_(base), pin_(std::move(pin)) {}

  [[nodiscard]] const Layout& layout() const override { return *pin_->layout; }
  Status ReadAt(std::size_t tensor, std::uint64_t offset, std::span<std::uint8_t> out) override {
    return base_.ReadAt(*pin_, tensor, offset, out);
  }

 private:
  const BaseCopy& base_;
  const std::shared_ptr<const BasePin> pin_;
};

// A checkpoint, seen through the layout of the version (Checkpoint::ViewAs).
class CheckpointSource final : public AnchorSource {
 public:
  explicit CheckpointSource(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  [[nodiscard]] const Layout& layout() const override { return checkpoint_.layout(); }
  Status ReadAt(std::size_t tensor, std::uint64_t offset, std::span<std::uint8_t> out) override {
    const auto bytes = checkpoint_.bytes(tensor).subspan(offset, out.size());
    std::copy(bytes.begin(), bytes.end(), out.begin());
    return Ok();
  }

 private:
  const Checkpoint checkpoint_;
};

// The bytes of an object, in order: a header, then tensors.
class FileBytes {
 public:
  FileBytes(std::vector<std::uint8_t> header, std::vector<std::size_t> tensors)
      : header_(std::move(header)), tensors_(std::move(tensors)) {}

  // Gives the next bytes. Calls read(tensor, offset, bytes) for those that were read from the source.
  template <typename Read>
  Status Fill(AnchorSource& source, std::span<std::uint8_t> out, const Read& read) {
    while (!out.empty()) {
      if (header_done_ < header_.size()) {
        const std::size_t size = std::min<std::size_t>(out.size(), header_.size() - header_done_);
        std::copy_n(header_.begin() + static_cast<std::ptrdiff_t>(header_done_), size, out.begin());
        header_done_ += size;
        out = out.subspan(size);
        continue;
      }
      const std::size_t tensor = tensors_[next_];
      const std::uint64_t left = source.layout().byte_size(tensor) - tensor_done_;
      if (left == 0) {
        ++next_;
        tensor_done_ = 0;
        continue;
      }
      // In portions: a publisher that wants to encode waits for one of them at most.
      const std::span<std::uint8_t> portion = out.first(std::min({std::uint64_t{out.size()}, left, kReadBytes}));
      WW_RETURN_IF_ERROR(source.ReadAt(tensor, tensor_done_, portion));
      read(tensor, tensor_done_, std::span<const std::uint8_t>(portion));
      tensor_done_ += portion.size();
      out = out.subspan(portion.size());
    }
    return Ok();
  }

 private:
  static constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 20;

  const std::vector<std::uint8_t> header_;
  const std::vector<std::size_t> tensors_;
  // Where the next byte comes from.
  std::uint64_t header_done_ = 0;
  std::size_t next_ = 0;
  std::uint64_t tensor_done_ = 0;
};

// The share of an anchor that one process writes: all files (anchor_writer.h), or a rank's piece (piece_writer.h).
// A step function. Thread safety: one thread at a time.
class AnchorShare {
 public:
  AnchorShare() = default;
  AnchorShare(const AnchorShare&) = delete;
  AnchorShare& operator=(const AnchorShare&) = delete;
  virtual ~AnchorShare() = default;

  // Sends the next bytes, and returns true once the share is complete. After a retryable error, the next call sends the
  // current file again from its start. kMismatch: the source does not have the version's bits, and never will.
  virtual Result<bool> Step() = 0;
};

}  // namespace weightwire
