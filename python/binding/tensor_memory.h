// Where tensors of Python lie in memory, found out in tens of nanoseconds each. By DLPack's exchange table, which torch
// 2.10 and later has, or by numpy's array interface; both are C structures that their projects keep stable.
//
// Thread safety: REQUIRES the GIL throughout, destructors included.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

namespace weightwire::python {

// Tensors with more dimensions are rare.
inline constexpr std::size_t kMaxQuickRank = 8;

// Equal for tensors that are the same elements of the same memory.
struct TensorMemory {
  PyTypeObject* type = nullptr;  // borrowed: of the object
  const void* address = nullptr;
  std::int32_t device_type = 0;
  std::int32_t device = 0;
  std::uint32_t dtype = 0;            // DLPack's three numbers, or numpy's kind and size
  const void* description = nullptr;  // numpy's, of the type
  std::uint32_t rank = 0;
  std::uint64_t elements = 1;
  bool in_order = true;                                // elements follow each other, in row-major order
  std::array<std::int64_t, 2 * kMaxQuickRank> dims{};  // extents, then strides

  [[nodiscard]] bool operator==(const TensorMemory& other) const;
  [[nodiscard]] bool is_on_host() const { return device_type == 1; }
};

// Keeps the memory of a tensor as it is, whatever becomes of the Python object.
class MemoryOwner {
 public:
  MemoryOwner() = default;
  MemoryOwner(void* managed, nanobind::object object) : managed_(managed), object_(std::move(object)) {}
  MemoryOwner(MemoryOwner&& other) noexcept
      : managed_(std::exchange(other.managed_, nullptr)), object_(std::move(other.object_)) {}
  MemoryOwner& operator=(MemoryOwner&& other) noexcept {
    std::swap(managed_, other.managed_);
    std::swap(object_, other.object_);
    return *this;
  }
  ~MemoryOwner();

 private:
  void* managed_ = nullptr;  // DLManagedTensorVersioned
  nanobind::object object_;
};

// Looks at tensors. Keeps what it has found out about their types.
class MemoryReader {
 public:
  // nullopt if it cannot be told quickly, or if the bits in memory are not the tensor's.
  [[nodiscard]] std::optional<TensorMemory> Read(nanobind::handle tensor);
  // REQUIRES: Read has a result for it.
  [[nodiscard]] MemoryOwner Own(nanobind::handle tensor);

 private:
  struct Kind {
    nanobind::object type;
    const void* exchange = nullptr;  // DLPack's table
    bool is_numpy = false;
  };
  [[nodiscard]] const Kind& KindOf(nanobind::handle tensor);

  std::unordered_map<PyTypeObject*, Kind> kinds_;
};

}  // namespace weightwire::python
