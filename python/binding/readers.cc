// _core.Reader: readers over memory that Python owns (codec/encode/converting_reader.h), and readers that call Python.
#include "readers.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "binding.h"
#include "codec/encode/converting_reader.h"
#include "codec/kernels/kernels.h"
#include "errors.h"
#include "gil.h"

namespace nb = nanobind;

namespace weightwire::python {
namespace {

using Scales = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

DType ToDType(const std::string& name) {
  const auto dtype = DTypeNamed(name);
  if (!dtype.has_value()) Raise({ErrorCode::kInvalidArgument, "no checkpoint can hold the type " + name});
  return *dtype;
}

// What Python knows of a tensor: the address of its memory, its type, its shape and strides in elements.
StridedTensor ToStrided(std::uintptr_t address, const std::string& dtype, std::vector<std::uint64_t> shape,
                        std::vector<std::int64_t> strides) {
  if (shape.size() != strides.size()) Raise({ErrorCode::kInvalidArgument, "a tensor has a stride for each dimension"});
  // NOLINTNEXTLINE(performance-no-int-to-ptr): tensors tell their addresses as numbers.
  return {reinterpret_cast<const std::uint8_t*>(address), ToDType(dtype), std::move(shape), std::move(strides)};
}

PyReader MakeConverting(nb::object owner, std::uintptr_t address, const std::string& dtype,
                        std::vector<std::uint64_t> shape, std::vector<std::int64_t> strides, const std::string& to,
                        const std::optional<Scales>& scales) {
  std::optional<BlockScales> blocks;
  if (scales.has_value()) {
    blocks = BlockScales{scales->shape(1), {scales->data(), scales->data() + scales->size()}};
  }
  StridedTensor tensor = ToStrided(address, dtype, std::move(shape), std::move(strides));
  const Kernels* kernels = ValueOrRaise(ChooseKernels());
  const bool has_scales = blocks.has_value();  // which are of the weights as they are now
  return {std::move(owner),
          ValueOrRaise(MakeConvertingReader(std::move(tensor), ToDType(to), std::move(blocks), *kernels)), !has_scales};
}

Scales MakeScales(std::uintptr_t address, const std::string& dtype, std::vector<std::uint64_t> shape,
                  std::vector<std::int64_t> strides, bool power_of_two) {
  const StridedTensor tensor = ToStrided(address, dtype, std::move(shape), std::move(strides));
  const Kernels* kernels = ValueOrRaise(ChooseKernels());
  auto made = std::make_unique<BlockScales>([&] {
    const GilReleased release;
    ThreadPool pool(std::max(1U, std::thread::hardware_concurrency()));
    return ValueOrRaise(
        MakeBlockScales(tensor, power_of_two ? ScaleKind::kPowerOfTwo : ScaleKind::kFloat, *kernels, pool));
  }());
  const BlockScales& scales = *made;
  const nb::capsule owner(
      made.get(), [](void* kept) noexcept { std::default_delete<BlockScales>()(static_cast<BlockScales*>(kept)); });
  static_cast<void>(made.release());  // the capsule's now
  const std::size_t rows = scales.columns == 0 ? 0 : scales.scales.size() / scales.columns;
  return {const_cast<float*>(scales.scales.data()), {rows, scales.columns}, owner};
}

// Calls function(firsts, count, out) for units; `out` is an array of bytes to be filled.
class CallingReader final : public UnitReader {
 public:
  CallingReader(nb::object function, int unit_bytes) : function_(std::move(function)), unit_bytes_(unit_bytes) {}

  Status Read(std::span<const std::uint64_t> firsts, std::uint32_t count, std::uint8_t* out) const override {
    const GilAcquired acquire;
    try {
      nb::list begins;
      for (const std::uint64_t first : firsts) begins.append(first);
      const std::size_t bytes = firsts.size() * count * static_cast<std::size_t>(unit_bytes_);
      const nb::capsule owner(out, [](void*) noexcept {});  // without one, it would be a copy
      const nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> units(out, {bytes}, owner);
      CallPython([&] { function_(begins, count, units); });
    } catch (nb::python_error& error) {
      const bool interrupted = error.matches(PyExc_KeyboardInterrupt);
      Error why(ErrorCode::kIo, std::string("cannot read the weights: ") + error.what());
      // Ctrl-C while Python ran here: it is raised again where the work is given up. No Python may run before that.
      if (interrupted) PyErr_SetInterrupt();
      return why;
    }
    return Ok();
  }
  // Each call costs microseconds, so few and large ones.
  [[nodiscard]] bool reads_small_batches() const override { return false; }

 private:
  nb::object function_;
  int unit_bytes_;
};

PyReader MakeCalling(nb::object function, const std::string& dtype) {
  auto reader = std::make_unique<CallingReader>(std::move(function), UnitBytes(ToDType(dtype)));
  return {nb::none(), std::move(reader), false};
}

}  // namespace

void BindReaders(nb::module_& module) {
  nb::class_<PyReader>(module, "Reader");
  module.def("converting_reader", &MakeConverting, nb::arg("owner"), nb::arg("address"), nb::arg("dtype"),
             nb::arg("shape"), nb::arg("strides"), nb::arg("to"), nb::arg("scales").none());
  module.def("calling_reader", &MakeCalling, nb::arg("function"), nb::arg("dtype"));
  module.def("block_scales", &MakeScales, nb::arg("address"), nb::arg("dtype"), nb::arg("shape"), nb::arg("strides"),
             nb::arg("power_of_two"));
}

}  // namespace weightwire::python
