// Python's arrays as the core sees them: a name, a type, a shape and bytes. No data is copied here.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "follow/targets/array_target.h"
#include "publish/state_bits.h"
#include "tensor/layout.h"

namespace weightwire::python {

using ReadBytes = nanobind::ndarray<const std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using WriteBytes = nanobind::ndarray<std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// A list of (name, dtype, shape, bytes or Reader), and {alias: kept name}. Arrays and readers are kept alive as long as
// this lives.
struct PublishedState {
  StateBits bits;
  std::vector<ReadBytes> kept;
  std::vector<nanobind::object> kept_readers;
};
PublishedState ToStateBits(const nanobind::list& tensors, const nanobind::dict& aliases);

// A list of (name, dtype, shape, …), and {alias: kept name}.
Layout ToLayout(const nanobind::list& tensors, const nanobind::dict& aliases);

struct TargetArrays {
  std::vector<TargetArray> arrays;
  std::vector<WriteBytes> kept;
};
TargetArrays ToTargetArrays(const nanobind::list& tensors);

}  // namespace weightwire::python
