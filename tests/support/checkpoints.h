// Small checkpoints for tests: tensors by name and bytes, files and directories made of them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/owned_tensor.h"
#include "support/safetensors_file.h"
#include "support/temporary_directory.h"
#include "tensor/checkpoint.h"
#include "tensor/checkpoint_plan.h"
#include "tensor/checkpoint_writer.h"

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

// A checkpoint of one file with these tensors. The file is removed; its mapping stays.
inline Result<Checkpoint> CheckpointOf(const std::vector<OwnedTensor>& tensors, const Aliases& aliases = {}) {
  const TemporaryDirectory directory;
  WriteTensors(directory / kSingleFileName, tensors, {aliases.begin(), aliases.end()});
  return Checkpoint::Open(directory / kSingleFileName);
}

// The data of a checkpoint, which must outlive it.
inline TensorSource DataOf(const Checkpoint& checkpoint) {
  return [&checkpoint](std::size_t index, const TensorSink& sink) { return sink(checkpoint.bytes(index)); };
}

// Makes a directory with the checkpoint's weights, in the files that an anchor of them has.
inline Status WriteCheckpoint(const Checkpoint& checkpoint, const std::filesystem::path& output,
                              const CheckpointOptions& options) {
  std::filesystem::create_directory(output);
  const CheckpointPlan plan = PlanFresh(checkpoint.layout(), options);
  for (const PlannedFile& file : plan) {
    WW_TRY(SafetensorsWriter writer, SafetensorsWriter::Create(output / file.name, file.specs, file.metadata));
    for (const std::size_t tensor : file.sources) WW_RETURN_IF_ERROR(writer.Append(checkpoint.bytes(tensor)));
    WW_RETURN_IF_ERROR(writer.Finish());
  }
  if (plan.size() > 1) WriteAll(output / kIndexFileName, IndexText(plan));
  return Ok();
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
