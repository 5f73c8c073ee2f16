#include "tensor_memory.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <utility>

namespace nb = nanobind;

namespace weightwire::python {
namespace {

// --- DLPack's structures, as dlpack.h of its version 1 has them ---

struct DlDevice {
  std::int32_t type;
  std::int32_t id;
};
struct DlDtype {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct DlTensor {
  void* data;
  DlDevice device;
  std::int32_t rank;
  DlDtype dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // may be null: in order
  std::uint64_t byte_offset;
};
struct DlVersion {
  std::uint32_t major;
  std::uint32_t minor;
};
struct DlManagedTensorVersioned {
  DlVersion version;
  void* context;
  void (*deleter)(DlManagedTensorVersioned* self);
  std::uint64_t flags;
  DlTensor tensor;
};
struct DlExchangeHeader {
  DlVersion version;
  DlExchangeHeader* previous;
};
struct DlExchange {
  DlExchangeHeader header;
  void* allocate;
  int (*managed_of)(void* object, DlManagedTensorVersioned** out);
  void* to_object;
  int (*tensor_of)(void* object, DlTensor* out);  // may be null
  void* current_stream;
};
constexpr std::uint32_t kDlMajor = 1;
constexpr std::uint8_t kDlComplex = 5;

const DlExchange* ExchangeOf(PyObject* type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_CheckExact(capsule.ptr()) == 0) return nullptr;
  auto* header = static_cast<DlExchangeHeader*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (header == nullptr) PyErr_Clear();
  while (header != nullptr && header->version.major != kDlMajor) header = header->previous;
  const auto* exchange = reinterpret_cast<const DlExchange*>(header);
  return exchange != nullptr && exchange->tensor_of != nullptr && exchange->managed_of != nullptr ? exchange : nullptr;
}

// --- numpy's structure (the array interface, version 3) ---

struct NumpyArray {
  int two;
  int rank;
  char kind;
  int item_bytes;
  int flags;
  Py_ssize_t* shape;
  Py_ssize_t* strides;  // in bytes
  void* data;
  PyObject* description;
};
constexpr int kNumpyNotSwapped = 0x200;

std::string NameOf(const nb::object& object) {
  const nb::object name = nb::getattr(object, "__name__", nb::none());
  return nb::isinstance<nb::str>(name) ? nb::cast<std::string>(name) : "";
}

void FindOrder(TensorMemory& memory) {
  std::int64_t expected = 1;
  for (std::size_t d = memory.rank; d-- > 0;) {
    const std::int64_t extent = memory.dims[d];
    memory.elements *= static_cast<std::uint64_t>(extent);
    if (extent != 1 && memory.dims[memory.rank + d] != expected) memory.in_order = false;
    expected *= extent;
  }
}

// torch may have a tensor whose bits are to be negated or conjugated before they are used: views of complex numbers,
// which are out of order or a single element.
bool IsAsInMemory(nb::handle tensor, const TensorMemory& memory, bool complex) {
  if (memory.in_order && memory.elements != 1 && !complex) return true;
  for (const char* asks : {"is_neg", "is_conj"}) {
    if (nb::hasattr(tensor, asks) && nb::cast<bool>(tensor.attr(asks)())) return false;
  }
  return true;
}

std::optional<TensorMemory> ReadExchange(nb::handle tensor, const DlExchange& exchange) {
  DlTensor found;
  if (exchange.tensor_of(tensor.ptr(), &found) != 0) {
    PyErr_Clear();  // a sparse tensor, for example
    return std::nullopt;
  }
  if (found.rank < 0 || static_cast<std::size_t>(found.rank) > kMaxQuickRank) return std::nullopt;
  TensorMemory memory;
  memory.type = Py_TYPE(tensor.ptr());
  memory.address = static_cast<const char*>(found.data) + found.byte_offset;
  memory.device_type = found.device.type;
  memory.device = found.device.id;
  memory.dtype = std::uint32_t{found.dtype.code} << 24 | std::uint32_t{found.dtype.bits} << 16 | found.dtype.lanes;
  memory.rank = static_cast<std::uint32_t>(found.rank);
  std::copy_n(found.shape, found.rank, memory.dims.begin());
  if (found.strides == nullptr) return std::nullopt;  // allowed once; torch always has them
  std::copy_n(found.strides, found.rank, memory.dims.begin() + found.rank);
  FindOrder(memory);
  return IsAsInMemory(tensor, memory, found.dtype.code == kDlComplex) ? std::optional(memory) : std::nullopt;
}

std::optional<TensorMemory> ReadNumpy(nb::handle tensor) {
  const nb::object capsule = nb::getattr(tensor, "__array_struct__");
  const auto* found = static_cast<const NumpyArray*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (found == nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  if (found->two != 2 || static_cast<std::size_t>(found->rank) > kMaxQuickRank ||
      (found->flags & kNumpyNotSwapped) == 0) {
    return std::nullopt;
  }
  const std::int64_t item = std::max(1, found->item_bytes);
  TensorMemory memory;
  memory.type = Py_TYPE(tensor.ptr());
  memory.address = found->data;
  memory.device_type = 1;
  memory.dtype = static_cast<std::uint32_t>(found->kind) << 24 | static_cast<std::uint32_t>(found->item_bytes);
  memory.description = nb::object(nb::getattr(tensor, "dtype")).ptr();
  memory.rank = static_cast<std::uint32_t>(found->rank);
  for (int d = 0; d < found->rank; ++d) {
    if (found->strides[d] % item != 0) return std::nullopt;
    memory.dims[static_cast<std::size_t>(d)] = found->shape[d];
    memory.dims[static_cast<std::size_t>(found->rank + d)] = found->strides[d] / item;
  }
  FindOrder(memory);
  return memory;
}

}  // namespace

bool TensorMemory::operator==(const TensorMemory& other) const {
  return type == other.type && address == other.address && device_type == other.device_type && device == other.device &&
         dtype == other.dtype && description == other.description && rank == other.rank &&
         std::equal(dims.begin(), dims.begin() + 2 * rank, other.dims.begin());
}

MemoryOwner::~MemoryOwner() {
  if (auto* managed = static_cast<DlManagedTensorVersioned*>(managed_); managed != nullptr) {
    if (managed->deleter != nullptr) managed->deleter(managed);
  }
}

const MemoryReader::Kind& MemoryReader::KindOf(nb::handle tensor) {
  PyTypeObject* const type = Py_TYPE(tensor.ptr());
  const auto known = kinds_.find(type);
  if (known != kinds_.end()) return known->second;
  Kind kind;
  kind.type = nb::borrow(reinterpret_cast<PyObject*>(type));
  // A DTensor has no memory of its own, and neither may others that change what operations do.
  const nb::object dispatch = nb::getattr(kind.type, "__torch_dispatch__", nb::none());
  const bool is_plain = dispatch.is_none() || NameOf(dispatch) == "_disabled_torch_dispatch_impl";
  if (is_plain) kind.exchange = ExchangeOf(kind.type.ptr());
  const nb::object module = nb::getattr(kind.type, "__module__", nb::none());
  kind.is_numpy = kind.exchange == nullptr && nb::isinstance<nb::str>(module) &&
                  nb::cast<std::string>(module) == "numpy" && NameOf(kind.type) == "ndarray";
  return kinds_.emplace(type, std::move(kind)).first->second;
}

std::optional<TensorMemory> MemoryReader::Read(nb::handle tensor) {
  const Kind& kind = KindOf(tensor);
  if (kind.exchange != nullptr) return ReadExchange(tensor, *static_cast<const DlExchange*>(kind.exchange));
  return kind.is_numpy ? ReadNumpy(tensor) : std::nullopt;
}

MemoryOwner MemoryReader::Own(nb::handle tensor) {
  const Kind& kind = KindOf(tensor);
  DlManagedTensorVersioned* managed = nullptr;
  if (kind.exchange != nullptr &&
      static_cast<const DlExchange*>(kind.exchange)->managed_of(tensor.ptr(), &managed) != 0) {
    nb::raise_python_error();
  }
  return {managed, kind.exchange == nullptr ? nb::borrow(tensor) : nb::object()};
}

}  // namespace weightwire::python
