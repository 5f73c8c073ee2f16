// Updates in place, cut off at every point there is: afterwards the checkpoint is old, or can be completed to new.
#include "follow/in_place/in_place_update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/real_file_system.h"
#include "codec/decode/decoder.h"
#include "codec/decode/state_view.h"
#include "codec/digest/state.h"
#include "codec/models.h"
#include "follow/in_place/update_lock.h"
#include "support/checkpoints.h"
#include "support/owned_tensor.h"
#include "support/sim_file_system.h"
#include "support/temporary_directory.h"
#include "tensor/checkpoint_writer.h"

namespace weightwire {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::ReadAll;
using testing::SimDisk;
using testing::SimFileSystem;
using testing::TemporaryDirectory;
using testing::WriteAll;
using testing::WriteTensors;
using Fate = SimFileSystem::Fate;

using Contents = std::map<std::string, std::string>;

Contents ContentsOf(const fs::path& directory) {
  Contents contents;
  for (const auto& entry : fs::directory_iterator(directory)) {
    contents[entry.path().filename().string()] = ReadAll(entry.path());
  }
  return contents;
}

Checkpoint Open(const fs::path& path) {
  auto checkpoint = Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message();
  return std::move(checkpoint).value();
}

testing::Model ModelIn(const Checkpoint& checkpoint) {
  testing::Model model;
  model.layout = std::make_shared<const Layout>(checkpoint.layout());
  for (std::size_t i = 0; i < checkpoint.layout().size(); ++i) {
    const auto bytes = checkpoint.bytes(i);
    model.tensors.emplace_back(bytes.begin(), bytes.end());
  }
  return model;
}

// What leads from one checkpoint to the other.
std::shared_ptr<const StagedChange> Change(const Checkpoint& before, const Checkpoint& after) {
  const testing::Model base = ModelIn(before);
  const auto change = testing::Stage(testing::DeltaBetween(base, ModelIn(after)), testing::ViewOf(base));
  EXPECT_TRUE(change.ok()) << change.error().message();
  return change.value();
}

OwnedTensor Filled(const std::string& name, std::size_t units, std::uint32_t factor) {
  OwnedTensor tensor{{name, DType::kBF16, {units}}, std::vector<std::uint8_t>(2 * units)};
  for (std::size_t i = 0; i < tensor.bytes.size(); ++i) tensor.bytes[i] = static_cast<std::uint8_t>(i * factor >> 3);
  return tensor;
}

// Two shards with changes here and there, all over, and not at all.
struct States {
  Contents before;
  Contents after;
  std::shared_ptr<const StagedChange> change;

  // Made once: encoding takes long under a sanitizer.
  static const States& Get() {
    static const States states;
    return states;
  }

 private:
  States() {
    const std::vector<OwnedTensor> tensors = {Filled("dense", 20'000, 7), Filled("same", 1000, 5),
                                              Filled("sparse", 15'000, 11)};
    std::vector<OwnedTensor> changed = tensors;
    for (std::uint8_t& byte : changed[0].bytes) byte ^= 0x15;
    for (std::size_t i = 0; i < changed[2].bytes.size(); i += i < 1000 ? 2 : 7'502) changed[2].bytes[i] ^= 0x01;
    const auto old_state = testing::CheckpointOf(tensors);
    const auto new_state = testing::CheckpointOf(changed);
    before = Written(old_state.value());
    after = Written(new_state.value());
    change = Change(old_state.value(), new_state.value());
  }

  static Contents Written(const Checkpoint& checkpoint) {
    const TemporaryDirectory directory;
    CheckpointOptions options;
    options.max_shard_bytes = 43'000;
    const Status written = testing::WriteCheckpoint(checkpoint, directory / "weights", options);
    EXPECT_TRUE(written.ok()) << written.error().message();
    Contents contents = ContentsOf(directory / "weights");
    EXPECT_EQ(contents.size(), 3U);
    return contents;
  }
};

InPlaceTools Tools(FileSystem& files) {
  static ThreadPool pool(1);
  return {files, *ScalarKernels(), pool};
}

// So far from the end of the first shard lies the tensor that changes all over.
constexpr std::size_t kInDense = 5000;

// A disk with a directory that holds the state before.
struct Fixture {
  SimDisk disk;
  const Contents& before = States::Get().before;
  const Contents& after = States::Get().after;
  std::shared_ptr<const StagedChange> change = States::Get().change;

  Fixture() {
    SimFileSystem files(disk);
    EXPECT_TRUE(files.MakeDirectory(kWeights).ok());
    for (const auto& [name, text] : before) Put(name, text);
    EXPECT_TRUE(files.SyncDirectory(kWeights).ok());
    EXPECT_TRUE(files.SyncDirectory("/").ok());
  }

  void Put(const std::string& name, const std::string& text) {
    SimFileSystem files(disk);
    EXPECT_TRUE(WriteDurably(files, kWeights / name, text).ok());
  }
  // What lies in the directory.
  [[nodiscard]] Contents Held() const {
    Contents held;
    for (const auto& [path, text] : disk.Contents()) held[fs::path(path).filename().string()] = text;
    return held;
  }
  [[nodiscard]] Contents Weights() const {
    Contents weights = Held();
    std::erase_if(weights, [](const auto& entry) { return entry.first.starts_with(".weightwire"); });
    return weights;
  }

  Status Update(FileSystem& files) const {
    const auto base = Checkpoint::Open(files, kWeights);
    if (!base.ok()) return base.error();
    return UpdateInPlace(kWeights, base.value(), *change, Tools(files));
  }
  static const inline fs::path kWeights = "/weights";
};

TEST(InPlace, WritesTheNewStateAndLeavesNothingBehind) {
  Fixture fixture;
  SimFileSystem files(fixture.disk);
  ASSERT_TRUE(fixture.Update(files).ok());
  EXPECT_EQ(fixture.Held(), fixture.after);
}

// Dies before the n-th effect; on the way the disk writes back what it likes.
SimFileSystem::Hook DieAt(std::size_t n, SimDisk& disk, SeededRandom& random) {
  auto count = std::make_shared<std::size_t>(0);
  return [count, n, &disk, &random](std::string_view, const auto&) {
    if (random.Below(2) == 0) disk.WriteBack(random);
    return (*count)++ == n ? Fate::kDie : Fate::kGoOn;
  };
}

TEST(InPlace, CutOffAnywhereItIsOldOrCanBeCompleted) {
  std::size_t old_states = 0;
  std::size_t mixed_states = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    bool done = false;
    for (std::size_t n = 0; !done; ++n) {
      ASSERT_LT(n, 1000U);
      Fixture fixture;
      SeededRandom random(seed * 1000 + n);
      {
        SimFileSystem files(fixture.disk, DieAt(n, fixture.disk, random));
        done = fixture.Update(files).ok();
      }
      if (seed != 0) fixture.disk.Crash(random);  // the power fails; else the process alone is killed
      SimFileSystem files(fixture.disk);
      const auto pending = PendingUpdate(files, Fixture::kWeights);
      ASSERT_TRUE(pending.ok());
      const Contents weights = fixture.Weights();
      const bool is_old = weights == fixture.before;
      old_states += is_old ? 1 : 0;
      mixed_states += !is_old && weights != fixture.after ? 1 : 0;
      // Without a complete journal not a byte has changed, or all have.
      EXPECT_TRUE(pending.value().has_value() || is_old || weights == fixture.after) << n;

      const auto finished = FinishPendingUpdate(Fixture::kWeights, Tools(files));
      ASSERT_TRUE(finished.ok()) << finished.error().message();
      EXPECT_EQ(finished.value(), pending.value().has_value());
      EXPECT_EQ(fixture.Held(),
                pending.value().has_value() || weights == fixture.after ? fixture.after : fixture.before)
          << n;
    }
  }
  EXPECT_GT(old_states, 4U);
  EXPECT_GT(mixed_states, 2U);
}

// Stops the update when the first shard has been written and nothing is on the disk; then the power fails.
void CutOffInTheMiddle(Fixture& fixture) {
  SeededRandom random(1);
  std::size_t writes = 0;
  {
    SimFileSystem files(fixture.disk, [&](std::string_view effect, const auto&) {
      return effect == "write map" && ++writes == 2 ? Fate::kDie : Fate::kGoOn;
    });
    ASSERT_FALSE(fixture.Update(files).ok());
  }
  fixture.disk.WriteBack(random);
  fixture.disk.Crash(random);
  ASSERT_NE(fixture.Weights(), fixture.before);
  ASSERT_NE(fixture.Weights(), fixture.after);
}

TEST(InPlace, CompletingCanItselfBeCutOffAnywhere) {
  bool done = false;
  for (std::size_t n = 0; !done; ++n) {
    ASSERT_LT(n, 1000U);
    Fixture fixture;
    CutOffInTheMiddle(fixture);
    SeededRandom random(n);
    {
      SimFileSystem files(fixture.disk, DieAt(n, fixture.disk, random));
      done = FinishPendingUpdate(Fixture::kWeights, Tools(files)).ok();
    }
    fixture.disk.Crash(random);
    SimFileSystem files(fixture.disk);
    ASSERT_TRUE(FinishPendingUpdate(Fixture::kWeights, Tools(files)).ok());
    EXPECT_EQ(fixture.Held(), fixture.after) << n;
  }
}

class PendingInPlace : public ::testing::Test {
 protected:
  void SetUp() override {
    CutOffInTheMiddle(fixture_);
    cut_off_ = fixture_.Held();
    ASSERT_TRUE(cut_off_.contains(kJournal));
  }
  // Nothing is written when completing fails.
  void ExpectRefused(ErrorCode code, const char* sentence) {
    const Contents found = fixture_.Held();
    SimFileSystem files(fixture_.disk);
    const auto finished = FinishPendingUpdate(Fixture::kWeights, Tools(files));
    ASSERT_FALSE(finished.ok());
    EXPECT_EQ(finished.error().code(), code);
    EXPECT_THAT(finished.error().message(), HasSubstr(sentence));
    EXPECT_EQ(fixture_.Held(), found);
  }

  static constexpr const char* kJournal = ".weightwire-journal";
  Fixture fixture_;
  Contents cut_off_;
};

TEST_F(PendingInPlace, ADamagedJournalIsRefused) {
  const std::string& journal = cut_off_.at(kJournal);
  for (std::size_t at = 0; at < journal.size(); at += 10'007) {
    std::string damaged = journal;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    fixture_.Put(kJournal, damaged);
    ExpectRefused(ErrorCode::kCorrupt, "damaged");
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{100}, journal.size() - 1}) {
    fixture_.Put(kJournal, journal.substr(0, size));
    ExpectRefused(ErrorCode::kCorrupt, "damaged");
  }
}

TEST_F(PendingInPlace, BitsThatAreNeitherOldNorNewAreRefused) {
  const std::string name = "model-00001-of-00002.safetensors";
  std::string text = cut_off_.at(name);
  const std::size_t at = text.size() - kInDense;
  text[at] = static_cast<char>(fixture_.before.at(name)[at] ^ 0x40);
  ASSERT_NE(text[at], fixture_.after.at(name)[at]);
  fixture_.Put(name, text);
  ExpectRefused(ErrorCode::kMismatch, "changed by something else");
}

TEST_F(PendingInPlace, AShorterFileIsRefused) {
  const std::string name = "model-00002-of-00002.safetensors";
  fixture_.Put(name, cut_off_.at(name).substr(0, 1000));
  ExpectRefused(ErrorCode::kMismatch, "changed by something else");
}

TEST_F(PendingInPlace, AFileOfTheDirectoryIsPendingToo) {
  SimFileSystem files(fixture_.disk);
  const auto pending = PendingUpdate(files, Fixture::kWeights / "model-00001-of-00002.safetensors");
  ASSERT_TRUE(pending.ok());
  EXPECT_EQ(pending.value(), Fixture::kWeights);
}

TEST(InPlace, ASingleFileHasAJournalOfItsOwn) {
  Fixture fixture;
  const auto before = testing::CheckpointOf({testing::Tensor("x", {1, 2, 3, 4})});
  const auto after = testing::CheckpointOf({testing::Tensor("x", {1, 9, 3, 9})});
  const auto change = Change(before.value(), after.value());
  const TemporaryDirectory directory;
  WriteTensors(directory / "a", {testing::Tensor("x", {1, 2, 3, 4})});
  WriteTensors(directory / "b", {testing::Tensor("x", {1, 9, 3, 9})});
  const fs::path path = Fixture::kWeights / "a.safetensors";
  fixture.Put("a.safetensors", ReadAll(directory / "a"));
  {
    SimFileSystem files(fixture.disk, [](std::string_view effect, const auto&) {
      return effect == "write map" ? Fate::kDie : Fate::kGoOn;
    });
    const auto base = Checkpoint::Open(files, path);
    ASSERT_TRUE(base.ok());
    ASSERT_FALSE(UpdateInPlace(path, base.value(), *change, Tools(files)).ok());
  }
  SimFileSystem files(fixture.disk);
  EXPECT_TRUE(PendingUpdate(files, path).value().has_value());
  EXPECT_FALSE(PendingUpdate(files, Fixture::kWeights / "b.safetensors").value().has_value());
  EXPECT_TRUE(FinishPendingUpdate(path, Tools(files)).value());
  EXPECT_EQ(fixture.Held().at("a.safetensors"), ReadAll(directory / "b"));
  EXPECT_EQ(fixture.Held().size(), fixture.before.size() + 1);
}

TEST(InPlace, EveryNameOfATieIsWritten) {
  const TemporaryDirectory directory;
  const fs::path both = directory / "both.safetensors";
  WriteTensors(both, {testing::Tensor("embed", {1, 2, 3}), testing::Tensor("head", {1, 2, 3})});
  const auto before = testing::CheckpointOf({testing::Tensor("embed", {1, 2, 3})}, {{"head", "embed"}});
  const auto after = testing::CheckpointOf({testing::Tensor("embed", {1, 7, 3})}, {{"head", "embed"}});
  const auto change = Change(before.value(), after.value());
  const auto view = Open(both).ViewAs(before.value().layout());
  ASSERT_TRUE(view.ok());
  RealFileSystem files;
  ASSERT_TRUE(UpdateInPlace(both, view.value(), *change, Tools(files)).ok());
  const std::vector<std::uint8_t> expected = {1, 7, 3};
  EXPECT_EQ(testing::BytesOf(Open(both), "embed"), expected);
  EXPECT_EQ(testing::BytesOf(Open(both), "head"), expected);
}

TEST(InPlace, AChangeOfTheLayoutIsRefused) {
  const TemporaryDirectory directory;
  WriteTensors(directory / "a.safetensors", {testing::Tensor("x", {1, 2})});
  WriteTensors(directory / "b.safetensors", {testing::Tensor("x", {1, 2, 3})});
  const std::string before = ReadAll(directory / "a.safetensors");
  const Checkpoint base = Open(directory / "a.safetensors");
  const auto change = Change(base, Open(directory / "b.safetensors"));
  RealFileSystem files;
  const Status status = UpdateInPlace(directory / "a.safetensors", base, *change, Tools(files));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ReadAll(directory / "a.safetensors"), before);
}

TEST(InPlace, WeightsWithAnotherNameAreRefused) {
  const TemporaryDirectory directory;
  WriteTensors(directory / "a", {testing::Tensor("x", {1, 2})});
  WriteTensors(directory / "b", {testing::Tensor("x", {1, 3})});
  fs::create_hard_link(directory / "a", directory / "also");
  const Checkpoint base = Open(directory / "a");
  const auto change = Change(base, Open(directory / "b"));
  const std::string before = ReadAll(directory / "also");
  RealFileSystem files;
  const Status status = UpdateInPlace(directory / "a", base, *change, Tools(files));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.error().message(), HasSubstr("hard link"));
  EXPECT_EQ(ReadAll(directory / "also"), before);
  fs::remove(directory / "also");
  EXPECT_TRUE(UpdateInPlace(directory / "a", base, *change, Tools(files)).ok());
}

TEST(InPlace, LinkedWeightsAreRefused) {
  const TemporaryDirectory directory;
  WriteTensors(directory / "blob", {testing::Tensor("x", {1, 2})});
  WriteTensors(directory / "new", {testing::Tensor("x", {1, 3})});
  fs::create_symlink("blob", directory / "link");
  const Checkpoint base = Open(directory / "link");
  const auto change = Change(base, Open(directory / "new"));
  RealFileSystem files;
  const Status status = UpdateInPlace(directory / "link", base, *change, Tools(files));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("is a link"));
  EXPECT_EQ(testing::EntryCount(directory.path()), 3U);
}

TEST(InPlace, RemovedAndAddedAgainIsWrittenWhole) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "a.safetensors";
  WriteTensors(path, {testing::Tensor("x", {1, 2}), testing::Tensor("y", {3})});
  const auto without = testing::CheckpointOf({testing::Tensor("y", {3})});
  const auto again = testing::CheckpointOf({testing::Tensor("x", {8, 9}), testing::Tensor("y", {3})});
  const Checkpoint base = Open(path);
  const std::vector<std::shared_ptr<const StagedChange>> changes = {Change(base, without.value()),
                                                                    Change(without.value(), again.value())};
  RealFileSystem files;
  ASSERT_TRUE(UpdateInPlace(path, base, *StagedChange::Fold(changes, Tools(files).pool), Tools(files)).ok());
  EXPECT_EQ(testing::BytesOf(Open(path), "x"), (std::vector<std::uint8_t>{8, 9}));
}

TEST(InPlace, WhatSomethingElseChangedMeanwhileIsRefused) {
  const TemporaryDirectory directory;
  for (const auto& [name, text] : States::Get().before) WriteAll(directory / name, text);
  const Checkpoint base = Open(directory.path());
  {
    std::fstream file(directory / "model-00001-of-00002.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-static_cast<std::streamoff>(kInDense), std::ios::end);
    file.put('\x33');
  }
  const Contents found = ContentsOf(directory.path());
  RealFileSystem files;
  const Status status = UpdateInPlace(directory.path(), base, *States::Get().change, Tools(files));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kMismatch);
  EXPECT_EQ(ContentsOf(directory.path()), found);
}

TEST(UpdateLock, KeepsOthersAway) {
  const TemporaryDirectory directory;
  WriteTensors(directory / "a", {testing::Tensor("x", {1, 2})});
  WriteTensors(directory / "b", {testing::Tensor("x", {1, 2})});
  {
    const auto file = UpdateLock::Take(directory / "a");
    ASSERT_TRUE(file.ok());
    EXPECT_FALSE(UpdateLock::Take(directory / "a").ok());
    EXPECT_FALSE(UpdateLock::Take(directory.path()).ok());
    EXPECT_TRUE(UpdateLock::Take(directory / "b").ok());
  }
  const auto whole = UpdateLock::Take(directory.path());
  ASSERT_TRUE(whole.ok());
  EXPECT_FALSE(UpdateLock::Take(directory / "a").ok());
}

}  // namespace
}  // namespace weightwire
