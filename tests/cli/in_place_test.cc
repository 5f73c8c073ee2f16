// Updates in place, cut off at every point there is: afterwards the checkpoint is old, or can be completed to new.
#include "cli/in_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/state_pair.h"
#include "codec/decoder.h"
#include "codec/encoder.h"
#include "codec/state.h"
#include "codec/state_view.h"
#include "tensor/checkpoint_writer.h"
#include "testing/checkpoints.h"
#include "testing/temporary_directory.h"

namespace weightwire {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ReadAll;
using testing::TemporaryDirectory;
using testing::WriteAll;
using testing::WriteTensors;

using Contents = std::map<std::string, std::string>;

Contents ContentsOf(const fs::path& directory) {
  Contents contents;
  for (const auto& entry : fs::directory_iterator(directory)) {
    contents[entry.path().filename().string()] = ReadAll(entry.path());
  }
  return contents;
}

void Restore(const fs::path& directory, const Contents& contents) {
  for (const auto& entry : fs::directory_iterator(directory)) fs::remove(entry.path());
  for (const auto& [name, text] : contents) WriteAll(directory / name, text);
}

Checkpoint Open(const fs::path& path) {
  auto checkpoint = Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.error().message();
  return std::move(checkpoint).value();
}

std::vector<std::span<const std::uint8_t>> BytesOfAll(const Checkpoint& checkpoint) {
  std::vector<std::span<const std::uint8_t>> bytes;
  for (std::size_t i = 0; i < checkpoint.layout().size(); ++i) bytes.push_back(checkpoint.bytes(i));
  return bytes;
}

// What leads from one checkpoint to the other.
std::shared_ptr<const StagedChange> Change(const Checkpoint& before, const Checkpoint& after) {
  ThreadPool pool(1);
  const Kernels& kernels = *ScalarKernels();
  const StatePair pair{before.layout(), after.layout(), BytesOfAll(before), BytesOfAll(after)};
  const auto digests = DigestTensors(pair.old_bytes, kernels, pool);
  const auto delta = EncodeDelta(RequestFor(pair, digests, CodingRequest::kSmallest), kernels, pool);
  EXPECT_TRUE(delta.ok());
  const auto file = DeltaFile::Parse(delta.value().file);
  EXPECT_TRUE(file.ok());
  const StateView view(std::make_shared<const Layout>(before.layout()), pair.old_bytes, digests);
  const auto change = StageDelta(file.value(), view, kernels, pool);
  EXPECT_TRUE(change.ok()) << change.error().message();
  return change.value();
}

OwnedTensor Filled(const std::string& name, std::size_t units, std::uint32_t factor) {
  OwnedTensor tensor{{name, DType::kBF16, {units}}, std::vector<std::uint8_t>(2 * units)};
  for (std::size_t i = 0; i < tensor.bytes.size(); ++i) tensor.bytes[i] = static_cast<std::uint8_t>(i * factor >> 3);
  return tensor;
}

// Two shards with changes here and there, all over, and not at all; large enough for several writes of each kind.
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
    const std::vector<OwnedTensor> tensors = {Filled("dense", 200'000, 7), Filled("same", 1000, 5),
                                              Filled("sparse", 150'000, 11)};
    std::vector<OwnedTensor> changed = tensors;
    for (std::uint8_t& byte : changed[0].bytes) byte ^= 0x15;
    for (std::size_t i = 0; i < changed[2].bytes.size(); i += i < 1000 ? 2 : 75'002) changed[2].bytes[i] ^= 0x01;
    const auto old_state = Checkpoint::FromMemory(tensors);
    const auto new_state = Checkpoint::FromMemory(changed);
    before = Written(old_state.value());
    after = Written(new_state.value());
    change = Change(old_state.value(), new_state.value());
  }

  static Contents Written(const Checkpoint& checkpoint) {
    const TemporaryDirectory directory;
    CheckpointOptions options;
    options.max_shard_bytes = 410'000;
    const Status written = WriteCheckpoint(checkpoint.layout(), directory / "weights", options, DataOf(checkpoint));
    EXPECT_TRUE(written.ok()) << written.error().message();
    Contents contents = ContentsOf(directory / "weights");
    EXPECT_EQ(contents.size(), 3U);
    return contents;
  }
};

// A directory that holds the state before.
struct Fixture {
  TemporaryDirectory directory;
  const Contents& before = States::Get().before;
  const Contents& after = States::Get().after;
  std::shared_ptr<const StagedChange> change = States::Get().change;

  Fixture() { Restore(directory.path(), before); }

  [[nodiscard]] const fs::path& Weights() const { return directory.path(); }

  Status Update(const FaultHook& hook = {}) const {
    const Checkpoint base = Open(Weights());
    return UpdateInPlace(Weights(), base, *change, hook);
  }
};

// So far from the end of the first shard lies the tensor that changes all over.
constexpr std::size_t kInDense = 5000;

// Stops at the n-th effect.
FaultHook StopAt(std::size_t n, Fault fault) {
  auto count = std::make_shared<std::size_t>(0);
  return [count, n, fault](DiskEffect) { return (*count)++ == n ? fault : Fault::kGoOn; };
}

TEST(InPlace, WritesTheNewStateAndLeavesNothingBehind) {
  const Fixture fixture;
  ASSERT_TRUE(fixture.Update().ok());
  EXPECT_EQ(ContentsOf(fixture.Weights()), fixture.after);
}

TEST(InPlace, TheJournalIsOnTheDiskBeforeTheFirstByteChangesAndUntilTheLastIsOnTheDisk) {
  const Fixture fixture;
  std::vector<DiskEffect> effects;
  ASSERT_TRUE(fixture
                  .Update([&](DiskEffect effect) {
                    if (effects.empty() || effects.back() != effect) effects.push_back(effect);
                    return Fault::kGoOn;
                  })
                  .ok());
  EXPECT_THAT(effects, ElementsAre(DiskEffect::kCreateJournal, DiskEffect::kWriteJournal, DiskEffect::kSyncJournal,
                                   DiskEffect::kNameJournal, DiskEffect::kWriteWeights, DiskEffect::kSyncWeights,
                                   DiskEffect::kRemoveJournal, DiskEffect::kSyncDirectory));
}

TEST(InPlace, CutOffAnywhereItIsOldOrCanBeCompleted) {
  const Fixture fixture;
  std::size_t old_states = 0;
  std::size_t mixed_states = 0;
  bool done = false;
  for (std::size_t n = 0; !done; ++n) {
    ASSERT_LT(n, 1000U);
    for (const Fault fault : {Fault::kStopBefore, Fault::kStopHalfway}) {
      Restore(fixture.Weights(), fixture.before);
      done = fixture.Update(StopAt(n, fault)).ok();
      const auto pending = PendingUpdate(fixture.Weights());
      ASSERT_TRUE(pending.ok());
      Contents weights = ContentsOf(fixture.Weights());
      std::erase_if(weights, [](const auto& entry) { return entry.first.starts_with(".weightwire"); });
      const bool is_old = weights == fixture.before;
      old_states += is_old;
      mixed_states += !is_old && weights != fixture.after;
      // Without a complete journal not a byte has changed, or all have.
      EXPECT_TRUE(pending.value().has_value() || is_old || weights == fixture.after) << n;

      const auto finished = FinishPendingUpdate(fixture.Weights());
      ASSERT_TRUE(finished.ok()) << finished.error().message();
      EXPECT_EQ(finished.value(), pending.value().has_value());
      EXPECT_EQ(ContentsOf(fixture.Weights()),
                pending.value().has_value() || weights == fixture.after ? fixture.after : fixture.before)
          << n;
    }
  }
  EXPECT_GT(old_states, 4U);
  EXPECT_GT(mixed_states, 2U);
}

TEST(InPlace, CompletingCanItselfBeCutOffAnywhere) {
  const Fixture fixture;
  // The first half of the weights is written, then nothing.
  std::size_t writes = 0;
  ASSERT_FALSE(fixture
                   .Update([&](DiskEffect effect) {
                     return effect == DiskEffect::kWriteWeights && ++writes == 2 ? Fault::kStopHalfway : Fault::kGoOn;
                   })
                   .ok());
  const Contents cut_off = ContentsOf(fixture.Weights());
  ASSERT_NE(cut_off, fixture.before);
  bool done = false;
  for (std::size_t n = 0; !done; ++n) {
    ASSERT_LT(n, 1000U);
    Restore(fixture.Weights(), cut_off);
    done = FinishPendingUpdate(fixture.Weights(), StopAt(n, Fault::kStopHalfway)).ok();
    ASSERT_TRUE(FinishPendingUpdate(fixture.Weights()).ok());
    EXPECT_EQ(ContentsOf(fixture.Weights()), fixture.after) << n;
  }
}

class PendingInPlace : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(fixture_.Update(FirstWriteCut()).ok());
    cut_off_ = ContentsOf(fixture_.Weights());
    ASSERT_TRUE(cut_off_.contains(kJournal));
  }
  static FaultHook FirstWriteCut() {
    return [](DiskEffect effect) { return effect == DiskEffect::kWriteWeights ? Fault::kStopHalfway : Fault::kGoOn; };
  }
  // Nothing is written when completing fails.
  void ExpectRefused(ErrorCode code, const char* sentence) {
    const Contents found = ContentsOf(fixture_.Weights());
    const auto finished = FinishPendingUpdate(fixture_.Weights());
    ASSERT_FALSE(finished.ok());
    EXPECT_EQ(finished.error().code(), code);
    EXPECT_THAT(finished.error().message(), HasSubstr(sentence));
    EXPECT_EQ(ContentsOf(fixture_.Weights()), found);
  }

  static constexpr const char* kJournal = ".weightwire-journal";
  Fixture fixture_;
  Contents cut_off_;
};

TEST_F(PendingInPlace, ADamagedJournalIsRefused) {
  const std::string& journal = cut_off_.at(kJournal);
  for (std::size_t at = 0; at < journal.size(); at += 100'003) {
    std::string damaged = journal;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    WriteAll(fixture_.Weights() / kJournal, damaged);
    ExpectRefused(ErrorCode::kCorrupt, "damaged");
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{100}, journal.size() - 1}) {
    WriteAll(fixture_.Weights() / kJournal, journal.substr(0, size));
    ExpectRefused(ErrorCode::kCorrupt, "damaged");
  }
}

TEST_F(PendingInPlace, BitsThatAreNeitherOldNorNewAreRefused) {
  const std::string name = "model-00001-of-00002.safetensors";
  std::string text = cut_off_.at(name);
  const std::size_t at = text.size() - kInDense;
  text[at] = static_cast<char>(fixture_.before.at(name)[at] ^ 0x40);
  ASSERT_NE(text[at], fixture_.after.at(name)[at]);
  WriteAll(fixture_.Weights() / name, text);
  ExpectRefused(ErrorCode::kMismatch, "changed by something else");
}

TEST_F(PendingInPlace, AShorterFileIsRefused) {
  const std::string name = "model-00002-of-00002.safetensors";
  WriteAll(fixture_.Weights() / name, cut_off_.at(name).substr(0, 1000));
  ExpectRefused(ErrorCode::kMismatch, "changed by something else");
}

TEST_F(PendingInPlace, AFileOfTheDirectoryIsPendingToo) {
  const auto pending = PendingUpdate(fixture_.Weights() / "model-00001-of-00002.safetensors");
  ASSERT_TRUE(pending.ok());
  EXPECT_EQ(pending.value(), fixture_.Weights());
}

TEST(InPlace, ASingleFileHasAJournalOfItsOwn) {
  const TemporaryDirectory directory;
  WriteTensors(directory / "a.safetensors", {testing::Tensor("x", {1, 2, 3, 4})});
  WriteTensors(directory / "b.safetensors", {testing::Tensor("x", {1, 9, 3, 9})});
  const std::string after = ReadAll(directory / "b.safetensors");
  const auto change = Change(Open(directory / "a.safetensors"), Open(directory / "b.safetensors"));
  const Checkpoint base = Open(directory / "a.safetensors");
  const FaultHook hook = [](DiskEffect effect) {
    return effect == DiskEffect::kWriteWeights ? Fault::kStopBefore : Fault::kGoOn;
  };
  ASSERT_FALSE(UpdateInPlace(directory / "a.safetensors", base, *change, hook).ok());
  EXPECT_TRUE(PendingUpdate(directory / "a.safetensors").value().has_value());
  EXPECT_FALSE(PendingUpdate(directory / "b.safetensors").value().has_value());
  EXPECT_TRUE(FinishPendingUpdate(directory / "a.safetensors").value());
  EXPECT_EQ(ReadAll(directory / "a.safetensors"), after);
  EXPECT_EQ(testing::EntryCount(directory.path()), 2U);
}

TEST(InPlace, EveryNameOfATieIsWritten) {
  const TemporaryDirectory directory;
  const fs::path both = directory / "both.safetensors";
  WriteTensors(both, {testing::Tensor("embed", {1, 2, 3}), testing::Tensor("head", {1, 2, 3})});
  const auto before = Checkpoint::FromMemory({testing::Tensor("embed", {1, 2, 3})}, {{"head", "embed"}});
  const auto after = Checkpoint::FromMemory({testing::Tensor("embed", {1, 7, 3})}, {{"head", "embed"}});
  const auto change = Change(before.value(), after.value());
  const auto view = Open(both).ViewAs(before.value().layout());
  ASSERT_TRUE(view.ok());
  ASSERT_TRUE(UpdateInPlace(both, view.value(), *change).ok());
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
  const Status status = UpdateInPlace(directory / "a.safetensors", base, *change);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ReadAll(directory / "a.safetensors"), before);
}

TEST(InPlace, LinkedWeightsAreRefused) {
  const TemporaryDirectory directory;
  WriteTensors(directory / "blob", {testing::Tensor("x", {1, 2})});
  WriteTensors(directory / "new", {testing::Tensor("x", {1, 3})});
  fs::create_symlink("blob", directory / "link");
  const Checkpoint base = Open(directory / "link");
  const auto change = Change(base, Open(directory / "new"));
  const Status status = UpdateInPlace(directory / "link", base, *change);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("is a link"));
  EXPECT_EQ(testing::EntryCount(directory.path()), 3U);
}

TEST(InPlace, RemovedAndAddedAgainIsWrittenWhole) {
  const TemporaryDirectory directory;
  const fs::path path = directory / "a.safetensors";
  WriteTensors(path, {testing::Tensor("x", {1, 2}), testing::Tensor("y", {3})});
  const auto without = Checkpoint::FromMemory({testing::Tensor("y", {3})});
  const auto again = Checkpoint::FromMemory({testing::Tensor("x", {8, 9}), testing::Tensor("y", {3})});
  const Checkpoint base = Open(path);
  const std::vector<std::shared_ptr<const StagedChange>> changes = {Change(base, without.value()),
                                                                    Change(without.value(), again.value())};
  ASSERT_TRUE(UpdateInPlace(path, base, StagedChange::Fold(changes)).ok());
  EXPECT_EQ(testing::BytesOf(Open(path), "x"), (std::vector<std::uint8_t>{8, 9}));
}

TEST(InPlace, WhatSomethingElseChangedMeanwhileIsRefused) {
  const Fixture fixture;
  const std::string name = "model-00001-of-00002.safetensors";
  const Checkpoint base = Open(fixture.Weights());
  {
    std::fstream file(fixture.Weights() / name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-static_cast<std::streamoff>(kInDense), std::ios::end);
    file.put('\x33');
  }
  const Contents found = ContentsOf(fixture.Weights());
  const Status status = UpdateInPlace(fixture.Weights(), base, *fixture.change);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kMismatch);
  EXPECT_EQ(ContentsOf(fixture.Weights()), found);
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
