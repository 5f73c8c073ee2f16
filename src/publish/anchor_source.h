// Where an anchor's weights come from: anything that holds the exact bits of a version.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "publish/base_copy.h"
#include "tensor/checkpoint.h"
#include "tensor/layout.h"

namespace weightwire {

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
    // In pieces: a publisher that wants to encode waits for one of them at most.
    while (!out.empty()) {
      const std::span<std::uint8_t> piece = out.first(std::min<std::size_t>(kReadBytes, out.size()));
      WW_RETURN_IF_ERROR(base_.ReadAt(*pin_, tensor, offset, piece));
      offset += piece.size();
      out = out.subspan(piece.size());
    }
    return Ok();
  }

 private:
  static constexpr std::size_t kReadBytes = std::size_t{4} << 20;

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

}  // namespace weightwire
