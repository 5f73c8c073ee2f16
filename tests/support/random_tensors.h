// rapidcheck generators of tensors: every dtype, small shapes with zeros and scalars, awkward names.
#pragma once

#include <rapidcheck.h>

#include <set>
#include <string>
#include <vector>

#include "support/owned_tensor.h"
#include "support/safetensors_file.h"
#include "tensor/checkpoint.h"
#include "tensor/tensor_spec.h"

namespace weightwire::testing {

inline rc::Gen<std::string> RandomName() {
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
                          "model", "layers", ".", "0", "é", "\"", "\\", "\n", "\x01", "漢", " ", "/", "__metadata__")),
                      [](const std::vector<std::string>& parts) {
                        std::string name;
                        for (const std::string& part : parts) name += part;
                        return name == "__metadata__" ? name + "_" : name;
                      });
}

inline rc::Gen<TensorSpec> RandomSpec() {
  return rc::gen::exec([] {
    TensorSpec spec;
    spec.name = *RandomName();
    const auto dtypes = testing::AllDTypes();
    spec.dtype = *rc::gen::elementOf(std::vector<DType>(dtypes.begin(), dtypes.end()));
    const auto rank = *rc::gen::inRange(0, 4);
    for (int i = 0; i < rank; ++i) spec.shape.push_back(*rc::gen::inRange<std::uint64_t>(0, 6));
    if (IsPacked(spec.dtype)) spec.shape.push_back(4);  // 16 or 24 bits: whole bytes
    return spec;
  });
}

// Different names, in no particular order.
inline rc::Gen<std::vector<TensorSpec>> RandomSpecs() {
  return rc::gen::uniqueBy<std::vector<TensorSpec>>(RandomSpec(), [](const TensorSpec& spec) { return spec.name; });
}

inline rc::Gen<std::vector<OwnedTensor>> RandomTensors() {
  return rc::gen::exec([] {
    std::vector<OwnedTensor> tensors;
    for (TensorSpec& spec : *RandomSpecs()) {
      const std::size_t size = CheckedByteSize(spec).value();
      tensors.push_back(
          {std::move(spec), *rc::gen::container<std::vector<std::uint8_t>>(size, rc::gen::arbitrary<std::uint8_t>())});
    }
    return tensors;
  });
}

}  // namespace weightwire::testing

namespace rc {
// How a failing case shows the spec.
inline void showValue(const weightwire::TensorSpec& spec, std::ostream& out) {
  show(spec.name, out);
  out << ' ' << weightwire::Describe(spec);
}
inline void showValue(const weightwire::OwnedTensor& tensor, std::ostream& out) { showValue(tensor.spec, out); }
}  // namespace rc
