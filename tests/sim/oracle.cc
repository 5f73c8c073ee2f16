#include "sim/oracle.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/object_hash.h"
#include "codec/decode/decoder.h"
#include "codec/decode/state_view.h"
#include "codec/digest/state.h"
#include "codec/format/delta_file.h"
#include "log/anchor.h"
#include "sim/anchor_bits.h"

namespace weightwire::sim {

Oracle::Oracle(World& world, Bucket& bucket)
    : world_(world), bucket_(bucket), kernels_(KernelsNamed("scalar").value()), pool_(1) {
  bucket_.on_record = [this](std::string_view key, std::span<const std::uint8_t> bytes) { OnRecord(key, bytes); };
  bucket_.on_manifest = [this](std::string_view key, std::span<const std::uint8_t> bytes) { OnManifest(key, bytes); };
}

Weights Oracle::FirstWeights() {
  Weights weights;
  const std::vector<TensorSpec> specs = {{"a.weight", DType::kBF16, {16, 12}},
                                         {"b.scale", DType::kF32, {9}},
                                         {"c.codes", DType::kU8, {70}},
                                         {"d.norm", DType::kBF16, {8}}};
  weights.layout = std::make_shared<const Layout>(Layout::Make(specs, {{"tied", "a.weight"}}).value());
  for (std::size_t i = 0; i < weights.layout->size(); ++i) {
    auto& bytes = weights.tensors.emplace_back(weights.layout->byte_size(i));
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(world_.random().Next());
  }
  return weights;
}

void Oracle::Train(Weights& weights) {
  Random& random = world_.random();
  if (random.Below(12) == 0) return;  // a step that changes nothing
  if (random.Below(40) == 0) {
    // A tensor of its own comes or goes.
    std::vector<TensorSpec> specs = weights.layout->tensors();
    const auto extra = weights.layout->Find("z.extra");
    if (extra.has_value()) {
      specs.erase(specs.begin() + static_cast<std::ptrdiff_t>(*extra));
      weights.tensors.erase(weights.tensors.begin() + static_cast<std::ptrdiff_t>(*extra));
    } else {
      specs.push_back({"z.extra", DType::kF16, {5}});
      weights.tensors.emplace_back(10, static_cast<std::uint8_t>(random.Next()));
    }
    weights.layout = std::make_shared<const Layout>(Layout::Make(specs, weights.layout->aliases()).value());
  }
  const std::uint64_t changes = 1 + random.Below(12);
  for (std::uint64_t k = 0; k < changes; ++k) {
    auto& bytes = weights.tensors[random.Below(weights.tensors.size())];
    bytes[random.Below(bytes.size())] ^= static_cast<std::uint8_t>(1 + random.Below(255));
  }
}

Sha256Digest Oracle::MayBePublished(const Weights& weights) {
  const auto digests = DigestTensors(weights.views(), *kernels_, pool_);
  const Sha256Digest state = StateDigest(*weights.layout, digests);
  made_.try_emplace(state, std::make_shared<const Weights>(weights));
  return state;
}

bool Oracle::HasRecord(Version version, std::string_view record_json) const {
  const std::span bytes(reinterpret_cast<const std::uint8_t*>(record_json.data()), record_json.size());
  return version < versions_.size() && versions_[version].known.hash == Sha256Of(bytes);
}

std::shared_ptr<const Weights> Oracle::SomeWeights() {
  auto at = made_.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(world_.random().Below(made_.size())));
  return at->second;
}

void Oracle::OnRecord(std::string_view key, std::span<const std::uint8_t> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  auto record = ParseRecord(text);
  if (!record.ok()) return world_.Violation(fmt::format("{} is no record: {}", key, record.error().message()));
  const Record& is = record.value();
  if (is.version != versions_.size()) return world_.Violation(fmt::format("{} leaves a gap or repeats a version", key));
  if (key != RecordKey(is.version)) return world_.Violation(fmt::format("{} says it is version {}", key, is.version));
  if (!versions_.empty() && is.parent != versions_.back().known.hash) {
    return world_.Violation(fmt::format("version {} has another parent than version {}", is.version, is.version - 1));
  }
  const auto made = made_.find(is.state);
  if (made == made_.end()) return world_.Violation(fmt::format("version {} is a state that nobody made", is.version));
  versions_.push_back({{is, Sha256Of(bytes)}, made->second});
  CheckComplete(is);
  if (world_.violation().has_value()) return;
  if (const Status leads = CheckDelta(is); !leads.ok()) {
    world_.Violation(
        fmt::format("the delta of version {} does not lead to it: {}", is.version, leads.error().message()));
  }
  if (on_version) on_version(is);
}

void Oracle::OnManifest(std::string_view key, std::span<const std::uint8_t> bytes) {
  const auto manifest = ParseAnchorManifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!manifest.ok()) return world_.Violation(fmt::format("{} is no manifest: {}", key, manifest.error().message()));
  for (const AnchorFile& file : manifest.value().files) {
    const std::string name = AnchorFolder(manifest.value().name) + file.name;
    const auto at = bucket_.objects().find(name);
    // Gc may take files that lay there for longer than its minimum age, which here may be none.
    if (at == bucket_.objects().end() && bucket_.WasRemoved(name)) return;
    if (at == bucket_.objects().end() || ObjectHash(at->second.bytes) != file.hash) {
      world_.Violation(fmt::format("{} was put before {} was there", key, name));
    }
  }
  if (world_.violation().has_value()) return;
  const auto made = made_.find(manifest.value().state);
  if (made == made_.end()) return world_.Violation(fmt::format("{} is of a state that nobody made", key));
  const auto wrong = WrongInAnchor(bucket_, manifest.value(), *made->second);
  if (wrong.has_value()) world_.Violation(fmt::format("{} is not what it says: {}", key, *wrong));
}

void Oracle::CheckComplete(const Record& record) {
  const auto missing = [&](const std::string& what) {
    world_.Violation(fmt::format("version {} was committed before {}", record.version, what));
  };
  if (!bucket_.objects().contains(LayoutKey(record.layout))) missing("its layout was there");
  if (record.delta.has_value()) {
    for (const PartRef& part : *record.delta) {
      const auto at = bucket_.objects().find(part.key);
      if (at == bucket_.objects().end() || ObjectHash(at->second.bytes) != part.hash) missing(part.key + " was there");
    }
  } else if (!bucket_.objects().contains(AnchorManifestKey(record.anchor->name))) {
    missing("its anchor was complete");
  }
}

Status Oracle::CheckDelta(const Record& record) {
  if (!record.delta.has_value()) return Ok();
  const VersionTruth& before = versions_[record.version - 1];
  const StateView view(before.weights->layout, before.weights->views(),
                       DigestTensors(before.weights->views(), *kernels_, pool_));
  std::shared_ptr<const StagedChange> change;
  std::vector<DeltaFile> files;
  for (const PartRef& part : *record.delta) {
    WW_TRY(DeltaFile file, DeltaFile::Parse(bucket_.objects().find(part.key)->second.bytes));
    files.push_back(std::move(file));
  }
  if (files.empty()) {
    change = std::make_shared<const StagedChange>(StagedChange::Nothing(view.shared_layout(), view.digests()));
  } else if (files.size() == 1 && files.front().index().state.has_value()) {
    WW_TRY(change, StageDelta(files.front(), view, *kernels_, pool_));
  } else {
    const StateDigests promised{before.known.record.state, record.state};
    WW_TRY(change, StageParts(files, promised, view, *kernels_, pool_));
  }
  if (change->state_after() != record.state) return Error(ErrorCode::kMismatch, "it leads to another state");
  return Ok();
}

std::shared_ptr<const Weights> Oracle::Find(const Held& held) const {
  if (held.version >= versions_.size()) return nullptr;
  const VersionTruth& truth = versions_[held.version];
  return held == HeldOf(truth.known) ? truth.weights : nullptr;
}

void Oracle::Expect(const std::string& who, Version version, const Layout& layout,
                    std::span<const std::span<const std::uint8_t>> tensors) {
  const auto wrong = [&](const std::string& what) {
    world_.Violation(fmt::format("{} says it holds version {}, but {}", who, version, what));
  };
  if (version >= versions_.size()) return wrong("there is none");
  const Weights& truth = *versions_[version].weights;
  if (layout.hash() != truth.layout->hash() || tensors.size() != truth.tensors.size()) return wrong("not its layout");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!std::equal(tensors[i].begin(), tensors[i].end(), truth.tensors[i].begin(), truth.tensors[i].end())) {
      return wrong(fmt::format("'{}' has other bits", layout.tensors()[i].name));
    }
  }
}

}  // namespace weightwire::sim
