// Mirrors that swap whole copies: whoever opens what the link leads to reads one version, whatever happens meanwhile;
// and a crash before any effect leaves the link at a complete one.
#include "follow/mirror/swap_mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "follow/mirror_world.h"

namespace weightwire {
namespace {

using testing::BestKernels;
using testing::ChangeBetween;
using ::testing::HasSubstr;
using testing::HoldsExactly;
using testing::LoadInto;
using testing::Model;
using testing::ModelOf;
using testing::ModelVersion;
using testing::OneThread;
using testing::RandomTensor;
using testing::SimDisk;
using testing::SimFileSystem;
using testing::Stepped;
using testing::VersionOf;
using Fate = SimFileSystem::Fate;

constexpr const char* kDirectory = "data/mirror";

Result<std::unique_ptr<Mirror>> Open(FileSystem& files) {
  return OpenSwapMirror(files, kDirectory, {}, BestKernels(), OneThread());
}

// 3 has another layout; 4 is 3 with another step.
const std::vector<ModelVersion>& Versions() {
  static const std::vector<ModelVersion> versions = [] {
    testing::Random random(1);
    const Model zero =
        ModelOf({RandomTensor(random, "embed", DType::kBF16, 700), RandomTensor(random, "wide", DType::kI64, 90)});
    const Model one = Stepped(random, zero, 10);
    const Model two = Stepped(random, one, 10);
    const Model three =
        ModelOf({{two.layout->tensors()[0], two.tensors[0]}, RandomTensor(random, "new", DType::kF16, 150)});
    const std::uint64_t shard = 1100;
    return std::vector<ModelVersion>{VersionOf(0, zero, shard), VersionOf(1, one, shard), VersionOf(2, two, shard),
                                     VersionOf(3, three, 5'000'000), VersionOf(4, three)};
  }();
  return versions;
}

Status LoadVersion(Mirror& mirror, std::size_t version) { return LoadInto(mirror, Versions()[version]); }
Status Apply(Mirror& mirror, std::size_t from) {
  return mirror.Apply(ChangeBetween(Versions()[from], Versions()[from + 1]), Versions()[from + 1].held);
}

// What a program that knows nothing of us finds behind the link: the number of the version, -1 if there is no link, -2
// if it is not exactly one.
int Seen(FileSystem& files, const FileSystem::Path& directory) {
  const auto checkpoint = Checkpoint::Open(files, directory);
  if (!checkpoint.ok()) return -2;
  for (const ModelVersion& version : Versions()) {
    const auto view = checkpoint.value().ViewAs(*version.model.layout);
    if (!view.ok()) continue;
    bool same = true;
    for (std::size_t i = 0; i < version.model.tensors.size(); ++i) {
      const auto bytes = view.value().bytes(i);
      same = same && testing::Bytes(bytes.begin(), bytes.end()) == version.model.tensors[i];
    }
    if (same) return static_cast<int>(version.held.version);
  }
  return -2;
}
FileSystem::Path LinkTarget(FileSystem& files) {
  const auto target = files.ReadLink(FileSystem::Path(kDirectory) / kSwapLink);
  return target.ok() ? FileSystem::Path(kDirectory) / target.value() : FileSystem::Path();
}
int SeenBehindTheLink(FileSystem& files) {
  const FileSystem::Path target = LinkTarget(files);
  return target.empty() ? -1 : Seen(files, target);
}

class SwapMirrorTest : public ::testing::Test {
 protected:
  std::unique_ptr<Mirror> Opened() {
    auto mirror = Open(files_);
    EXPECT_TRUE(mirror.ok()) << mirror.error().message();
    return std::move(mirror).value();
  }
  std::size_t Copies() { return files_.List(FileSystem::Path(kDirectory) / "copies").value().size(); }

  SimDisk disk_;
  SimFileSystem files_{disk_};
};

TEST_F(SwapMirrorTest, GoesFromVersionToVersionAndNeverHasMoreThanTwoCopies) {
  auto mirror = Opened();
  EXPECT_FALSE(mirror->held().has_value());
  EXPECT_EQ(SeenBehindTheLink(files_), -1);
  ASSERT_TRUE(LoadVersion(*mirror, 0).ok());
  EXPECT_EQ(SeenBehindTheLink(files_), 0);
  for (std::size_t from = 0; from < 4; ++from) {
    const Status applied = Apply(*mirror, from);
    ASSERT_TRUE(applied.ok()) << applied.error().message();
    EXPECT_TRUE(HoldsExactly(*mirror, Versions()[from + 1]));
    EXPECT_EQ(Copies(), 2U);
  }
  EXPECT_EQ(SeenBehindTheLink(files_), 3);  // 4 has the same bits
  mirror.reset();
  EXPECT_TRUE(HoldsExactly(*Opened(), Versions()[4]));
}

TEST_F(SwapMirrorTest, WhatAReaderHasOpenedIsNotWrittenTo) {
  auto mirror = Opened();
  ASSERT_TRUE(LoadVersion(*mirror, 0).ok());
  // The directory, as one that follows the link finds it, and a file in it.
  const FileSystem::Path opened = LinkTarget(files_);
  const auto checkpoint = Checkpoint::Open(files_, opened);
  ASSERT_TRUE(checkpoint.ok());
  ASSERT_TRUE(Apply(*mirror, 0).ok());
  EXPECT_EQ(Seen(files_, opened), 0) << "the copy before stays as long as the next is not begun";
  ASSERT_TRUE(Apply(*mirror, 1).ok());
  EXPECT_EQ(Seen(files_, opened), -2) << "it is gone, and not another version";
  const Model& model = Versions()[0].model;
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    const auto bytes = checkpoint.value().bytes(i);
    EXPECT_EQ(testing::Bytes(bytes.begin(), bytes.end()), model.tensors[i]) << "what is open stays as it was";
  }
}

TEST_F(SwapMirrorTest, ANameIsNotUsedAgain) {
  auto mirror = Opened();
  ASSERT_TRUE(LoadVersion(*mirror, 0).ok());
  ASSERT_TRUE(Apply(*mirror, 0).ok());
  const FileSystem::Path undone = LinkTarget(files_);
  ASSERT_TRUE(mirror->Undo().ok());
  mirror.reset();
  mirror = Opened();
  ASSERT_TRUE(Apply(*mirror, 0).ok());
  EXPECT_NE(LinkTarget(files_), undone);
}

TEST_F(SwapMirrorTest, UndoGoesBackEvenOverALoadOrAChangeOfTheLayout) {
  auto mirror = Opened();
  ASSERT_TRUE(LoadVersion(*mirror, 2).ok());
  EXPECT_FALSE(mirror->undo_target().has_value());
  EXPECT_EQ(mirror->Undo().error().code(), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(Apply(*mirror, 2).ok());
  EXPECT_EQ(mirror->undo_target(), Versions()[2].held);
  ASSERT_TRUE(mirror->Undo().ok());
  EXPECT_TRUE(HoldsExactly(*mirror, Versions()[2]));
  EXPECT_FALSE(mirror->undo_target().has_value());
  ASSERT_TRUE(LoadVersion(*mirror, 0).ok());
  mirror.reset();
  mirror = Opened();
  EXPECT_EQ(mirror->undo_target(), Versions()[2].held);
  ASSERT_TRUE(mirror->Undo().ok());
  EXPECT_EQ(SeenBehindTheLink(files_), 2);
  ASSERT_TRUE(Apply(*mirror, 2).ok());
  EXPECT_EQ(SeenBehindTheLink(files_), 3);
}

TEST_F(SwapMirrorTest, KindsOfMirrorsAreNotMixedUp) {
  {
    auto mirror = Opened();
    const auto second = Open(files_);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code(), ErrorCode::kUnavailable);
  }
  const auto plain = OpenMirror(files_, kDirectory, {}, BestKernels(), OneThread());
  ASSERT_FALSE(plain.ok());
  EXPECT_THAT(plain.error().message(), HasSubstr("--swap"));
  ASSERT_TRUE(OpenMirror(files_, "data/plain", {}, BestKernels(), OneThread()).ok());
  ASSERT_TRUE(LoadVersion(*OpenMirror(files_, "data/plain", {}, BestKernels(), OneThread()).value(), 0).ok());
  const auto swap = OpenSwapMirror(files_, "data/plain", {}, BestKernels(), OneThread());
  ASSERT_FALSE(swap.ok());
  EXPECT_EQ(swap.error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(SwapMirrorTest, ALinkThatLeadsElsewhereIsRefused) {
  ASSERT_TRUE(LoadVersion(*Opened(), 0).ok());
  const FileSystem::Path link = FileSystem::Path(kDirectory) / kSwapLink;
  for (const char* target : {"../elsewhere", "copies/../x", "copies/77", "copies/01"}) {
    ASSERT_TRUE(files_.Remove(link).ok());
    ASSERT_TRUE(files_.MakeLink(target, link).ok());
    const auto mirror = Open(files_);
    ASSERT_FALSE(mirror.ok()) << target;
    EXPECT_EQ(mirror.error().code(), ErrorCode::kInvalidArgument);
  }
}

// A disk that refuses any one effect: the link leads to a whole version all the while, and it goes on from there.
TEST(SwapMirrorErrors, ADiskThatRefusesLeavesTheLinkAtAWholeVersion) {
  int mended = 0;
  for (const bool load : {false, true}) {
    bool reached = true;
    for (std::uint64_t at = 0; reached; ++at) {
      ASSERT_LT(at, 500U);
      SimDisk disk;
      std::uint64_t count = 0;
      bool armed = false;
      reached = false;
      SimFileSystem files(disk, [&](std::string_view, const auto&) {
        if (!armed) return Fate::kGoOn;
        EXPECT_GE(SeenBehindTheLink(files), 0);
        if (count++ != at) return Fate::kGoOn;
        reached = true;
        return Fate::kRefuse;
      });
      auto mirror = Open(files).value();
      ASSERT_TRUE(LoadVersion(*mirror, 0).ok());
      armed = true;
      Result<std::unique_ptr<TargetLoad>> loading(nullptr);
      if (load) loading = testing::LoadWithoutCommit(*mirror, Versions()[1]);
      const auto commit = [&] { return testing::CommitLoad(*loading.value(), Versions()[1]); };
      const Status status = !load ? Apply(*mirror, 0) : loading.ok() ? commit() : Status(loading.error());
      if (!status.ok()) {
        // As a follower does: mend, and only if there was nothing to mend the same again.
        const auto mend = mirror->Recover();
        ASSERT_TRUE(mend.ok()) << mend.error().message();
        mended += mend.value() ? 1 : 0;
        if (mend.value()) {
          ASSERT_EQ(mirror->held()->version, 1U);
        } else if (load && loading.ok()) {
          ASSERT_TRUE(commit().ok()) << at;
        } else {
          ASSERT_TRUE((load ? LoadVersion(*mirror, 1) : Apply(*mirror, 0)).ok()) << at;
        }
      }
      armed = false;
      ASSERT_TRUE(HoldsExactly(*mirror, Versions()[1])) << at;
      ASSERT_TRUE(Apply(*mirror, 1).ok());
      ASSERT_EQ(SeenBehindTheLink(files), 2);
    }
  }
  EXPECT_GT(mended, 1);
}

// --- crashes ---

struct SwapScenario {
  std::string name;
  std::function<Status(Mirror&)> before;
  std::function<Status(Mirror&)> cut_off;
  std::set<int> may_hold;
};
void PrintTo(const SwapScenario& scenario, std::ostream* out) { *out << scenario.name; }

std::vector<SwapScenario> SwapScenarios() {
  const auto load = [](std::size_t version) {
    return [version](Mirror& mirror) { return LoadVersion(mirror, version); };
  };
  const auto apply = [](std::size_t from) { return [from](Mirror& mirror) { return Apply(mirror, from); }; };
  const auto both = [](const auto& first, const auto& second) {
    return [first, second](Mirror& mirror) -> Status {
      WW_RETURN_IF_ERROR(first(mirror));
      return second(mirror);
    };
  };
  const auto undo = [](Mirror& mirror) { return mirror.Undo(); };
  return {
      {"FirstLoad", [](Mirror&) { return Ok(); }, load(0), {-1, 0}},
      {"LoadOverAnother", load(0), load(3), {0, 3}},
      {"Apply", load(0), apply(0), {0, 1}},
      {"ApplyWithACopyBefore", both(load(0), apply(0)), apply(1), {1, 2}},
      {"ChangeOfTheLayout", load(2), apply(2), {2, 3}},
      {"Undo", both(load(0), apply(0)), undo, {0, 1}},
      {"UndoAndApply", both(load(0), apply(0)), both(undo, apply(0)), {0, 1}},
  };
}

class SwapMirrorCrash : public ::testing::TestWithParam<SwapScenario> {};
INSTANTIATE_TEST_SUITE_P(, SwapMirrorCrash, ::testing::ValuesIn(SwapScenarios()),
                         [](const auto& param) { return param.param.name; });

TEST_P(SwapMirrorCrash, LeavesTheLinkAtAWholeVersion) {
  const SwapScenario& scenario = GetParam();
  std::set<int> seen;
  bool finished = false;
  std::uint64_t at = 0;
  for (; !finished; ++at) {
    ASSERT_LT(at, 2000U);
    for (std::uint64_t seed = 0; seed < static_cast<std::uint64_t>(testing::Rounds(6)); ++seed) {
      SimDisk disk;
      SeededRandom random(seed * 1'000'003 + at);
      bool armed = false;
      std::uint64_t effects = 0;
      {
        SimFileSystem files(disk, [&](std::string_view, const auto&) {
          if (random.Below(4) == 0) disk.WriteBack(random);
          return armed && effects++ == at ? Fate::kDie : Fate::kGoOn;
        });
        auto mirror = Open(files);
        ASSERT_TRUE(mirror.ok());
        ASSERT_TRUE(scenario.before(*mirror.value()).ok());
        armed = true;
        const Status status = scenario.cut_off(*mirror.value());
        finished = !files.dead();
        ASSERT_TRUE(!finished || status.ok()) << status.error().message();
      }
      // The power fails, or the process alone is killed.
      if (seed % 3 != 0) disk.Crash(random);
      SimFileSystem files(disk);
      const int before_opening = SeenBehindTheLink(files);
      ASSERT_TRUE(scenario.may_hold.contains(before_opening)) << before_opening << " stopped at " << at;
      seen.insert(before_opening);
      auto mirror = Open(files);
      ASSERT_TRUE(mirror.ok()) << mirror.error().message() << " stopped at " << at << " with seed " << seed;
      const auto held = mirror.value()->held();
      ASSERT_EQ(held.has_value() ? static_cast<int>(held->version) : -1, before_opening);
      if (held.has_value()) {
        ASSERT_TRUE(HoldsExactly(*mirror.value(), Versions()[held->version]));
      }
      // It goes on, and that survives.
      const std::size_t next = held.has_value() && held->version < 4 ? held->version + 1 : 0;
      const Status went_on = next == 0 ? LoadVersion(*mirror.value(), 0) : Apply(*mirror.value(), next - 1);
      ASSERT_TRUE(went_on.ok()) << went_on.error().message() << " stopped at " << at << " with seed " << seed;
      mirror.value().reset();
      disk.Crash(random);
      SimFileSystem later(disk);
      ASSERT_EQ(SeenBehindTheLink(later), next == 4 ? 3 : static_cast<int>(next));
    }
  }
  EXPECT_EQ(seen, scenario.may_hold) << "not every outcome was met";
  EXPECT_GT(at, 5U);
}

}  // namespace
}  // namespace weightwire
