#include "arrays.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "errors.h"
#include "readers.h"

namespace nb = nanobind;

namespace weightwire::python {
namespace {

TensorSpec ToSpec(const nb::handle& tensor) {
  TensorSpec spec;
  spec.name = nb::cast<std::string>(tensor[0]);
  const auto dtype = nb::cast<std::string>(tensor[1]);
  const auto known = DTypeNamed(dtype);
  if (!known.has_value()) {
    Raise(
        {ErrorCode::kInvalidArgument, "'" + spec.name + "' has the type " + dtype + ", which no checkpoint can hold"});
  }
  spec.dtype = *known;
  spec.shape = nb::cast<std::vector<std::uint64_t>>(tensor[2]);
  return spec;
}

Aliases ToAliases(const nb::dict& aliases) {
  Aliases ties;
  for (const auto& [alias, name] : aliases) ties[nb::cast<std::string>(alias)] = nb::cast<std::string>(name);
  return ties;
}

}  // namespace

PublishedState ToStateBits(const nb::list& tensors, const nb::dict& aliases) {
  PublishedState state;
  std::vector<TensorSpec> specs;
  std::map<std::string, std::span<const std::uint8_t>> bytes;
  std::map<std::string, const UnitReader*> readers;
  for (const nb::handle tensor : tensors) {
    TensorSpec spec = ToSpec(tensor);
    const nb::object data = tensor[3];
    if (nb::isinstance<PyReader>(data)) {
      bytes[spec.name] = {};
      readers[spec.name] = nb::cast<const PyReader&>(data).reader.get();
      state.kept_readers.push_back(data);
    } else {
      auto array = nb::cast<ReadBytes>(data);
      bytes[spec.name] = {array.data(), array.size()};
      readers[spec.name] = nullptr;
      state.kept.push_back(std::move(array));
    }
    specs.push_back(std::move(spec));
  }
  state.bits.layout = std::make_shared<const Layout>(ValueOrRaise(Layout::Make(std::move(specs), ToAliases(aliases))));
  for (const TensorSpec& spec : state.bits.layout->tensors()) {
    state.bits.tensors.push_back(bytes.at(spec.name));
    state.bits.readers.push_back(readers.at(spec.name));
  }
  return state;
}

Layout ToLayout(const nb::list& tensors, const nb::dict& aliases) {
  std::vector<TensorSpec> specs;
  for (const nb::handle tensor : tensors) specs.push_back(ToSpec(tensor));
  return ValueOrRaise(Layout::Make(std::move(specs), ToAliases(aliases)));
}

TargetArrays ToTargetArrays(const nb::list& tensors) {
  TargetArrays target;
  for (const nb::handle tensor : tensors) {
    auto array = nb::cast<WriteBytes>(tensor[3]);
    target.arrays.push_back({ToSpec(tensor), {array.data(), array.size()}});
    target.kept.push_back(std::move(array));
  }
  return target;
}

}  // namespace weightwire::python
