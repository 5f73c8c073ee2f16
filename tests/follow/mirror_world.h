// Small models, their versions, and a mirror on a disk that forgets: what the tests of mirrors share.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "codec/models.h"
#include "follow/mirror/mirror.h"
#include "follow/mirror/reader.h"
#include "support/owned_tensor.h"
#include "support/sim_file_system.h"
#include "tensor/checkpoint_plan.h"
#include "tensor/safetensors.h"

namespace weightwire::testing {

// Whole files by their names in the checkpoint's directory.
using CheckpointFiles = std::map<std::string, std::string>;

// A version of a model: what it is, and the files an anchor of it has.
struct ModelVersion {
  Held held;
  Model model;
  CheckpointFiles files;
};

inline std::string FileText(const PlannedFile& file, const Model& model) {
  const auto header = SafetensorsHeader(file.specs, file.metadata);
  EXPECT_TRUE(header.ok());
  std::string text(header.value().begin(), header.value().end());
  for (const std::size_t tensor : file.sources) {
    text.append(reinterpret_cast<const char*>(model.tensors[tensor].data()), model.tensors[tensor].size());
  }
  return text;
}

inline ModelVersion VersionOf(Version number, Model model, std::uint64_t max_shard_bytes = 5'000'000'000,
                              const CheckpointFiles& carried = {{"config.json", "{}"}}) {
  ModelVersion version;
  version.held.run.bytes.fill(7);
  version.held.version = number;
  version.held.step = 10 * number;
  version.held.record_hash.fill(static_cast<std::uint8_t>(number + 1));
  version.held.layout = model.layout->hash();
  version.held.state = StateDigest(*model.layout, DigestsOf(model));
  version.files = carried;
  CheckpointOptions options;
  options.max_shard_bytes = max_shard_bytes;
  const CheckpointPlan plan = PlanFresh(*model.layout, options);
  for (const PlannedFile& file : plan) version.files[file.name] = FileText(file, model);
  if (plan.size() > 1) version.files[kIndexFileName] = IndexText(plan);
  version.model = std::move(model);
  return version;
}

// What leads from one version to another.
inline std::shared_ptr<const StagedChange> ChangeBetween(const ModelVersion& from, const ModelVersion& to) {
  const auto change = Stage(DeltaBetween(from.model, to.model), ViewOf(from.model));
  if (!change.ok()) ADD_FAILURE() << change.error().message();
  return change.value();
}

// A tensor of random bits.
inline OwnedTensor RandomTensor(Random& random, std::string name, DType dtype, std::uint64_t elements) {
  TensorSpec spec{std::move(name), dtype, {elements}};
  const std::size_t size = CheckedByteSize(spec).value();
  return {std::move(spec), RandomBytes(random, size)};
}

// Some units of every tensor, by new bits.
inline Model Stepped(Random& random, Model model, std::uint64_t one_in) {
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    const auto width = static_cast<std::size_t>(UnitBytes(model.layout->tensors()[i].dtype));
    for (std::size_t at = 0; at < model.tensors[i].size(); at += width) {
      if (Below(random, one_in) != 0) continue;
      for (std::size_t k = 0; k < width; ++k) model.tensors[i][at + k] = static_cast<std::uint8_t>(random());
    }
  }
  return model;
}

inline std::span<const std::uint8_t> SpanOf(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

inline std::vector<AnchorFile> AnchorFilesOf(const ModelVersion& version) {
  std::vector<AnchorFile> files;
  for (const auto& [name, text] : version.files) files.push_back({name, text.size(), {}});
  return files;
}

// Begins to load a version, and gives all portions of it in an odd order.
inline Result<std::unique_ptr<TargetLoad>> LoadWithoutCommit(Mirror& mirror, const ModelVersion& version) {
  constexpr std::size_t kPortion = 700;
  WW_TRY(std::unique_ptr<TargetLoad> load, mirror.BeginLoad(AnchorFilesOf(version)));
  std::size_t file = 0;
  for (const auto& [name, text] : version.files) {
    for (std::size_t at = text.size() / kPortion + 1; at-- > 0;) {
      const std::string_view portion = std::string_view(text).substr(std::min(at * kPortion, text.size()), kPortion);
      WW_RETURN_IF_ERROR(load->WriteAt(file, at * kPortion, SpanOf(portion)));
    }
    ++file;
  }
  return load;
}

inline Status CommitLoad(TargetLoad& load, const ModelVersion& version) {
  WW_RETURN_IF_ERROR(load.Prepare(version.held, *version.model.layout));
  return load.Commit(nullptr, version.held);
}

inline Status LoadInto(Mirror& mirror, const ModelVersion& version) {
  WW_TRY(const std::unique_ptr<TargetLoad> load, LoadWithoutCommit(mirror, version));
  return CommitLoad(*load, version);
}

inline constexpr const char* kMirrorPath = "data/mirror";

inline Result<std::unique_ptr<Mirror>> OpenSim(FileSystem& files, const MirrorOptions& options = {}) {
  return OpenMirror(files, kMirrorPath, options, BestKernels(), OneThread());
}

// The mirror holds exactly that version: by its own word, by every bit, and for the next delta.
inline ::testing::AssertionResult HoldsExactly(Mirror& mirror, const ModelVersion& version) {
  if (!mirror.held().has_value()) {
    return ::testing::AssertionFailure() << "holds nothing: "
                                         << (mirror.damage().has_value() ? mirror.damage()->message() : "no damage");
  }
  if (!(*mirror.held() == version.held)) {
    return ::testing::AssertionFailure() << "holds version " << mirror.held()->version << ", not "
                                         << version.held.version;
  }
  if (const Status checked = mirror.Verify(); !checked.ok()) {
    return ::testing::AssertionFailure() << checked.error().message();
  }
  const auto seen = mirror.View();
  if (!seen.ok()) return ::testing::AssertionFailure() << seen.error().message();
  const StateView& view = seen.value();
  if (!(view.layout() == *version.model.layout)) return ::testing::AssertionFailure() << "another layout";
  for (std::size_t i = 0; i < view.layout().size(); ++i) {
    const auto bytes = view.InPlace(i);
    if (Bytes(bytes.begin(), bytes.end()) != version.model.tensors[i]) {
      return ::testing::AssertionFailure() << "tensor " << view.layout().tensors()[i].name << " has other bits";
    }
  }
  if (view.digests() != DigestsOf(version.model)) return ::testing::AssertionFailure() << "other digests";
  return ::testing::AssertionSuccess();
}

// Whether a checkpoint in the directory has exactly the bits of the model, read as any tool would.
inline bool DirectoryHolds(FileSystem& files, const Model& model) {
  const auto checkpoint = Checkpoint::Open(files, kMirrorPath);
  if (!checkpoint.ok()) return false;
  const auto seen = checkpoint.value().ViewAs(*model.layout);
  if (!seen.ok()) return false;
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    const auto bytes = seen.value().bytes(i);
    if (Bytes(bytes.begin(), bytes.end()) != model.tensors[i]) return false;
  }
  return true;
}

}  // namespace weightwire::testing
