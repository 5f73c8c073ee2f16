// A staged change: everything a delta does to a state, decoded and verified, before anything is written.
//
// It holds, for every changed unit, its position, its new bits and its old bits. So it can be written to any target
// that holds the old state, taken back, stacked on other changes, and folded with them into one. It can only be made by
// the decoder (decoder.h), after all checks, or by folding others: a StagedChange that exists is a correct one.
//
// Immutable; safe to share between threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/sha256.h"
#include "base/threads.h"
#include "base/unfilled_vector.h"
#include "codec/digest/digest.h"
#include "tensor/layout.h"

namespace weightwire {

// Changed units of one stretch of a tensor.
struct StagedChunk {
  std::uint64_t first_unit = 0;            // of the stretch
  UnfilledVector<std::uint32_t> offsets;   // from first_unit, ascending
  UnfilledVector<std::uint8_t> new_units;  // as many units as offsets
  UnfilledVector<std::uint8_t> old_units;
};

// Changes of a chunk that follow each other.
struct ChangeSlice {
  std::uint64_t first_unit = 0;  // that the offsets count from
  std::span<const std::uint32_t> offsets;
  const std::uint8_t* new_units = nullptr;  // of the first of them
  const std::uint8_t* old_units = nullptr;
};

// What happens to one tensor: some units change, or all of it is new.
class StagedTensor {
 public:
  [[nodiscard]] std::size_t tensor() const { return tensor_; }  // in the layout after
  [[nodiscard]] int unit_bytes() const { return unit_bytes_; }
  [[nodiscard]] std::uint64_t changed() const { return changed_; }

  // new_bytes() is all of it, and no old bits are known: new, of another type or shape, or (folded) removed and added.
  [[nodiscard]] bool is_new() const { return is_new_; }
  [[nodiscard]] std::span<const std::uint8_t> new_bytes() const { return new_bytes_; }
  // Otherwise: stretches that do not overlap, ascending, none empty.
  [[nodiscard]] std::span<const StagedChunk> chunks() const { return chunks_; }

  // Calls function(slice) for the changes in units [begin, end) of the tensor, ascending; none is empty.
  template <typename Function>
  void ForEachSlice(std::uint64_t begin, std::uint64_t end, Function&& function) const;
  // Calls function(unit, new_unit, old_unit) for every changed unit in [begin, end) of the tensor, ascending; the last
  // two point to unit_bytes() bytes.
  template <typename Function>
  void ForEachChanged(std::uint64_t begin, std::uint64_t end, Function&& function) const;

  // Writes the new bits, or the old ones, into the tensor's memory. REQUIRES: it is of the tensor's size, and holds the
  // other bits; for Undo, not is_new().
  void Write(std::span<std::uint8_t> tensor_bytes) const;
  void Undo(std::span<std::uint8_t> tensor_bytes) const;

 private:
  friend class StagedChangeBuilder;
  StagedTensor() = default;

  std::size_t tensor_ = 0;
  int unit_bytes_ = 1;
  bool is_new_ = false;
  std::uint64_t changed_ = 0;
  std::vector<StagedChunk> chunks_;
  UnfilledVector<std::uint8_t> new_bytes_;
};

class StagedChange {
 public:
  [[nodiscard]] const Layout& layout_before() const { return *layout_before_; }
  [[nodiscard]] const Layout& layout_after() const { return *layout_after_; }
  [[nodiscard]] const std::shared_ptr<const Layout>& shared_layout_after() const { return layout_after_; }
  [[nodiscard]] const std::vector<Digest>& digests_before() const { return digests_before_; }
  [[nodiscard]] const std::vector<Digest>& digests_after() const { return digests_after_; }
  [[nodiscard]] const Sha256Digest& state_before() const { return state_before_; }
  [[nodiscard]] const Sha256Digest& state_after() const { return state_after_; }

  [[nodiscard]] std::span<const StagedTensor> tensors() const { return tensors_; }
  // The change of a tensor of the layout after, or nullptr when its bits stay.
  [[nodiscard]] const StagedTensor* Find(std::size_t tensor) const;
  // Which tensor of the layout before a tensor of the layout after continues; none if it is new.
  [[nodiscard]] std::optional<std::size_t> Origin(std::size_t tensor) const;

  // The change of a state into itself.
  static StagedChange Nothing(std::shared_ptr<const Layout> layout, std::vector<Digest> digests);

  // One change that does what `changes` do one after another. Takes time for each of their changed units, and little
  // for the units between them. REQUIRES: at least one; each begins where the previous one ends.
  static std::shared_ptr<const StagedChange> Fold(std::span<const std::shared_ptr<const StagedChange>> changes,
                                                  ThreadPool& pool);

 private:
  friend class StagedChangeBuilder;
  StagedChange() = default;

  std::shared_ptr<const Layout> layout_before_;
  std::shared_ptr<const Layout> layout_after_;
  std::vector<Digest> digests_before_;
  std::vector<Digest> digests_after_;
  Sha256Digest state_before_{};
  Sha256Digest state_after_{};
  std::vector<StagedTensor> tensors_;  // by tensor, ascending
};

// --- implementation ---

template <typename Function>
void StagedTensor::ForEachSlice(std::uint64_t begin, std::uint64_t end, Function&& function) const {
  const auto width = static_cast<std::size_t>(unit_bytes_);
  // The last chunk that starts at or before `begin` may reach into the range.
  auto chunk = std::upper_bound(chunks_.begin(), chunks_.end(), begin,
                                [](std::uint64_t unit, const StagedChunk& c) { return unit < c.first_unit; });
  if (chunk != chunks_.begin()) --chunk;
  for (; chunk != chunks_.end() && chunk->first_unit < end; ++chunk) {
    const auto find = [&](std::uint64_t unit) {
      if (unit <= chunk->first_unit) return chunk->offsets.begin();
      return std::lower_bound(chunk->offsets.begin(), chunk->offsets.end(), unit - chunk->first_unit,
                              [](std::uint32_t offset, std::uint64_t wanted) { return offset < wanted; });
    };
    const auto from = find(begin);
    const auto to = find(end);
    if (from == to) continue;
    const auto skipped = static_cast<std::size_t>(from - chunk->offsets.begin());
    function(ChangeSlice{chunk->first_unit, std::span(from, to), chunk->new_units.data() + skipped * width,
                         chunk->old_units.data() + skipped * width});
  }
}

template <typename Function>
void StagedTensor::ForEachChanged(std::uint64_t begin, std::uint64_t end, Function&& function) const {
  const auto width = static_cast<std::size_t>(unit_bytes_);
  ForEachSlice(begin, end, [&](const ChangeSlice& slice) {
    for (std::size_t k = 0; k < slice.offsets.size(); ++k) {
      function(slice.first_unit + slice.offsets[k], slice.new_units + k * width, slice.old_units + k * width);
    }
  });
}

}  // namespace weightwire
