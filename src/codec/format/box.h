// A box: a start and an extent for each dimension of a tensor. An entry of a delta covers one box, by default the whole
// tensor; ranks write the boxes they hold. Units of a box are counted in row-major order within it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "tensor/tensor_spec.h"

namespace weightwire {

struct Box {
  std::vector<std::uint64_t> start;  // one number a dimension
  std::vector<std::uint64_t> extent;

  friend bool operator==(const Box&, const Box&) = default;
};

// Whether two boxes of one tensor have an element in common.
bool Overlap(const Box& a, const Box& b);
// Whether any two of them have. REQUIRES: all fit the tensor. n boxes that lie in a grid take about n^1.5 steps, those
// of one row or column n log n; however they lie, no more than n^2 / 2.
bool AnyOverlap(std::span<const Box* const> boxes);

// A box of a given tensor, checked, and its way through the tensor's units. Immutable.
//
// A tensor's units are what the codec compares (UnitBytes in tensor/dtype.h). Where a unit is not an element (packed
// types: bytes), the last dimension must begin and end on unit boundaries.
class BoxMap {
 public:
  // The whole tensor.
  explicit BoxMap(const TensorSpec& spec);
  // An error when the box does not fit the tensor.
  static Result<BoxMap> Of(const TensorSpec& spec, const Box& box);

  [[nodiscard]] int unit_bytes() const { return unit_bytes_; }
  [[nodiscard]] std::uint64_t unit_count() const { return stretch_units_ * stretch_count_; }
  [[nodiscard]] bool is_whole_tensor() const { return whole_; }

  // A stretch is as many units of the box as lie next to each other in the tensor. The box is stretch_count() stretches
  // of stretch_units() units each.
  [[nodiscard]] std::uint64_t stretch_units() const { return stretch_units_; }
  [[nodiscard]] std::uint64_t stretch_count() const { return stretch_count_; }
  [[nodiscard]] std::uint64_t StretchStart(std::uint64_t stretch) const;

  // One stretch, so that the box's units lie in the tensor as they lie in the box.
  [[nodiscard]] bool is_contiguous() const { return stretch_count_ <= 1; }

  // Calls function(box_unit, tensor_unit, count) for each stretch of units [begin, begin + count) of the box.
  template <typename Function>
  void ForEachStretch(std::uint64_t begin, std::uint64_t count, Function&& function) const {
    const std::uint64_t end = begin + count;
    while (begin < end) {
      const std::uint64_t within = begin % stretch_units_;
      const std::uint64_t size = std::min(stretch_units_ - within, end - begin);
      function(begin, StretchStart(begin / stretch_units_) + within, size);
      begin += size;
    }
  }

 private:
  BoxMap() = default;

  int unit_bytes_ = 1;
  bool whole_ = true;
  std::uint64_t stretch_units_ = 0;  // 0 only when the tensor has no units
  std::uint64_t stretch_count_ = 0;
  std::uint64_t first_ = 0;
  // The dimensions outside a stretch, innermost first: how many steps, and how many units apart.
  std::vector<std::uint64_t> outer_extent_;
  std::vector<std::uint64_t> outer_stride_;
};

}  // namespace weightwire
