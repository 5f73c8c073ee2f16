// The open checkpoint of a mirror: its files seen as the layout of the version held, and that version's digests.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/filesystem.h"
#include "base/result.h"
#include "base/threads.h"
#include "codec/decode/state_view.h"
#include "codec/digest/digest.h"
#include "codec/kernels/kernels.h"
#include "follow/in_place/tensor_locations.h"
#include "tensor/checkpoint.h"
#include "tensor/layout.h"

namespace weightwire {

// Movable. Maps the files; the file system must outlive it.
class MirrorContent {
 public:
  // Opens the files without digests. kNotFound if there is no checkpoint, kMismatch if it has another layout.
  static Result<MirrorContent> Open(FileSystem& files, const FileSystem::Path& directory,
                                    std::shared_ptr<const Layout> layout);

  [[nodiscard]] const Checkpoint& checkpoint() const { return checkpoint_; }
  [[nodiscard]] const Layout& layout() const { return *layout_; }
  [[nodiscard]] std::span<const TensorLocation> locations() const { return locations_; }
  // By the layout.
  [[nodiscard]] std::span<const std::span<const std::uint8_t>> tensors() const { return tensors_; }

  [[nodiscard]] std::vector<Digest> DigestInFull(const Kernels& kernels, ThreadPool& pool) const;

  [[nodiscard]] const std::vector<Digest>& digests() const { return digests_; }
  void set_digests(std::vector<Digest> digests) { digests_ = std::move(digests); }

  // REQUIRES: digests are set.
  [[nodiscard]] StateView view() const { return {layout_, tensors_, digests_}; }

 private:
  MirrorContent(Checkpoint checkpoint, std::shared_ptr<const Layout> layout)
      : checkpoint_(std::move(checkpoint)), layout_(std::move(layout)) {}

  Checkpoint checkpoint_;
  std::shared_ptr<const Layout> layout_;
  std::vector<TensorLocation> locations_;
  std::vector<std::span<const std::uint8_t>> tensors_;
  std::vector<Digest> digests_;
};

}  // namespace weightwire
