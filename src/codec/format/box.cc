#include "codec/format/box.h"

#include <algorithm>

#include "base/bytes.h"
#include "tensor/json.h"

namespace weightwire {

namespace {

// The shape in units: for packed types the last dimension counts bytes.
std::vector<std::uint64_t> UnitShape(const TensorSpec& spec) {
  std::vector<std::uint64_t> shape = spec.shape;
  if (IsPacked(spec.dtype) && !shape.empty())
    shape.back() = shape.back() * static_cast<std::uint64_t>(BitsPer(spec.dtype)) / 8;
  return shape;
}

Error DoesNotFit(const TensorSpec& spec, const std::string& why) {
  return {ErrorCode::kCorrupt, "a box does not fit tensor " + Quoted(spec.name) + " " + Describe(spec) + ": " + why};
}

}  // namespace

BoxMap::BoxMap(const TensorSpec& spec) : unit_bytes_(UnitBytes(spec.dtype)), stretch_count_(1) {
  const Result<std::uint64_t> bytes = ByteSize(spec.dtype, spec.shape);
  WW_CHECK(bytes.ok());
  stretch_units_ = bytes.value() / static_cast<std::uint64_t>(unit_bytes_);
  if (stretch_units_ == 0) stretch_count_ = 0;
}

Result<BoxMap> BoxMap::Of(const TensorSpec& spec, const Box& box) {
  if (box.start.size() != spec.shape.size() || box.extent.size() != spec.shape.size()) {
    return DoesNotFit(spec, "it has another number of dimensions");
  }
  for (std::size_t d = 0; d < spec.shape.size(); ++d) {
    if (box.extent[d] == 0) return DoesNotFit(spec, "it is empty");
    if (box.extent[d] > spec.shape[d] || box.start[d] > spec.shape[d] - box.extent[d]) {
      return DoesNotFit(spec, "it reaches outside");
    }
  }
  if (box.extent == spec.shape) return BoxMap(spec);

  std::vector<std::uint64_t> start = box.start;
  std::vector<std::uint64_t> extent = box.extent;
  const std::vector<std::uint64_t> shape = UnitShape(spec);
  if (IsPacked(spec.dtype)) {
    // A packed tensor fills whole bytes as a whole; rows and boxes of it must as well.
    const auto bits = static_cast<std::uint64_t>(BitsPer(spec.dtype));
    if ((spec.shape.back() * bits) % 8 != 0 || (start.back() * bits) % 8 != 0 || (extent.back() * bits) % 8 != 0) {
      return DoesNotFit(spec, "it splits a byte of a packed type");
    }
    start.back() = start.back() * bits / 8;
    extent.back() = extent.back() * bits / 8;
  }

  BoxMap map;
  map.unit_bytes_ = UnitBytes(spec.dtype);
  map.whole_ = false;
  // A stretch goes over the last dimensions as long as they are covered whole, and into one more.
  std::uint64_t stride = 1;
  std::size_t d = shape.size();
  map.stretch_units_ = 1;
  while (d > 0) {
    --d;
    map.stretch_units_ *= extent[d];
    map.first_ += start[d] * stride;
    stride *= shape[d];
    if (extent[d] != shape[d]) break;
  }
  map.stretch_count_ = 1;
  while (d > 0) {
    --d;
    map.outer_extent_.push_back(extent[d]);
    map.outer_stride_.push_back(stride);
    map.stretch_count_ *= extent[d];
    map.first_ += start[d] * stride;
    stride *= shape[d];
  }
  return map;
}

std::uint64_t BoxMap::StretchStart(std::uint64_t stretch) const {
  std::uint64_t unit = first_;
  for (std::size_t d = 0; d < outer_extent_.size(); ++d) {
    unit += stretch % outer_extent_[d] * outer_stride_[d];
    stretch /= outer_extent_[d];
  }
  return unit;
}

bool Overlap(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.start.size(); ++d) {
    if (a.start[d] + a.extent[d] <= b.start[d] || b.start[d] + b.extent[d] <= a.start[d]) return false;
  }
  return true;
}

bool AnyOverlap(std::span<const Box* const> boxes) {
  if (boxes.size() < 2) return false;
  const std::size_t rank = boxes[0]->start.size();
  if (rank == 0) return true;  // both are all of a scalar
  std::vector<const Box*> sorted(boxes.begin(), boxes.end());
  const auto sort_by = [&](std::size_t d) {
    std::sort(sorted.begin(), sorted.end(), [&](const Box* a, const Box* b) { return a->start[d] < b->start[d]; });
  };
  // The first box from i + 1 on that begins where box i has ended: those between meet it in dimension d.
  const auto end_of = [&](std::size_t i, std::size_t d) {
    return std::lower_bound(sorted.begin() + static_cast<std::ptrdiff_t>(i) + 1, sorted.end(),
                            sorted[i]->start[d] + sorted[i]->extent[d],
                            [&](const Box* box, std::uint64_t end) { return box->start[d] < end; });
  };
  // Only boxes that meet in a dimension need be compared: the one with the fewest such pairs will do.
  std::size_t best = 0;
  std::uint64_t fewest = ~std::uint64_t{0};
  for (std::size_t d = 0; d < rank && fewest > 0; ++d) {
    sort_by(d);
    std::uint64_t pairs = 0;
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      pairs += static_cast<std::uint64_t>(end_of(i, d) - sorted.begin()) - i - 1;
    }
    if (pairs < fewest) {
      fewest = pairs;
      best = d;
    }
  }
  if (fewest == 0) return false;
  sort_by(best);
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const auto meets = [&](const Box* other) { return Overlap(*sorted[i], *other); };
    if (std::any_of(sorted.begin() + static_cast<std::ptrdiff_t>(i) + 1, end_of(i, best), meets)) return true;
  }
  return false;
}

}  // namespace weightwire
