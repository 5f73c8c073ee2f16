// The tensors of a model as the core reads them, examined once: names, types, shapes and ties as a layout, and where
// each tensor's bits lie. Later calls of publish check that the model's tensors are still the same memory, and use it
// again.
//
// Between two calls it holds no memory of the model, so that a trainer may move or free its weights. What it points to
// is valid from when it was made, or `Renew` returned true, until `Release`.
//
// Thread safety: REQUIRES the GIL. The core reads what it points to without.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "arrays.h"
#include "publish/state_bits.h"
#include "readers.h"
#include "tensor_memory.h"

namespace weightwire::python {

// How often torch has counted a write to each of some tensors.
class WriteCounts {
 public:
  WriteCounts();
  explicit WriteCounts(const nanobind::list& tensors);
  void Add(nanobind::handle tensor);
  // One that may be written to.
  void Skip(std::size_t index);
  // Keeps the tensors, which were added in this order.
  void Keep(nanobind::list tensors) { tensors_ = std::move(tensors); }
  // The first tensor that was written to since, by its index, or None.
  [[nodiscard]] nanobind::object FirstChanged() const;

 private:
  [[nodiscard]] std::int64_t CountOf(nanobind::handle tensor) const;

  nanobind::object attribute_;
  nanobind::list tensors_;
  std::vector<std::int64_t> counts_;
  PyTypeObject* type_ = nullptr;  // of the tensor added last, and whether torch counts writes to such
  bool counts_type_ = false;
};

class PreparedState {
 public:
  // From a list of (name, dtype, shape, bytes or Reader), and {alias: kept name}.
  PreparedState(const nanobind::list& tensors, const nanobind::dict& aliases);
  PreparedState(const PreparedState&) = delete;
  PreparedState& operator=(const PreparedState&) = delete;

  // Makes it one that can be renewed. `values` are all tensors of the model from which it was made; `copied` says
  // which of them, by index, were copied for it, and gives the copies. Returns false if it cannot be renewed, because a
  // tensor's memory cannot be told quickly or its bits are made by Python.
  bool Watch(const nanobind::list& values, const nanobind::dict& copied);

  // Whether the model's tensors, in the same order, are the memory that it was made from. If so, copies are made again,
  // and it can be used for one call, during which somebody else keeps the tensors' memory.
  bool Renew(const nanobind::list& values);
  // The same for a call during which the model is used: keeps the tensors' memory, and counts writes to what was not
  // copied. None if it is not the same memory.
  nanobind::object RenewCounted(const nanobind::list& values);

  // Lets go of the model's memory.
  void Release();

  // A call may add what is its own, until Release.
  [[nodiscard]] StateBits& bits() { return bits_; }
  [[nodiscard]] std::uint64_t elements() const { return elements_; }

 private:
  bool RenewWith(const nanobind::list& values, WriteCounts* counts);

  struct Copy {
    std::size_t value;
    void* to;
    std::size_t size_bytes;
  };

  StateBits bits_;
  std::vector<std::shared_ptr<const UnitReader>> readers_;
  bool reusable_ = true;
  std::uint64_t elements_ = 0;
  // What keeps the memory for this call: of one that made it, and of one that renewed it.
  std::vector<ReadBytes> arrays_;
  std::vector<nanobind::object> owners_of_readers_;
  std::vector<MemoryOwner> owners_;
  nanobind::object values_in_use_;
  MemoryReader memory_;
  std::vector<TensorMemory> values_;
  std::vector<Copy> copies_;
  std::vector<MemoryOwner> copy_owners_;
};

}  // namespace weightwire::python
