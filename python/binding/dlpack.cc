// _core.dlpack: arrays of any library that speaks DLPack, short floats included, which numpy's own import does not
// know.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <utility>

#include "binding.h"
#include "errors.h"

namespace nb = nanobind;

namespace weightwire::python {
namespace {

// As DLPack numbers them (nanobind knows the first few by name).
constexpr std::uint8_t kInt = 0;
constexpr std::uint8_t kUInt = 1;
constexpr std::uint8_t kFloat = 2;
constexpr std::uint8_t kBfloat = 4;
constexpr std::uint8_t kComplex = 5;
constexpr std::uint8_t kBool = 6;
constexpr std::uint8_t kFloat8E4m3fn = 10;
constexpr std::uint8_t kFloat8E4m3fnuz = 11;
constexpr std::uint8_t kFloat8E5m2 = 12;
constexpr std::uint8_t kFloat8E5m2fnuz = 13;
constexpr std::uint8_t kFloat8E8m0fnu = 14;

// As safetensors calls it; empty if it has none for it.
std::string NameOf(const nb::dlpack::dtype& dtype) {
  const std::string bits = std::to_string(dtype.bits);
  if (dtype.lanes != 1) return "";
  switch (dtype.code) {
    case kInt:
      return "I" + bits;
    case kUInt:
      return "U" + bits;
    case kFloat:
      return "F" + bits;
    case kBfloat:
      return dtype.bits == 16 ? "BF16" : "";
    case kComplex:
      return dtype.bits == 64 ? "C64" : "";
    case kBool:
      return dtype.bits == 8 ? "BOOL" : "";
    case kFloat8E4m3fn:
      return "F8_E4M3";
    case kFloat8E4m3fnuz:
      return "F8_E4M3FNUZ";
    case kFloat8E5m2:
      return "F8_E5M2";
    case kFloat8E5m2fnuz:
      return "F8_E5M2FNUZ";
    case kFloat8E8m0fnu:
      return "F8_E8M0";
    default:
      return "";
  }
}

// Keeps the memory of an array alive.
struct Borrowed {
  nb::ndarray<nb::ro> array;
};

// (what keeps it alive, address, type, shape, strides in elements); None if it is not in host memory.
nb::object Dlpack(nb::ndarray<nb::ro> array) {
  if (array.device_type() != nb::device::cpu::value) return nb::none();
  nb::list shape;
  nb::list strides;
  for (std::size_t d = 0; d < array.ndim(); ++d) {
    shape.append(array.shape(d));
    strides.append(array.stride(d));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(array.data());
  const std::string dtype = NameOf(array.dtype());
  nb::object owner = nb::cast(Borrowed{std::move(array)});
  return nb::make_tuple(std::move(owner), address, dtype.c_str(), nb::tuple(shape), nb::tuple(strides));
}

}  // namespace

void BindDlpack(nb::module_& module) {
  nb::class_<Borrowed>(module, "Borrowed");
  module.def("dlpack", &Dlpack, nb::arg("array"));
}

}  // namespace weightwire::python
