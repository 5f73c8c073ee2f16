// What golden files are made of (vectors.h).
#pragma once

#include <string>
#include <vector>

#include "codec/models.h"
#include "support/safetensors_file.h"
#include "tensor/safetensors.h"

namespace weightwire::testing {

struct GoodVector {
  std::string name;
  Bytes base;      // safetensors
  Bytes delta;     // safetensors
  Bytes expected;  // safetensors
};

struct BadVector {
  std::string name;  // of its one defect
  Bytes base;
  Bytes delta;
  std::string expected;  // damaged, wrong-base or unsupported
};

inline Bytes CheckpointOf(const Model& model) {
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < model.layout->size(); ++i)
    views.push_back({model.layout->tensors()[i], model.tensors[i]});
  return testing::WriteSafetensors(views, {}).value();
}

}  // namespace weightwire::testing
