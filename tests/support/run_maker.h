// Makes the versions of a small run by hand, object by object, for tests of whoever reads them.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/object_hash.h"
#include "base/threads.h"
#include "codec/digest/state.h"
#include "codec/encode/encoder.h"
#include "codec/kernels/kernels.h"
#include "log/run.h"
#include "support/safetensors_file.h"
#include "tensor/safetensors.h"

namespace weightwire {

// A state of the test's model: all its tensors by the layout.
struct TestState {
  std::shared_ptr<const Layout> layout;
  std::vector<std::vector<std::uint8_t>> tensors;

  [[nodiscard]] std::vector<std::span<const std::uint8_t>> Views() const { return {tensors.begin(), tensors.end()}; }
};

class RunMaker {
 public:
  explicit RunMaker(Store& store, std::uint64_t seed = 1) : random_(seed), pool_(1), run_(MakeRun(store)) {
    kernels_ = ChooseKernels().value();
    std::vector<TensorSpec> specs = {{"embed", DType::kBF16, {64, 32}},
                                     {"head", DType::kF32, {16, 8}},
                                     {"layer.weight", DType::kBF16, {128, 16}},
                                     {"norm", DType::kBF16, {32}}};
    state_.layout = std::make_shared<const Layout>(Layout::Make(specs, {{"tied", "embed"}}).value());
    for (std::size_t i = 0; i < state_.layout->size(); ++i) {
      auto& bytes = state_.tensors.emplace_back(state_.layout->byte_size(i));
      for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random_.Next());
    }
    EXPECT_TRUE(run_.PutLayout(*state_.layout).ok());
  }

  [[nodiscard]] const Run& run() const { return run_; }
  [[nodiscard]] const Kernels& kernels() const { return *kernels_; }
  [[nodiscard]] ThreadPool& pool() { return pool_; }
  [[nodiscard]] Random& random() { return random_; }
  [[nodiscard]] const std::vector<TestState>& states() const { return states_; }  // by version
  [[nodiscard]] const std::vector<KnownRecord>& records() const { return records_; }
  [[nodiscard]] Version newest() const { return records_.back().record.version; }

  // Some weights change, and that is the next version. The first one, and a rebase, get an anchor.
  void Publish(bool rebase = false, std::uint64_t changes = 40) {
    for (std::uint64_t k = 0; !states_.empty() && k < changes; ++k) {
      auto& bytes = state_.tensors[random_.Below(state_.tensors.size())];
      bytes[random_.Below(bytes.size())] ^= static_cast<std::uint8_t>(1 + random_.Below(3));
    }
    PublishState(state_, rebase);
  }

  // The same state again, under another step.
  void PublishUnchanged() { PublishState(state_, false); }

  void PublishState(const TestState& next, bool rebase) {
    Record record;
    record.run = run_.id();
    record.version = records_.size();
    record.step = 10 * record.version;
    record.time = "2026-01-01T00:00:00Z";
    record.writer = NewId(random_);
    record.layout = next.layout->hash();
    record.state = StateDigest(*next.layout, DigestTensors(next.Views(), *kernels_, pool_));
    if (!records_.empty()) {
      const KnownRecord& before = records_.back();
      record.parent = before.hash;
      record.delta_bytes = before.record.delta_bytes;
      record.chain = before.record.chain;
      record.anchor = before.record.anchor;
    }
    if (records_.empty() || rebase) {
      record.chain = record.version;
      record.anchor = WriteAnchor(next, record);
    } else {
      record.delta.emplace();
      if (record.state != records_.back().record.state) record.delta->push_back(WritePart(next, record.version));
      record.delta_bytes += record.OwnDeltaBytes();
    }
    const std::string text = ToJson(record);
    const std::span bytes(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    EXPECT_TRUE(run_.store().PutIfAbsent(RecordKey(record.version), bytes).ok());
    records_.push_back({record, Sha256Of(text)});
    states_.push_back(next);
    state_ = next;
  }

  // A further anchor of a version that exists.
  AnchorRef AddAnchor(Version version) { return WriteAnchor(states_[version], records_[version].record); }

  // The newest record names it from the next version on.
  void KnowAnchor(const AnchorRef& anchor) { records_.back().record.anchor = anchor; }

 private:
  Run MakeRun(Store& store) { return Run::Create(store, false, random_).value(); }

  PartRef WritePart(const TestState& next, Version version) {
    const TestState& before = states_.back();
    EncodeRequest request;
    request.layout_before = before.layout.get();
    request.layout_after = next.layout.get();
    request.digests_before = DigestTensors(before.Views(), *kernels_, pool_);
    for (std::size_t i = 0; i < next.tensors.size(); ++i) {
      const auto origin = before.layout->FindSame(next.layout->tensors()[i]);
      EncodeEntry entry;
      entry.tensor = i;
      entry.has_old = origin.has_value();
      if (origin.has_value()) {
        entry.old_bytes = before.tensors[*origin];
        entry.before = (*request.digests_before)[*origin];
      }
      entry.new_bytes = next.tensors[i];
      request.entries.push_back(entry);
    }
    const auto delta = EncodeDelta(request, *kernels_, pool_);
    EXPECT_TRUE(delta.ok());
    const auto& file = delta.value().file;
    const Sha256Digest hash = ObjectHash(file);
    PartRef part{PartKey(version - 1, version, hash), file.size(), hash};
    EXPECT_TRUE(run_.store().Put(part.key, file).ok());
    return part;
  }

  AnchorRef WriteAnchor(const TestState& state, const Record& record) {
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
      views.push_back({state.layout->tensors()[i], state.tensors[i]});
    }
    AnchorManifest manifest{
        record.run, {record.version, NewId(random_)}, record.layout, record.state, record.delta_bytes, {}};
    const auto add = [&](const std::string& name, std::span<const std::uint8_t> bytes) {
      manifest.files.push_back({name, bytes.size(), ObjectHash(bytes)});
      EXPECT_TRUE(run_.store().Put(AnchorFolder(manifest.name) + name, bytes).ok());
    };
    const std::string config = R"({"model_type":"test"})";
    add("config.json", {reinterpret_cast<const std::uint8_t*>(config.data()), config.size()});
    // Two shards, as large models have.
    const std::span<const TensorView> all(views);
    add("model-00001-of-00002.safetensors", testing::WriteSafetensors(all.first(2), {{"format", "pt"}}).value());
    add("model-00002-of-00002.safetensors", testing::WriteSafetensors(all.subspan(2), {{"format", "pt"}}).value());
    const std::string index = ShardIndex(all);
    add("model.safetensors.index.json", {reinterpret_cast<const std::uint8_t*>(index.data()), index.size()});
    const std::string text = ToJson(manifest);
    const std::span bytes(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    EXPECT_TRUE(run_.store().Put(AnchorManifestKey(manifest.name), bytes).ok());
    return {manifest.name, manifest.TotalBytes(), Sha256Of(text)};
  }

  static std::string ShardIndex(std::span<const TensorView> tensors) {
    std::string map;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      map += (i == 0 ? "" : ",") + std::string("\"") + tensors[i].spec.name + "\":\"" +
             (i < 2 ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors") + "\"";
    }
    return R"({"metadata":{},"weight_map":{)" + map + "}}";
  }

  SeededRandom random_;
  ThreadPool pool_;
  const Kernels* kernels_ = nullptr;
  Run run_;
  TestState state_;
  std::vector<TestState> states_;
  std::vector<KnownRecord> records_;
};

}  // namespace weightwire
