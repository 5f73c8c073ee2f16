// What tests of the publisher share: a bucket, a disk, processes that publish and die, and a reader that takes the
// bucket apart with nothing but the codec.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/object_hash.h"
#include "base/random.h"
#include "codec/models.h"
#include "log/run.h"
#include "publish/publisher.h"
#include "support/manual_clock.h"
#include "support/memory_store.h"
#include "support/owned_tensor.h"
#include "support/sim_file_system.h"
#include "support/sim_store.h"

namespace weightwire::testing {

inline StateBits BitsOf(const Model& model) { return {model.layout, {model.tensors.begin(), model.tensors.end()}}; }

// A small model with several unit widths, a scalar, an empty tensor and a tie.
inline Model SmallModel(std::uint64_t seed) {
  Random random(seed);
  return ModelOf(
      {
          {{"embed", DType::kBF16, {40, 10}}, WeightLikeBf16(random, 400)},
          {{"layer.a", DType::kBF16, {300}}, WeightLikeBf16(random, 300)},
          {{"layer.b", DType::kU8, {77}}, RandomBytes(random, 77)},
          {{"layer.empty", DType::kF32, {0}}, {}},
          {{"norm", DType::kF32, {9}}, RandomBytes(random, 36)},
          {{"scale", DType::kF64, {}}, RandomBytes(random, 8)},
      },
      {{"head", "embed"}});
}
inline constexpr std::uint64_t kSmallModelUnits = 400 + 300 + 77 + 9 + 1;

// The next step of training: some numbers move.
inline Model Trained(Model model, std::uint64_t seed, std::uint64_t one_in = 20) {
  Random random(seed);
  StepBf16(random, model["embed"], one_in);
  StepBf16(random, model["layer.a"], one_in);
  // At least one bit differs, whatever was drawn.
  model["norm"][seed % 36] = static_cast<std::uint8_t>(model["norm"][seed % 36] + 1);
  return model;
}

// One tensor gone, one new, one of another shape, another tie.
inline Model WithOtherLayout(const Model& model) {
  std::vector<OwnedTensor> tensors;
  for (std::size_t i = 0; i < model.layout->size(); ++i) {
    TensorSpec spec = model.layout->tensors()[i];
    if (spec.name == "layer.b") continue;
    if (spec.name == "norm") spec.shape = {3, 3};
    tensors.push_back({spec, model.tensors[i]});
  }
  tensors.push_back({{"added", DType::kU8, {5}}, {1, 2, 3, 4, 5}});
  return ModelOf(std::move(tensors), {{"other_head", "layer.a"}});
}

// The bits of a complete anchor.
inline Model ReadAnchorBits(const Run& run, const AnchorManifest& manifest) {
  std::vector<OwnedTensor> tensors;
  for (const AnchorFile& file : manifest.files) {
    const auto bytes = run.store().Get(AnchorFolder(manifest.name) + file.name, std::uint64_t{1} << 30);
    if (!bytes.ok()) {
      ADD_FAILURE() << bytes.error().message();
      return {};
    }
    EXPECT_EQ(bytes.value().size(), file.size_bytes);
    EXPECT_EQ(ObjectHash(bytes.value()), file.hash);
    if (!file.name.ends_with(".safetensors")) continue;
    const auto view = SafetensorsView::Parse(bytes.value());
    EXPECT_TRUE(view.ok());
    for (const TensorView& tensor : view.value().tensors()) {
      tensors.push_back({tensor.spec, {tensor.bytes.begin(), tensor.bytes.end()}});
    }
  }
  const auto layout = run.ReadLayout(manifest.layout);
  if (!layout.ok()) {
    ADD_FAILURE() << layout.error().message();
    return {};
  }
  Model model = ModelOf(std::move(tensors), layout.value().aliases());
  EXPECT_EQ(model.layout->hash(), manifest.layout);
  EXPECT_EQ(StateDigest(*model.layout, DigestsOf(model)), manifest.state);
  return model;
}

struct PublishedVersion {
  KnownRecord known;
  Model model;
};

// All versions of a run, each taken from the one before by its delta, checked in every way a reader must.
inline std::vector<PublishedVersion> ReadWholeRun(Store& bucket) {
  const auto run = Run::Open(bucket);
  EXPECT_TRUE(run.ok());
  std::vector<PublishedVersion> versions;
  for (Version v = 0;; ++v) {
    const auto read = run.value().ReadRecord(v);
    if (!read.ok()) {
      ADD_FAILURE() << read.error().message();
      return versions;
    }
    if (!read.value().has_value()) break;
    const KnownRecord& known = *read.value();
    const Record& record = known.record;
    if (!versions.empty()) {
      const Status follows = CheckFollows(versions.back().known, known);
      EXPECT_TRUE(follows.ok()) << follows.error().message();
    }
    EXPECT_TRUE(run.value().ReadLayout(record.layout).ok()) << "version " << v;
    Model model;
    if (!record.delta.has_value()) {
      const auto anchor = run.value().ReadAnchor(record.anchor->name);
      if (!anchor.ok()) {
        ADD_FAILURE() << anchor.error().message();
        return versions;
      }
      EXPECT_EQ(anchor.value().hash, record.anchor->manifest_hash);
      model = ReadAnchorBits(run.value(), anchor.value().manifest);
    } else {
      model = versions.back().model;
      for (const PartRef& part : *record.delta) {
        const auto bytes = bucket.Get(part.key, part.size_bytes);
        if (!bytes.ok()) {
          ADD_FAILURE() << "version " << v << ": " << bytes.error().message();
          return versions;
        }
        EXPECT_EQ(ObjectHash(bytes.value()), part.hash);
        model = MustApply(bytes.value(), model);
      }
    }
    EXPECT_EQ(model.layout->hash(), record.layout) << "version " << v;
    EXPECT_EQ(StateDigest(*model.layout, DigestsOf(model)), record.state) << "version " << v;
    versions.push_back({known, std::move(model)});
  }
  return versions;
}

inline Version VersionsIn(Store& bucket) { return ReadWholeRun(bucket).size(); }

// The things that outlive a process.
struct World {
  ManualClock clock;
  MemoryStore bucket{&clock};
  SimDisk disk;
  SeededRandom random{1};

  explicit World(bool single_writer = false) {
    const auto run = Run::Create(bucket, single_writer, random);
    EXPECT_TRUE(run.ok());
  }
};

// A process with a publisher. Dies when its `die_at`-th effect, on the store or the disk, is about to happen.
class Process {
 public:
  using StoreHook = SimStore::Hook;
  using DiskHook = SimFileSystem::Hook;

  explicit Process(World& world, PublisherOptions options = {}, std::optional<std::uint64_t> die_at = std::nullopt,
                   StoreHook store_hook = {}, DiskHook disk_hook = {})
      : world_(world),
        options_(std::move(options)),
        die_at_(die_at),
        store_(world.bucket,
               [this, store_hook](std::string_view request, std::string_view key) {
                 if (Dies()) {
                   files_.Kill();
                   return SimStore::Fate::kDie;
                 }
                 return store_hook ? store_hook(request, key) : SimStore::Fate::kGoOn;
               }),
        files_(world.disk, [this, disk_hook](std::string_view effect, const FileSystem::Path& path) {
          if (Dies()) {
            store_.Kill();
            return SimFileSystem::Fate::kDie;
          }
          return disk_hook ? disk_hook(effect, path) : SimFileSystem::Fate::kGoOn;
        }) {}

  Status Open() {
    WW_TRY(Run run, Run::Open(store_));
    WW_TRY(publisher_, Publisher::Open(std::move(run), options_,
                                       {&world_.clock, &world_.random, &files_, &BestKernels(), &OneThread()}));
    return Ok();
  }

  [[nodiscard]] bool dead() const { return store_.dead() || files_.dead(); }
  [[nodiscard]] std::uint64_t effects() const { return effects_; }
  [[nodiscard]] SimStore& store() { return store_; }
  [[nodiscard]] SimFileSystem& files() { return files_; }
  Publisher& operator*() { return *publisher_; }
  Publisher* operator->() { return publisher_.get(); }

  // Until nothing is due, or the process is dead.
  void WorkAll() {
    while (!dead() && publisher_->Work()) {
    }
  }
  // Only what is due in one lane.
  void WorkIn(Lane lane) {
    while (!dead()) {
      auto job = publisher_->Next(lane);
      if (!job.has_value()) return;
      publisher_->Execute(*job);
      publisher_->Finish(std::move(*job));
    }
  }
  // As time goes by, too.
  void WorkUntilIdle() {
    for (int i = 0; i < 1000 && !dead(); ++i) {
      WorkAll();
      if (publisher_->idle()) return;
      world_.clock.Advance(std::chrono::seconds(61));
    }
  }
  Ticket MustPublish(const Model& model, std::uint64_t step) {
    auto ticket = publisher_->Publish(BitsOf(model), step);
    if (!ticket.ok()) {
      ADD_FAILURE() << ticket.error().message();
      return std::make_shared<TicketStatus>();
    }
    if (!ticket.value().has_value()) {
      ADD_FAILURE() << "the spool is full";
      return std::make_shared<TicketStatus>();
    }
    return *ticket.value();
  }

 private:
  bool Dies() { return effects_++ == die_at_; }

  World& world_;
  PublisherOptions options_;
  std::optional<std::uint64_t> die_at_;
  std::uint64_t effects_ = 0;
  SimStore store_;
  SimFileSystem files_;
  std::unique_ptr<Publisher> publisher_;
};

inline PublisherOptions WithStateDirectory(bool base_on_disk = true) {
  PublisherOptions options;
  options.state_directory = "/state";
  options.base_on_disk = base_on_disk;
  return options;
}

}  // namespace weightwire::testing
