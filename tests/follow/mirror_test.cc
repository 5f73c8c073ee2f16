// Mirrors that nobody kills: what they do, what they refuse, and what readers see.
#include "follow/mirror/mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/real_file_system.h"
#include "follow/mirror_world.h"
#include "support/owned_tensor.h"
#include "support/temporary_directory.h"

namespace weightwire {
namespace {

using testing::AnchorFilesOf;
using testing::BestKernels;
using testing::ChangeBetween;
using testing::CheckpointFiles;
using ::testing::Contains;
using testing::DirectoryHolds;
using ::testing::HasSubstr;
using testing::HoldsExactly;
using ::testing::Key;
using testing::kMirrorPath;
using testing::LoadInto;
using testing::LoadWithoutCommit;
using testing::Model;
using testing::ModelOf;
using testing::ModelVersion;
using ::testing::Not;
using testing::OneThread;
using testing::OpenSim;
using testing::RandomTensor;
using testing::SimDisk;
using testing::SimFileSystem;
using testing::SpanOf;
using testing::Stepped;
using testing::TemporaryDirectory;
using testing::VersionOf;
using Fate = SimFileSystem::Fate;

std::string In(std::string_view name) { return std::string(kMirrorPath) + "/" + std::string(name); }

class MirrorTest : public ::testing::Test {
 protected:
  MirrorTest() {
    testing::Random random(1);
    const Model zero =
        ModelOf({RandomTensor(random, "a", DType::kBF16, 500), RandomTensor(random, "b", DType::kF32, 300)});
    const Model one = Stepped(random, zero, 10);
    const Model two = Stepped(random, one, 10);
    versions_ = {VersionOf(0, zero, 1100), VersionOf(1, one, 1100), VersionOf(2, two, 1100)};
    changes_ = {ChangeBetween(versions_[0], versions_[1]), ChangeBetween(versions_[1], versions_[2])};
  }

  std::unique_ptr<Mirror> Open(const MirrorOptions& options = {}) {
    auto mirror = OpenSim(files_, options);
    EXPECT_TRUE(mirror.ok()) << mirror.error().message();
    return std::move(mirror).value();
  }
  // One that holds version 0.
  std::unique_ptr<Mirror> Loaded() {
    auto mirror = Open();
    const Status loaded = LoadInto(*mirror, versions_[0]);
    EXPECT_TRUE(loaded.ok()) << loaded.error().message();
    return mirror;
  }
  Status Apply(Mirror& mirror, std::size_t to) { return mirror.Apply(changes_[to - 1], versions_[to].held); }
  void Overwrite(const std::string& path, std::string_view text) { ASSERT_TRUE(WriteDurably(files_, path, text).ok()); }

  SimDisk disk_;
  SimFileSystem files_{disk_};
  std::vector<ModelVersion> versions_;
  std::vector<std::shared_ptr<const StagedChange>> changes_;
};

TEST_F(MirrorTest, AFreshOneHoldsNothingUntilItIsLoaded) {
  auto mirror = Open();
  EXPECT_FALSE(mirror->held().has_value());
  EXPECT_FALSE(mirror->damage().has_value());
  EXPECT_EQ(SharedRead::Begin(files_, kMirrorPath).error().code(), ErrorCode::kUnavailable);
  ASSERT_TRUE(LoadInto(*mirror, versions_[0]).ok());
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[0]));
  for (const auto& [name, text] : versions_[0].files) EXPECT_EQ(disk_.Contents().at(In(name)), text);
}

TEST_F(MirrorTest, FollowsVersionsAndRemembersThem) {
  auto mirror = Loaded();
  ASSERT_TRUE(Apply(*mirror, 1).ok());
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[1]));
  EXPECT_FALSE(mirror->synced());
  ASSERT_TRUE(Apply(*mirror, 2).ok());
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[2]));
  EXPECT_TRUE(mirror->RunMaintenance().value());
  EXPECT_TRUE(mirror->synced());
  EXPECT_FALSE(mirror->RunMaintenance().value());
  mirror.reset();
  mirror = Open();
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[2]));
  // As anybody would write the version.
  for (const auto& [name, text] : versions_[2].files) EXPECT_EQ(disk_.Contents().at(In(name)), text) << name;
}

TEST_F(MirrorTest, ARestartReadsNoWeights) {
  {
    auto mirror = Loaded();
    ASSERT_TRUE(Apply(*mirror, 1).ok() && mirror->Sync().ok());
  }
  // A wrong bit is not noticed by opening, so it was not read; a full check finds it.
  std::string text = disk_.Contents().at(In("model-00001-of-00002.safetensors"));
  text.back() = static_cast<char>(text.back() ^ 1);
  Overwrite(In("model-00001-of-00002.safetensors"), text);
  auto mirror = Open();
  EXPECT_EQ(mirror->held(), versions_[1].held);
  const Status checked = mirror->Verify();
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(checked.error().message(), HasSubstr("tensor \""));
}

TEST_F(MirrorTest, AskedToCheckItFindsWhatOthersHaveChanged) {
  {
    auto mirror = Loaded();
    ASSERT_TRUE(Apply(*mirror, 1).ok() && mirror->Sync().ok());
  }
  EXPECT_TRUE(HoldsExactly(*Open({.adopt = false, .check = true, .include_code = false}), versions_[1]));
  std::string text = disk_.Contents().at(In("model-00001-of-00002.safetensors"));
  text.back() = static_cast<char>(text.back() ^ 1);
  Overwrite(In("model-00001-of-00002.safetensors"), text);
  auto mirror = Open({.adopt = false, .check = true, .include_code = false});
  EXPECT_FALSE(mirror->held().has_value());
  ASSERT_TRUE(mirror->damage().has_value());
  EXPECT_THAT(mirror->damage()->message(), HasSubstr("must be loaded again"));
}

TEST_F(MirrorTest, WithoutItsDigestsItReadsEverything) {
  const std::string digests = In(".weightwire/digests." + ToHex(versions_[0].held.state));
  Loaded();
  ASSERT_TRUE(files_.Remove(digests).ok());
  EXPECT_TRUE(HoldsExactly(*Open(), versions_[0]));
  Overwrite(digests, "WWDGST01 of something else");
  EXPECT_TRUE(HoldsExactly(*Open(), versions_[0]));
  // And notices what is wrong.
  ASSERT_TRUE(files_.Remove(digests).ok());
  std::string text = disk_.Contents().at(In("model-00002-of-00002.safetensors"));
  text.back() = static_cast<char>(text.back() ^ 1);
  Overwrite(In("model-00002-of-00002.safetensors"), text);
  auto mirror = Open();
  EXPECT_FALSE(mirror->held().has_value());
  ASSERT_TRUE(mirror->damage().has_value());
  EXPECT_THAT(mirror->damage()->message(), HasSubstr("must be loaded again"));
  ASSERT_TRUE(LoadInto(*mirror, versions_[1]).ok());
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[1]));
}

TEST_F(MirrorTest, TheLastChangeCanBeTakenBackOnce) {
  auto mirror = Loaded();
  EXPECT_FALSE(mirror->undo_target().has_value());
  ASSERT_TRUE(Apply(*mirror, 1).ok() && Apply(*mirror, 2).ok());
  EXPECT_EQ(mirror->undo_target(), versions_[1].held);
  ASSERT_TRUE(mirror->Undo().ok());
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[1]));
  EXPECT_FALSE(mirror->undo_target().has_value());
  EXPECT_EQ(mirror->Undo().error().code(), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(Apply(*mirror, 2).ok());
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[2]));
}

TEST_F(MirrorTest, ALoadOrAChangeOfTheLayoutIsNotTakenBack) {
  auto mirror = Loaded();
  const auto refused = [&](const ModelVersion& held) {
    EXPECT_FALSE(mirror->undo_target().has_value());
    const Status undone = mirror->Undo();
    ASSERT_FALSE(undone.ok());
    EXPECT_EQ(undone.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(undone.error().message(), HasSubstr("stand still on the version wanted instead"));
    EXPECT_TRUE(HoldsExactly(*mirror, held));
  };
  ASSERT_TRUE(Apply(*mirror, 1).ok());
  ASSERT_TRUE(LoadInto(*mirror, versions_[2]).ok());
  refused(versions_[2]);
  testing::Random random(3);
  const Model& two = versions_[2].model;
  const ModelVersion three = VersionOf(
      3, ModelOf({{two.layout->tensors()[0], two.tensors[0]}, RandomTensor(random, "new", DType::kF16, 50)}), 1100);
  ASSERT_TRUE(mirror->Apply(ChangeBetween(versions_[2], three), three.held).ok());
  refused(three);
  mirror.reset();
  mirror = Open();
  refused(three);
}

TEST_F(MirrorTest, UndoOutlivesARestart) {
  {
    auto mirror = Loaded();
    ASSERT_TRUE(Apply(*mirror, 1).ok() && mirror->Sync().ok());
  }
  auto mirror = Open();
  ASSERT_EQ(mirror->undo_target(), versions_[0].held);
  ASSERT_TRUE(mirror->Undo().ok());
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[0]));
}

TEST_F(MirrorTest, TheSameBitsUnderAnotherVersionCostOneFile) {
  auto mirror = Loaded();
  ModelVersion same = VersionOf(1, versions_[0].model, 1100);
  const auto change = ChangeBetween(versions_[0], same);
  const std::uint64_t before = files_.effects();
  ASSERT_TRUE(mirror->Apply(change, same.held).ok());
  EXPECT_LE(files_.effects() - before, 7U);
  EXPECT_TRUE(HoldsExactly(*mirror, same));
  EXPECT_FALSE(mirror->undo_target().has_value());
}

TEST_F(MirrorTest, AChangeThatBeginsElsewhereIsRefused) {
  auto mirror = Loaded();
  const Status status = Apply(*mirror, 2);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kMismatch);
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[0]));
}

TEST_F(MirrorTest, ReadersHoldWritersOffAndAreHeldOff) {
  auto mirror = Loaded();
  {
    auto read = SharedRead::Begin(files_, kMirrorPath);
    ASSERT_TRUE(read.ok()) << read.error().message();
    EXPECT_EQ(read.value().held(), versions_[0].held);
    const auto second = SharedRead::Begin(files_, kMirrorPath);
    EXPECT_TRUE(second.ok());
    const Status refused = Apply(*mirror, 1);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
    EXPECT_TRUE(DirectoryHolds(files_, versions_[0].model));
    EXPECT_TRUE(read.value().Confirm().ok());
    EXPECT_EQ(mirror->held(), versions_[0].held);
  }
  // Trying again does not write the journal again.
  const std::uint64_t before = files_.effects();
  ASSERT_TRUE(Apply(*mirror, 1).ok());
  EXPECT_LT(files_.effects() - before, 8U);
  const auto read = SharedRead::Begin(files_, kMirrorPath);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.value().held(), versions_[1].held);
}

TEST_F(MirrorTest, AReaderIsNotLetInWhileFilesChange) {
  auto mirror = Loaded();
  std::string seen;
  SimFileSystem other(disk_);
  SimFileSystem writer(disk_, [&](std::string_view effect, const auto&) {
    if (effect == "write map") {
      const auto read = SharedRead::Begin(other, kMirrorPath);
      seen = read.ok() ? "let in" : read.error().message();
      EXPECT_TRUE(ReadMirrorState(other, kMirrorPath).value().writing.has_value());
    }
    return Fate::kGoOn;
  });
  mirror.reset();
  auto again = OpenSim(writer);
  ASSERT_TRUE(Apply(*again.value(), 1).ok());
  EXPECT_THAT(seen, HasSubstr("is being written"));
}

TEST_F(MirrorTest, AReadDuringWhichTheVersionChangedIsNotConfirmed) {
  auto mirror = Loaded();
  auto read = SharedRead::Begin(files_, kMirrorPath);
  ASSERT_TRUE(read.ok());
  // As if this file system had no locks.
  MirrorState state = ReadMirrorState(files_, kMirrorPath).value();
  state.held->version = 5;
  Overwrite(In(".weightwire/state.json"), ToJson(state));
  EXPECT_EQ(read.value().Confirm().error().code(), ErrorCode::kUnavailable);
}

TEST_F(MirrorTest, ReadersHoldALoadOffToo) {
  auto mirror = Loaded();
  const auto load = LoadWithoutCommit(*mirror, versions_[2]);
  ASSERT_TRUE(load.ok());
  {
    const auto read = SharedRead::Begin(files_, kMirrorPath);
    ASSERT_TRUE(read.ok());
    const Status refused = CommitLoad(*load.value(), versions_[2]);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
    EXPECT_TRUE(HoldsExactly(*mirror, versions_[0]));
  }
  ASSERT_TRUE(CommitLoad(*load.value(), versions_[2]).ok());
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[2]));
}

TEST_F(MirrorTest, OneFollowerAtATime) {
  auto mirror = Loaded();
  SimFileSystem other(disk_);
  const auto second = OpenSim(other);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(second.error().message(), HasSubstr(std::string("another follower keeps ") + kMirrorPath));
}

TEST_F(MirrorTest, SomebodyElsesDirectoryIsNotTouched) {
  ASSERT_TRUE(files_.MakeDirectory("data").ok() && files_.MakeDirectory(kMirrorPath).ok());
  Overwrite(In("thesis.txt"), "years of work");
  const auto before = disk_.Contents();
  const auto mirror = OpenSim(files_);
  ASSERT_FALSE(mirror.ok());
  EXPECT_EQ(mirror.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(disk_.Contents(), before);
}

class Adopting : public MirrorTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(files_.MakeDirectory("data").ok() && files_.MakeDirectory(kMirrorPath).ok());
    for (const auto& [name, text] : versions_[1].files) Overwrite(In(name), text);
    Overwrite(In("notes.txt"), "mine");
  }
};

TEST_F(Adopting, FilesThatAreAVersionAreFoundByTheirDigest) {
  auto mirror = Open({.adopt = true});
  EXPECT_FALSE(mirror->held().has_value());
  EXPECT_EQ(mirror->DigestAs(*versions_[1].model.layout).value(), versions_[1].held.state);
  EXPECT_EQ(mirror->Adopt(versions_[0].held, *versions_[0].model.layout).error().code(), ErrorCode::kMismatch);
  EXPECT_FALSE(mirror->held().has_value());
  ASSERT_TRUE(mirror->Adopt(versions_[1].held, *versions_[1].model.layout).ok());
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[1]));
  ASSERT_TRUE(Apply(*mirror, 2).ok());
  mirror.reset();
  EXPECT_TRUE(HoldsExactly(*Open(), versions_[2]));
  EXPECT_EQ(disk_.Contents().at(In("notes.txt")), "mine");
}

TEST_F(MirrorTest, WhatIsAdoptedSurvivesAPowerFailure) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SimDisk disk;
    {
      SimFileSystem files(disk);
      ASSERT_TRUE(files.MakeDirectory("data").ok() && files.MakeDirectory(kMirrorPath).ok());
      ASSERT_TRUE(files.SyncDirectory("").ok() && files.SyncDirectory("data").ok());
      for (const auto& [name, text] : versions_[1].files) {
        // Not synced by whoever wrote it.
        ASSERT_TRUE(files.Create(In(name)).value()->Append(SpanOf(text)).ok());
      }
      auto mirror = OpenSim(files, {.adopt = true});
      ASSERT_TRUE(mirror.ok() && mirror.value()->Adopt(versions_[1].held, *versions_[1].model.layout).ok());
    }
    SeededRandom random(seed);
    disk.Crash(random);
    SimFileSystem files(disk);
    auto mirror = OpenSim(files);
    ASSERT_TRUE(mirror.ok());
    EXPECT_TRUE(HoldsExactly(*mirror.value(), versions_[1]));
  }
}

TEST_F(Adopting, OtherFilesAreReplacedByALoad) {
  auto mirror = Open({.adopt = true});
  ModelVersion one_file = VersionOf(2, versions_[2].model);
  ASSERT_TRUE(LoadInto(*mirror, one_file).ok());
  EXPECT_TRUE(HoldsExactly(*mirror, one_file));
  EXPECT_THAT(disk_.Contents(), Not(Contains(Key(In("model.safetensors.index.json")))));
  EXPECT_EQ(disk_.Contents().at(In("notes.txt")), "mine");
}

TEST_F(Adopting, LinksAreNotWrittenThrough) {
  const std::string name = "model-00001-of-00002.safetensors";
  ASSERT_TRUE(files_.Rename(In(name), "data/blob").ok());
  ASSERT_TRUE(files_.MakeLink("../blob", In(name)).ok());
  auto mirror = Open({.adopt = true});
  EXPECT_EQ(mirror->DigestAs(*versions_[1].model.layout).value(), versions_[1].held.state);
  const Status adopted = mirror->Adopt(versions_[1].held, *versions_[1].model.layout);
  ASSERT_FALSE(adopted.ok());
  EXPECT_THAT(adopted.error().message(), HasSubstr("it is a link"));
  // A load replaces the link and leaves what it points to.
  ASSERT_TRUE(LoadInto(*mirror, versions_[2]).ok());
  EXPECT_EQ(disk_.Contents().at("data/blob"), versions_[1].files.at(name));
}

TEST_F(MirrorTest, WhatALoadDoesNotHaveAnyMoreGoes) {
  auto mirror = Open();
  ModelVersion first = VersionOf(0, versions_[0].model, 1100, {{"config.json", "{}"}, {"old/vocab.txt", "a b"}});
  ASSERT_TRUE(LoadInto(*mirror, first).ok());
  Overwrite(In("mine.txt"), "mine");
  ModelVersion second = VersionOf(1, versions_[1].model, 1 << 30, {{"config.json", "{ }"}, {"new/deep/vocab.txt", ""}});
  ASSERT_TRUE(LoadInto(*mirror, second).ok());
  CheckpointFiles files;
  for (const auto& [path, text] : disk_.Contents()) {
    if (path.find(".weightwire") == std::string::npos) files[path.substr(In("").size())] = text;
  }
  CheckpointFiles expected = second.files;
  expected["mine.txt"] = "mine";
  EXPECT_EQ(files, expected);
}

TEST_F(MirrorTest, ALoadWithAnotherDigestChangesNothing) {
  auto mirror = Loaded();
  ModelVersion wrong = versions_[1];
  wrong.files = versions_[2].files;
  const Status loaded = LoadInto(*mirror, wrong);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code(), ErrorCode::kCorrupt);
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[0]));
  ASSERT_TRUE(Apply(*mirror, 1).ok());
}

TEST_F(MirrorTest, ALoadThatIsNotCompleteIsNotTaken) {
  auto mirror = Loaded();
  const auto load = mirror->BeginLoad(AnchorFilesOf(versions_[1]));
  ASSERT_TRUE(load.ok());
  EXPECT_FALSE(load.value()->WriteAt(0, 1, SpanOf("more than there is room for")).ok());
  const Status committed = CommitLoad(*load.value(), versions_[1]);
  ASSERT_FALSE(committed.ok());
  EXPECT_EQ(committed.error().code(), ErrorCode::kCorrupt);
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[0]));
}

TEST_F(MirrorTest, ALoadMayHaveMoreFilesThanCanBeOpen) {
  CheckpointFiles many;
  for (int i = 0; i < 200; ++i)
    many["notes/" + std::to_string(i) + ".txt"] = std::string(static_cast<std::size_t>(i), 'x');
  const ModelVersion version = VersionOf(0, versions_[0].model, 1100, many);
  auto mirror = Open();
  const auto load = LoadWithoutCommit(*mirror, version);
  ASSERT_TRUE(load.ok());
  // A portion of one that was closed comes again.
  const std::string& text = version.files.begin()->second;
  ASSERT_TRUE(load.value()->WriteAt(0, 0, SpanOf(text)).ok());
  ASSERT_TRUE(CommitLoad(*load.value(), version).ok());
  for (const auto& [name, expected] : version.files) EXPECT_EQ(disk_.Contents().at(In(name)), expected);
}

TEST_F(MirrorTest, NamesThatLeadElsewhereAreRefused) {
  auto mirror = Open({.adopt = true});
  for (const char* name :
       {"../a", "/etc/passwd", "a/../b", ".hidden", "a/.b", "", "a//b", "a\\b", ".weightwire/state.json"}) {
    EXPECT_FALSE(mirror->BeginLoad(std::vector<AnchorFile>{{name, 1, {}}}).ok()) << name;
  }
  EXPECT_FALSE(mirror->BeginLoad(std::vector<AnchorFile>{{"a", 1, {}}, {"a", 2, {}}}).ok());
  EXPECT_FALSE(mirror->BeginLoad(std::vector<AnchorFile>{{"a", 1, {}}, {"a/b", 2, {}}}).ok());
  // A folder of the mirror that is a link leads elsewhere, too.
  ASSERT_TRUE(files_.MakeDirectory("elsewhere").ok());
  ASSERT_TRUE(files_.MakeLink("../../elsewhere", In("folder")).ok());
  ModelVersion version = VersionOf(0, versions_[0].model, 1100, {{"folder/a.txt", "x"}});
  EXPECT_FALSE(LoadInto(*mirror, version).ok());
  EXPECT_THAT(disk_.Contents(), Not(Contains(Key("elsewhere/a.txt"))));
}

TEST_F(MirrorTest, CodeIsLoadedOnlyWhenAskedFor) {
  const ModelVersion version = VersionOf(0, versions_[0].model, 1100, {{"config.json", "{}"}, {"modeling.py", "pass"}});
  ASSERT_TRUE(LoadInto(*Open(), version).ok());
  EXPECT_THAT(disk_.Contents(), Not(Contains(Key(In("modeling.py")))));
  EXPECT_THAT(disk_.Contents(), Contains(Key(In("config.json"))));
  ASSERT_TRUE(LoadInto(*Open({.include_code = true}), version).ok());
  EXPECT_EQ(disk_.Contents().at(In("modeling.py")), "pass");
}

// Crashed in the middle of writing, then something else changed what the journal knows, or the journal itself.
class Unfinished : public MirrorTest {
 protected:
  void SetUp() override {
    Loaded();
    bool die = false;
    SimFileSystem process(disk_, [&](std::string_view effect, const auto&) {
      die = die || effect == "write map";
      return die ? Fate::kDie : Fate::kGoOn;
    });
    auto mirror = OpenSim(process);
    ASSERT_FALSE(Apply(*mirror.value(), 1).ok());
  }
  void ExpectLoadDemanded() {
    auto mirror = Open();
    EXPECT_FALSE(mirror->held().has_value());
    ASSERT_TRUE(mirror->damage().has_value());
    EXPECT_EQ(mirror->damage()->code(), ErrorCode::kCorrupt);
    EXPECT_FALSE(SharedRead::Begin(files_, kMirrorPath).ok());
    // Again and again, until it is loaded.
    mirror.reset();
    mirror = Open();
    EXPECT_TRUE(mirror->damage().has_value());
    ASSERT_TRUE(LoadInto(*mirror, versions_[2]).ok());
    EXPECT_TRUE(HoldsExactly(*mirror, versions_[2]));
    EXPECT_FALSE(mirror->damage().has_value());
    EXPECT_TRUE(SharedRead::Begin(files_, kMirrorPath).ok());
  }
};

TEST_F(Unfinished, IsFinished) { EXPECT_TRUE(HoldsExactly(*Open(), versions_[1])); }
TEST_F(Unfinished, ADamagedJournalDemandsALoad) {
  std::string journal = disk_.Contents().at(In(".weightwire/journal"));
  journal[journal.size() / 2] = static_cast<char>(journal[journal.size() / 2] ^ 1);
  Overwrite(In(".weightwire/journal"), journal);
  ExpectLoadDemanded();
}
TEST_F(Unfinished, AMissingJournalDemandsALoadIfWeightsHaveChanged) {
  std::string text = disk_.Contents().at(In("model-00001-of-00002.safetensors"));
  text.back() = static_cast<char>(text.back() ^ 1);
  Overwrite(In("model-00001-of-00002.safetensors"), text);
  ASSERT_TRUE(files_.Remove(In(".weightwire/journal")).ok());
  ExpectLoadDemanded();
}
TEST_F(Unfinished, WithoutItsJournalAndWithoutAChangedWeightItIsTheOldVersion) {
  ASSERT_TRUE(files_.Remove(In(".weightwire/journal")).ok());
  auto mirror = Open();
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[0]));
  EXPECT_TRUE(SharedRead::Begin(files_, kMirrorPath).ok());
  ASSERT_TRUE(Apply(*mirror, 1).ok());
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[1]));
}
TEST_F(Unfinished, BitsThatAreNeitherOldNorNewDemandALoad) {
  std::string text = disk_.Contents().at(In("model-00001-of-00002.safetensors"));
  for (std::size_t at = text.size() - 500; at < text.size(); ++at) text[at] = static_cast<char>(text[at] ^ 0x55);
  Overwrite(In("model-00001-of-00002.safetensors"), text);
  ExpectLoadDemanded();
}
TEST_F(Unfinished, AMissingFileDemandsALoad) {
  ASSERT_TRUE(files_.Remove(In("model-00001-of-00002.safetensors")).ok());
  ExpectLoadDemanded();
}
TEST_F(Unfinished, ADamagedStateDemandsALoad) {
  Overwrite(In(".weightwire/state.json"), "{");
  auto mirror = Open();
  EXPECT_TRUE(mirror->damage().has_value());
  ASSERT_TRUE(LoadInto(*mirror, versions_[2]).ok());
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[2]));
}
TEST_F(Unfinished, ReadersAreToldToWait) {
  const auto read = SharedRead::Begin(files_, kMirrorPath);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(read.error().message(), HasSubstr("was cut off"));
}

TEST_F(MirrorTest, ATensorHeldUnderBothNamesOfATieChangesUnderBoth) {
  testing::Random random(7);
  const OwnedTensor embed = RandomTensor(random, "embed", DType::kBF16, 400);
  OwnedTensor head = embed;
  head.spec.name = "head";
  const Model before = ModelOf({embed}, {{"head", "embed"}});
  const Model after = Stepped(random, before, 7);
  ModelVersion zero = VersionOf(0, before);
  ModelVersion one = VersionOf(1, after);
  zero.files = VersionOf(0, ModelOf({embed, head})).files;
  auto mirror = Open();
  ASSERT_TRUE(LoadInto(*mirror, zero).ok());
  EXPECT_TRUE(HoldsExactly(*mirror, zero));
  ASSERT_TRUE(mirror->Apply(ChangeBetween(zero, one), one.held).ok());
  EXPECT_TRUE(HoldsExactly(*mirror, one));
  OwnedTensor new_embed{embed.spec, after.tensors[0]};
  OwnedTensor new_head{head.spec, after.tensors[0]};
  EXPECT_TRUE(DirectoryHolds(files_, ModelOf({new_embed, new_head})));
  ASSERT_TRUE(mirror->Undo().ok());
  EXPECT_TRUE(DirectoryHolds(files_, ModelOf({embed, head})));
}

TEST_F(MirrorTest, FilesInWhichNothingChangesStayWhenTheLayoutDoes) {
  auto mirror = Loaded();
  std::vector<OwnedTensor> tensors;
  for (std::size_t i = 0; i < versions_[0].model.tensors.size(); ++i) {
    tensors.push_back({versions_[0].model.layout->tensors()[i], versions_[0].model.tensors[i]});
  }
  testing::Random random(9);
  tensors.push_back(RandomTensor(random, "new", DType::kF16, 30));
  const ModelVersion one = VersionOf(1, ModelOf(tensors), 1100);
  std::vector<std::string> renamed;
  SimFileSystem process(disk_, [&](std::string_view effect, const FileSystem::Path& path) {
    if (effect == "rename") renamed.push_back(path.filename().string());
    return Fate::kGoOn;
  });
  mirror.reset();
  mirror = OpenSim(process).value();
  ASSERT_TRUE(mirror->Apply(ChangeBetween(versions_[0], one), one.held).ok());
  EXPECT_TRUE(HoldsExactly(*mirror, one));
  EXPECT_THAT(renamed, Contains("model-00002-of-00002.safetensors"));
  EXPECT_THAT(renamed, Not(Contains("model-00001-of-00002.safetensors")));
}

// A disk that refuses any one effect: an error, and afterwards the old version or the new one.
TEST_F(MirrorTest, ADiskThatRefusesLeavesOldOrNew) {
  int usable = 0;
  int unusable = 0;
  // By opening it again, or by mending the one that is open.
  for (const auto& [load, mend] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
    bool reached = true;
    for (std::uint64_t at = 0; reached; ++at) {
      ASSERT_LT(at, 500U);
      SimDisk disk;
      std::uint64_t count = 0;
      bool armed = false;
      reached = false;
      SimFileSystem files(disk, [&](std::string_view, const auto&) {
        if (!armed || count++ != at) return Fate::kGoOn;
        reached = true;
        return Fate::kRefuse;
      });
      {
        auto mirror = OpenSim(files);
        ASSERT_TRUE(mirror.ok() && LoadInto(*mirror.value(), versions_[0]).ok());
        armed = true;
        const Status status = load ? LoadInto(*mirror.value(), versions_[1]) : Apply(*mirror.value(), 1);
        const Status synced = mirror.value()->Sync();
        armed = false;
        // Whether it can go on, or says that it must be opened again.
        if (mirror.value()->Sync().ok()) {
          ++usable;
          const auto held = mirror.value()->held();
          ASSERT_TRUE(held.has_value());
          EXPECT_TRUE(HoldsExactly(*mirror.value(), versions_[held->version])) << at;
          if (held->version == 0) {
            EXPECT_TRUE(Apply(*mirror.value(), 1).ok()) << at;
          }
        } else {
          ++unusable;
          EXPECT_TRUE(!status.ok() || !synced.ok());
          EXPECT_THAT(mirror.value()->Sync().error().message(), HasSubstr("open the mirror again"));
          EXPECT_FALSE(mirror.value()->RunMaintenance().ok()) << "as if nothing were wrong";
          if (mend) {
            const auto mended = mirror.value()->Recover();
            ASSERT_TRUE(mended.ok()) << mended.error().message();
            EXPECT_TRUE(mended.value());
            EXPECT_FALSE(mirror.value()->Recover().value());
            const auto held = mirror.value()->held();
            ASSERT_TRUE(held.has_value());
            EXPECT_TRUE(HoldsExactly(*mirror.value(), versions_[held->version])) << at;
            EXPECT_TRUE(Apply(*mirror.value(), held->version + 1).ok()) << at;
          }
        }
      }
      auto mirror = OpenSim(files);
      ASSERT_TRUE(mirror.ok()) << mirror.error().message();
      ASSERT_TRUE(mirror.value()->held().has_value());
      EXPECT_TRUE(HoldsExactly(*mirror.value(), versions_[mirror.value()->held()->version])) << at;
    }
  }
  EXPECT_GT(usable, 5);
  EXPECT_GT(unusable, 5);
}

// A disk that is full, and has room again later: nothing has to be opened again.
TEST_F(MirrorTest, AFullDiskLeavesNothingInDoubt) {
  bool full = false;
  SimFileSystem files(disk_, [&](std::string_view effect, const auto&) {
    return full && (effect == "create" || effect == "append") ? Fate::kRefuse : Fate::kGoOn;
  });
  auto mirror = OpenSim(files).value();
  ASSERT_TRUE(LoadInto(*mirror, versions_[0]).ok());
  ASSERT_TRUE(Apply(*mirror, 1).ok());
  full = true;
  ASSERT_FALSE(mirror->synced());
  EXPECT_FALSE(mirror->Sync().ok());
  EXPECT_FALSE(mirror->RunMaintenance().ok());
  EXPECT_FALSE(Apply(*mirror, 2).ok());
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[1]));
  ModelVersion other = versions_[1];
  other.held.version = 2;
  EXPECT_FALSE(mirror->Apply(ChangeBetween(versions_[1], other), other.held).ok());
  full = false;
  EXPECT_FALSE(mirror->Recover().value());
  EXPECT_TRUE(mirror->RunMaintenance().ok());
  EXPECT_TRUE(mirror->synced());
  ASSERT_TRUE(Apply(*mirror, 2).ok());
  EXPECT_TRUE(HoldsExactly(*mirror, versions_[2]));
}

TEST(MirrorState, SaysWhatItHoldsToAnybody) {
  MirrorState state;
  EXPECT_EQ(ParseMirrorState(ToJson(state)).value(), state);
  EXPECT_FALSE(state.IsReadable("boot"));
  Held held;
  held.run.bytes.fill(0xab);
  held.version = 12'345'678'901'234'567'890U;
  held.step = 3;
  held.state.fill(1);
  state.held = held;
  EXPECT_TRUE(state.IsReadable("boot"));
  EXPECT_EQ(ParseMirrorState(ToJson(state)).value(), state);
  EXPECT_THAT(ToJson(state), HasSubstr("\"version\":\"12345678901234567890\",\"step\":\"3\""));
  state.unsynced = "boot";
  EXPECT_TRUE(state.IsReadable("boot"));
  EXPECT_FALSE(state.IsReadable("another"));
  state.unsynced = "";
  EXPECT_FALSE(state.IsReadable("")) << "there is no telling";
  state.writing = {held, MirrorState::By::kFiles};
  EXPECT_FALSE(state.IsReadable("boot"));
  EXPECT_EQ(ParseMirrorState(ToJson(state)).value(), state);
  EXPECT_FALSE(ParseMirrorState("{}").ok());
}

TEST(MirrorOnThisMachine, FollowsVersions) {
  testing::Random random(11);
  const Model zero =
      ModelOf({RandomTensor(random, "a", DType::kBF16, 300'000), RandomTensor(random, "b", DType::kF32, 70'000)});
  const Model one = Stepped(random, zero, 60);
  const ModelVersion versions[] = {VersionOf(0, zero, 400'000), VersionOf(1, one, 400'000)};
  const TemporaryDirectory directory;
  RealFileSystem files;
  ThreadPool pool(3);
  const auto open = [&] { return OpenMirror(files, directory / "made/here", {}, BestKernels(), pool); };
  {
    auto mirror = open();
    ASSERT_TRUE(mirror.ok()) << mirror.error().message();
    ASSERT_TRUE(LoadInto(*mirror.value(), versions[0]).ok());
    ASSERT_TRUE(mirror.value()->Apply(ChangeBetween(versions[0], versions[1]), versions[1].held).ok());
    EXPECT_TRUE(HoldsExactly(*mirror.value(), versions[1]));
    EXPECT_EQ(open().error().code(), ErrorCode::kUnavailable);
    auto read = SharedRead::Begin(files, directory / "made/here");
    ASSERT_TRUE(read.ok()) << read.error().message();
    EXPECT_TRUE(read.value().Confirm().ok());
  }
  auto mirror = open();
  ASSERT_TRUE(mirror.ok());
  EXPECT_TRUE(HoldsExactly(*mirror.value(), versions[1]));
  ASSERT_TRUE(mirror.value()->Undo().ok());
  ASSERT_TRUE(mirror.value()->Sync().ok());
  EXPECT_TRUE(HoldsExactly(*mirror.value(), versions[0]));
  for (const auto& [name, text] : versions[0].files) EXPECT_EQ(testing::ReadAll(directory / "made/here" / name), text);
}

}  // namespace
}  // namespace weightwire
