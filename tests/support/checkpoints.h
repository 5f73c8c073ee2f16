// Small checkpoints for tests: tensors by name and bytes, files and directories made of them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/temporary_directory.h"
#include "tensor/checkpoint.h"

namespace weightwire::testing {

// A U8 vector.
inline OwnedTensor Tensor(std::string name, std::vector<std::uint8_t> bytes) {
  return {{std::move(name), DType::kU8, {bytes.size()}}, std::move(bytes)};
}

// A safetensors file of these tensors, in this order.
inline void WriteTensors(const std::filesystem::path& path, const std::vector<OwnedTensor>& tensors,
                         const Metadata& metadata = {}) {
  std::vector<TensorView> views;
  for (const OwnedTensor& tensor : tensors) views.push_back({tensor.spec, tensor.bytes});
  const auto file = WriteSafetensors(views, metadata);
  ASSERT_TRUE(file.ok()) << file.error().message();
  WriteAll(path, {reinterpret_cast<const char*>(file.value().data()), file.value().size()});
}

// The tensor's bytes under any of its names; a test failure when there is none.
inline std::vector<std::uint8_t> BytesOf(const Checkpoint& checkpoint, std::string_view name) {
  const auto index = checkpoint.layout().Resolve(name);
  EXPECT_TRUE(index.has_value()) << name;
  if (!index) return {};
  const auto bytes = checkpoint.bytes(*index);
  return {bytes.begin(), bytes.end()};
}

}  // namespace weightwire::testing
