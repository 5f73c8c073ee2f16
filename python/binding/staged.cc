#include "staged.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "tensor/dtype.h"
#include "tensor/layout.h"

namespace nb = nanobind;

namespace weightwire::python {
namespace {

using Owner = std::shared_ptr<const StagedChange>;

template <typename T>
nb::object View(std::span<const T> values, const nb::capsule& owner) {
  return nb::cast(nb::ndarray<nb::numpy, const T, nb::ndim<1>>(values.data(), {values.size()}, owner));
}

}  // namespace

nb::list StagedTensors(std::shared_ptr<const StagedChange> change) {
  const StagedChange& staged = *change;
  const nb::capsule owner(new Owner(std::move(change)), [](void* p) noexcept { delete static_cast<Owner*>(p); });
  nb::list tensors;
  for (const StagedTensor& tensor : staged.tensors()) {
    const TensorSpec& spec = staged.layout_after().tensors()[tensor.tensor()];
    nb::list shape;
    for (const std::uint64_t extent : spec.shape) shape.append(extent);
    nb::list pieces;
    for (const StagedChunk& chunk : tensor.chunks()) {
      pieces.append(nb::make_tuple(chunk.first_unit, View<std::uint32_t>(chunk.offsets, owner),
                                   View<std::uint8_t>(chunk.new_units, owner),
                                   View<std::uint8_t>(chunk.old_units, owner)));
    }
    const nb::object whole = tensor.is_new() ? View<std::uint8_t>(tensor.new_bytes(), owner) : nb::none();
    tensors.append(nb::make_tuple(spec.name, std::string(NameOf(spec.dtype)), nb::tuple(shape), tensor.unit_bytes(),
                                  whole, pieces));
  }
  return tensors;
}

}  // namespace weightwire::python
