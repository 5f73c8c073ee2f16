// Mirrors on a disk that forgets, stopped before every effect of everything they do: afterwards each holds the old
// version or the new one, bit for bit, a reader can tell which, and it goes on from there. Planted faults are found.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "follow/mirror_faults.h"
#include "follow/mirror_world.h"
#include "support/owned_tensor.h"

namespace weightwire {
namespace {

using testing::ChangeBetween;
using testing::DirectoryHolds;
using testing::FaultyMirrorDisk;
using testing::HoldsExactly;
using testing::LoadInto;
using testing::MirrorFault;
using testing::Model;
using testing::ModelOf;
using testing::ModelVersion;
using testing::OpenSim;
using testing::RandomTensor;
using testing::SimDisk;
using testing::SimFileSystem;
using testing::Stepped;
using testing::VersionOf;
using Fate = SimFileSystem::Fate;

// Five versions of one small model. 3 has another layout, and other shards; 4 is 3 with another step.
struct Versions {
  std::vector<ModelVersion> all;
  std::shared_ptr<const StagedChange> change01;
  std::shared_ptr<const StagedChange> change12;
  std::shared_ptr<const StagedChange> change23;
  std::shared_ptr<const StagedChange> change34;

  static const Versions& Get() {
    static const Versions versions;
    return versions;
  }

 private:
  Versions() {
    testing::Random random(1);
    const Model zero =
        ModelOf({RandomTensor(random, "bytes", DType::kU8, 300), RandomTensor(random, "embed", DType::kBF16, 700),
                 RandomTensor(random, "floats", DType::kF32, 200), RandomTensor(random, "wide", DType::kI64, 90)});
    const Model one = Stepped(random, zero, 10);
    const Model two = Stepped(random, one, 10);
    // One tensor goes, one comes, one has another shape; "embed" lies in a shard of its own and stays as it is.
    std::vector<OwnedTensor> tensors;
    for (std::size_t i = 0; i < two.tensors.size(); ++i) {
      TensorSpec spec = two.layout->tensors()[i];
      if (spec.name == "wide") continue;
      if (spec.name == "floats") spec.shape = {10, 20};
      tensors.push_back({spec, two.tensors[i]});
    }
    tensors.push_back(RandomTensor(random, "new", DType::kF16, 150));
    const Model three = ModelOf(std::move(tensors));
    const std::uint64_t shard = 1500;
    all = {VersionOf(0, zero, shard), VersionOf(1, one, shard), VersionOf(2, two, shard),
           VersionOf(3, three, 5'000'000, {{"config.json", "{ }"}, {"extra/notes.txt", "hello"}}), VersionOf(4, three)};
    change01 = ChangeBetween(all[0], all[1]);
    change12 = ChangeBetween(all[1], all[2]);
    change23 = ChangeBetween(all[2], all[3]);
    change34 = ChangeBetween(all[3], all[4]);
  }
};

// Something a mirror does, and what it may hold when that is cut off anywhere.
struct Scenario {
  std::string name;
  std::function<Status(Mirror&)> before;  // done whole
  std::function<Status(Mirror&)> cut_off;
  std::set<int> may_hold;  // versions; -1: nothing
};

void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

const Versions& V() { return Versions::Get(); }
Status Load(Mirror& mirror, int version) { return LoadInto(mirror, V().all[static_cast<std::size_t>(version)]); }
Status Apply01(Mirror& mirror) { return mirror.Apply(V().change01, V().all[1].held); }
Status Apply12(Mirror& mirror) { return mirror.Apply(V().change12, V().all[2].held); }
Status Apply23(Mirror& mirror) { return mirror.Apply(V().change23, V().all[3].held); }
Status Apply34(Mirror& mirror) { return mirror.Apply(V().change34, V().all[4].held); }

Status InTurn(Mirror& mirror, const std::vector<std::function<Status(Mirror&)>>& steps) {
  for (const auto& step : steps) WW_RETURN_IF_ERROR(step(mirror));
  return Ok();
}

const auto kNothing = [](Mirror&) { return Ok(); };
const auto kSettle = [](Mirror& mirror) { return mirror.Sync(); };
const auto kUndo = [](Mirror& mirror) { return mirror.Undo(); };
const auto kLoad0 = [](Mirror& mirror) { return Load(mirror, 0); };

std::vector<Scenario> Scenarios() {
  const auto after = [](std::vector<std::function<Status(Mirror&)>> steps) {
    return [steps](Mirror& mirror) { return InTurn(mirror, steps); };
  };
  return {
      {"FirstLoad", kNothing, kLoad0, {-1, 0}},
      {"LoadOverAnother", after({kLoad0, Apply01}), [](Mirror& mirror) { return Load(mirror, 3); }, {1, 3}},
      {"LoadOfTheSameFiles", kLoad0, [](Mirror& mirror) { return Load(mirror, 2); }, {0, 2}},
      {"Apply", kLoad0, Apply01, {0, 1}},
      {"ApplyBeforeTheLastHasSettled", after({kLoad0, Apply01}), Apply12, {1, 2}},
      {"ApplyAfterTheLastHasSettled", after({kLoad0, Apply01, kSettle}), Apply12, {1, 2}},
      {"ApplyTwiceAndSettle", kLoad0, after({Apply01, Apply12, kSettle}), {0, 1, 2}},
      {"Sync", after({kLoad0, Apply01}), kSettle, {1}},
      {"Undo", after({kLoad0, Apply01}), kUndo, {0, 1}},
      {"UndoAfterSettle", after({kLoad0, Apply01, kSettle}), kUndo, {0, 1}},
      {"UndoSettleAndApplyAgain", after({kLoad0, Apply01}), after({kUndo, kSettle, Apply01, kSettle}), {0, 1}},
      {"UndoAndApplyAgain", after({kLoad0, Apply01}), after({kUndo, Apply01}), {0, 1}},
      {"ChangeOfTheLayout", after({kLoad0, Apply01, Apply12}), Apply23, {2, 3}},
      {"AnotherStepOnly", after({kLoad0, Apply01, Apply12, Apply23}), Apply34, {3, 4}},
  };
}

// Goes on from whatever is held to the next version.
Status GoOn(Mirror& mirror, Version& expected) {
  const std::optional<Held> held = mirror.held();
  expected = held.has_value() ? held->version + 1 : 0;
  if (!held.has_value()) return Load(mirror, 0);
  switch (held->version) {
    case 0:
      return Apply01(mirror);
    case 1:
      return Apply12(mirror);
    case 2:
      return Apply23(mirror);
    case 3:
      return Apply34(mirror);
    default:
      expected = 0;
      return Load(mirror, 0);
  }
}

// Kills the process before the n-th effect of what is cut off; on the way the disk writes back what it likes.
struct Stop {
  std::uint64_t at = 0;
  std::uint64_t seed = 0;
  bool power = true;           // fails, or the process alone is killed
  bool while_opening = false;  // stopped once more, somewhere in opening again
};

// What was seen; an empty sentence is good.
struct Outcome {
  bool finished = false;  // what was to be cut off came to its end
  int held = -2;
  std::string wrong;
};

Outcome CutOff(const Scenario& scenario, const Stop& stop, MirrorFault fault = MirrorFault::kNone) {
  Outcome outcome;
  SimDisk disk;
  SeededRandom random(stop.seed * 1'000'003 + stop.at);
  bool armed = false;
  std::uint64_t effects = 0;
  {
    SimFileSystem files(disk, [&](std::string_view, const auto&) {
      if (random.Below(4) == 0) disk.WriteBack(random);
      return armed && effects++ == stop.at ? Fate::kDie : Fate::kGoOn;
    });
    FaultyMirrorDisk faulty(files, testing::kMirrorPath, fault);
    auto mirror = OpenSim(faulty);
    if (!mirror.ok()) return {.wrong = "first open: " + mirror.error().message()};
    if (const Status status = scenario.before(*mirror.value()); !status.ok()) {
      return {.wrong = "before: " + status.error().message()};
    }
    armed = true;
    const Status status = scenario.cut_off(*mirror.value());
    outcome.finished = !files.dead();
    if (outcome.finished && !status.ok()) return {.wrong = "not cut off: " + status.error().message()};
  }
  if (stop.power) disk.Crash(random);
  if (stop.while_opening) {
    const std::uint64_t last = random.Below(30);
    std::uint64_t count = 0;
    {
      SimFileSystem files(disk, [&](std::string_view, const auto&) {
        if (random.Below(4) == 0) disk.WriteBack(random);
        return count++ == last ? Fate::kDie : Fate::kGoOn;
      });
      FaultyMirrorDisk faulty(files, testing::kMirrorPath, fault);
      (void)OpenSim(faulty);
    }
    if (random.Below(2) == 0) disk.Crash(random);
  }

  SimFileSystem files(disk);
  // A reader comes before the follower.
  if (auto read = SharedRead::Begin(files, testing::kMirrorPath); read.ok()) {
    const ModelVersion& version = V().all[read.value().held().version];
    if (!DirectoryHolds(files, version.model)) {
      outcome.wrong = "a reader was let in to a mix";
      return outcome;
    }
    if (const Status confirmed = read.value().Confirm(); !confirmed.ok()) {
      outcome.wrong = confirmed.error().message();
      return outcome;
    }
  } else if (read.error().code() != ErrorCode::kUnavailable && read.error().code() != ErrorCode::kNotFound) {
    outcome.wrong = read.error().message();
    return outcome;
  }

  FaultyMirrorDisk faulty(files, testing::kMirrorPath, fault);
  auto opened = OpenSim(faulty);
  if (!opened.ok()) {
    outcome.wrong = "open: " + opened.error().message();
    return outcome;
  }
  Mirror& mirror = *opened.value();
  if (mirror.damage().has_value()) {
    outcome.wrong = mirror.damage()->message();
    return outcome;
  }
  outcome.held = mirror.held().has_value() ? static_cast<int>(mirror.held()->version) : -1;
  if (!scenario.may_hold.contains(outcome.held)) {
    outcome.wrong = "holds version " + std::to_string(outcome.held);
    return outcome;
  }
  if (outcome.held >= 0) {
    const auto exact = HoldsExactly(mirror, V().all[static_cast<std::size_t>(outcome.held)]);
    if (!exact) {
      outcome.wrong = exact.message();
      return outcome;
    }
  }
  // And it goes on, and what it then says has synced survives.
  Version next = 0;
  Status went_on = GoOn(mirror, next);
  if (went_on.ok()) went_on = mirror.Sync();
  if (!went_on.ok()) {
    outcome.wrong = "going on: " + went_on.error().message();
    return outcome;
  }
  opened.value().reset();
  disk.Crash(random);
  SimFileSystem later(disk);
  auto again = OpenSim(later);
  const auto exact = again.ok() ? HoldsExactly(*again.value(), V().all[next]) : ::testing::AssertionFailure();
  if (!exact) outcome.wrong = std::string("after going on: ") + exact.message();
  return outcome;
}

class MirrorCrash : public ::testing::TestWithParam<Scenario> {};

INSTANTIATE_TEST_SUITE_P(, MirrorCrash, ::testing::ValuesIn(Scenarios()),
                         [](const auto& param) { return param.param.name; });

void WalkEveryEffect(const Scenario& scenario, const std::function<Stop(std::uint64_t, std::uint64_t)>& stop,
                     std::uint64_t seeds) {
  std::set<int> seen;
  bool finished = false;
  std::uint64_t at = 0;
  for (; !finished; ++at) {
    ASSERT_LT(at, 2000U);
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      const Outcome outcome = CutOff(scenario, stop(at, seed));
      ASSERT_EQ(outcome.wrong, "") << scenario.name << ", stopped at " << at << " with seed " << seed;
      finished = outcome.finished;
      seen.insert(outcome.held);
    }
  }
  EXPECT_EQ(seen, scenario.may_hold) << "not every outcome was met";
  EXPECT_GT(at, 5U);
}

TEST_P(MirrorCrash, APowerFailureLeavesOldOrNew) {
  WalkEveryEffect(
      GetParam(), [](std::uint64_t at, std::uint64_t seed) { return Stop{.at = at, .seed = seed}; },
      static_cast<std::uint64_t>(testing::Rounds(5)));
}

TEST_P(MirrorCrash, AKilledProcessLeavesOldOrNew) {
  WalkEveryEffect(
      GetParam(), [](std::uint64_t at, std::uint64_t seed) { return Stop{.at = at, .seed = seed, .power = false}; }, 1);
}

TEST_P(MirrorCrash, AndSoDoesASecondCrashWhileTheFirstIsMended) {
  WalkEveryEffect(
      GetParam(),
      [](std::uint64_t at, std::uint64_t seed) {
        return Stop{.at = at, .seed = seed, .power = seed % 3 != 0, .while_opening = true};
      },
      static_cast<std::uint64_t>(testing::Rounds(5)));
}

// Whoever makes the directories may be killed before their names are on the disk. What another process then puts there
// must survive a power failure all the same.
TEST(MirrorCrashTwice, ADirectoryThatAKilledProcessMadeSurvives) {
  for (std::uint64_t at = 0; at < 8; ++at) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      SimDisk disk;
      SeededRandom random(seed);
      {
        std::uint64_t effects = 0;
        SimFileSystem files(disk, [&](auto, const auto&) { return effects++ == at ? Fate::kDie : Fate::kGoOn; });
        (void)OpenSim(files);
        ASSERT_TRUE(files.dead());
      }
      {
        SimFileSystem files(disk);
        auto mirror = OpenSim(files);
        ASSERT_TRUE(mirror.ok()) << mirror.error().message();
        ASSERT_TRUE(Load(*mirror.value(), 0).ok());
      }
      disk.Crash(random);
      SimFileSystem files(disk);
      auto mirror = OpenSim(files);
      ASSERT_TRUE(mirror.ok()) << mirror.error().message();
      EXPECT_TRUE(HoldsExactly(*mirror.value(), V().all[0])) << "killed before effect " << at << ", seed " << seed;
    }
  }
}

// The first thing that goes wrong with a planted fault, over all effects and some seeds.
std::string Found(const std::string& name, MirrorFault fault, std::uint64_t seeds = 40) {
  for (const Scenario& scenario : Scenarios()) {
    if (scenario.name != name) continue;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      bool finished = false;
      for (std::uint64_t at = 0; !finished && at < 2000; ++at) {
        for (const bool power : {true, false}) {
          const Outcome outcome = CutOff(scenario, {.at = at, .seed = seed, .power = power}, fault);
          if (!outcome.wrong.empty()) return outcome.wrong;
          finished = outcome.finished;
        }
      }
    }
  }
  return "";
}

TEST(MirrorFaults, FindsWeightsWrittenBeforeTheJournalIsDurable) {
  EXPECT_NE(Found("Apply", MirrorFault::kJournalNotDurable), "");
}
TEST(MirrorFaults, FindsAJournalThatHoldsDifferences) {
  EXPECT_NE(Found("Apply", MirrorFault::kJournalHoldsDifferences), "");
}
TEST(MirrorFaults, FindsWeightsWrittenWithoutTheWritingState) {
  EXPECT_NE(Found("Apply", MirrorFault::kNoWritingState), "");
}
TEST(MirrorFaults, FindsWeightsThatAreNotSynced) { EXPECT_NE(Found("Sync", MirrorFault::kWeightsNotSynced), ""); }
TEST(MirrorFaults, FindsFilesPlacedWithoutASavedList) {
  EXPECT_NE(Found("LoadOverAnother", MirrorFault::kReplacementNotSaved), "");
}
TEST(MirrorFaults, FindsALoadThatIsNotSynced) { EXPECT_NE(Found("FirstLoad", MirrorFault::kLoadNotSynced), ""); }
TEST(MirrorFaults, FindsNothingWithoutAFault) {
  for (const char* name : {"Apply", "Sync", "LoadOverAnother", "FirstLoad"}) {
    EXPECT_EQ(Found(name, MirrorFault::kNone, 3), "") << name;
  }
}

}  // namespace
}  // namespace weightwire
