// The disk that forgets: what was synced stays, and of the rest everything that may be lost is lost some day.
#include "support/sim_file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace weightwire {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsSupersetOf;
using testing::SimDisk;
using testing::SimFileSystem;
using ::testing::SizeIs;
using Fate = SimFileSystem::Fate;
using Contents = std::map<std::string, std::string>;

std::span<const std::uint8_t> BytesOf(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

void Put(FileSystem& files, const std::string& path, std::string_view text, bool sync) {
  auto file = files.Create(path);
  ASSERT_TRUE(file.ok()) << file.error().message();
  ASSERT_TRUE(file.value()->Append(BytesOf(text)).ok());
  if (sync) {
    ASSERT_TRUE(file.value()->Sync().ok());
  }
}

// What is left after many crashes of the same.
template <typename Work>
std::set<Contents> Outcomes(Work&& work, int seeds = 200) {
  std::set<Contents> outcomes;
  for (int seed = 0; seed < seeds; ++seed) {
    SimDisk disk;
    SimFileSystem files(disk);
    work(files);
    SeededRandom random(static_cast<std::uint64_t>(seed));
    disk.Crash(random);
    outcomes.insert(disk.Contents());
  }
  return outcomes;
}

TEST(SimDisk, KeepsSyncedDataUnderASyncedName) {
  const auto outcomes = Outcomes([](FileSystem& files) {
    Put(files, "a", "hello", true);
    ASSERT_TRUE(files.SyncDirectory("").ok());
  });
  EXPECT_THAT(outcomes, ElementsAre(Contents{{"a", "hello"}}));
}

TEST(SimDisk, MayLoseUnsyncedNames) {
  const auto outcomes = Outcomes([](FileSystem& files) { Put(files, "a", "hello", true); });
  EXPECT_THAT(outcomes, ElementsAre(Contents{}, Contents{{"a", "hello"}}));
}

TEST(SimDisk, MayLoseUnsyncedDataOrReadZeros) {
  const auto outcomes = Outcomes([](FileSystem& files) {
    Put(files, "a", "hello", false);
    ASSERT_TRUE(files.SyncDirectory("").ok());
  });
  EXPECT_THAT(outcomes, IsSupersetOf({Contents{{"a", ""}}, Contents{{"a", std::string(5, '\0')}},
                                      Contents{{"a", "hello"}}, Contents{{"a", std::string("he\0\0\0", 5)}}}));
}

TEST(SimDisk, EachUnsyncedSectorSurvivesOrNot) {
  const std::string before(4 * SimDisk::kSectorBytes, 'a');
  const auto outcomes = Outcomes([&](FileSystem& files) {
    Put(files, "a", before, true);
    ASSERT_TRUE(files.SyncDirectory("").ok());
    const auto map = files.MapForUpdate("a");
    const auto bytes = map.value()->ForWriting(0, before.size());
    std::fill(bytes.value().begin(), bytes.value().end(), 'b');
  });
  const auto sector = [](char letter) { return std::string(SimDisk::kSectorBytes, letter); };
  EXPECT_THAT(outcomes, IsSupersetOf({Contents{{"a", before}}, Contents{{"a", std::string(before.size(), 'b')}},
                                      Contents{{"a", sector('a') + sector('b') + sector('a') + sector('b')}}}));
  EXPECT_GT(outcomes.size(), 16U) << "no torn sector";
}

TEST(SimDisk, ARenameWithinADirectoryIsAtomic) {
  const auto outcomes = Outcomes([](FileSystem& files) {
    Put(files, "a", "new", true);
    Put(files, "b", "old", true);
    ASSERT_TRUE(files.SyncDirectory("").ok());
    ASSERT_TRUE(files.Rename("a", "b").ok());
  });
  EXPECT_THAT(outcomes, ElementsAre(Contents{{"a", "new"}, {"b", "old"}}, Contents{{"b", "new"}}));
}

TEST(SimDisk, ARenameAcrossDirectoriesMayLeaveBothNamesButNeverNone) {
  const auto outcomes = Outcomes([](FileSystem& files) {
    ASSERT_TRUE(files.MakeDirectory("d").ok());
    Put(files, "d/a", "x", true);
    ASSERT_TRUE(files.SyncDirectory("d").ok());
    ASSERT_TRUE(files.SyncDirectory("").ok());
    ASSERT_TRUE(files.Rename("d/a", "a").ok());
  });
  EXPECT_THAT(outcomes, ElementsAre(Contents{{"a", "x"}}, Contents{{"a", "x"}, {"d/a", "x"}}, Contents{{"d/a", "x"}}));
}

TEST(SimDisk, SyncingADirectoryKeepsWhatItsNamesDependOn) {
  const auto outcomes = Outcomes([](FileSystem& files) {
    ASSERT_TRUE(files.MakeDirectory("d").ok());
    ASSERT_TRUE(files.SyncDirectory("").ok());
    Put(files, "d/a", "x", true);
    ASSERT_TRUE(files.Rename("d/a", "a").ok());
    Put(files, "d/other", "y", true);
    ASSERT_TRUE(files.SyncDirectory("").ok());
  });
  for (const Contents& outcome : outcomes) EXPECT_EQ(outcome.at("a"), "x");
  EXPECT_THAT(outcomes, SizeIs(4)) << "d/a and d/other are there or not";
}

TEST(SimDisk, OperationsOnOneNameHappenInOrder) {
  const auto outcomes = Outcomes([](FileSystem& files) {
    for (const char* text : {"1", "2", "3"}) {
      Put(files, "t", text, true);
      ASSERT_TRUE(files.Rename("t", "a").ok());
    }
  });
  // Each creation of t needs the rename before it, and so on down to the first.
  EXPECT_THAT(outcomes,
              ElementsAre(Contents{}, Contents{{"a", "1"}}, Contents{{"a", "1"}, {"t", "2"}}, Contents{{"a", "2"}},
                          Contents{{"a", "2"}, {"t", "3"}}, Contents{{"a", "3"}}, Contents{{"t", "1"}}));
}

TEST(SimDisk, WriteBackMayMakeUnsyncedDataDurable) {
  std::set<std::string> outcomes;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SimDisk disk;
    SimFileSystem files(disk);
    SeededRandom random(seed);
    Put(files, "a", "1", true);
    ASSERT_TRUE(files.SyncDirectory("").ok());
    for (const char letter : {'2', '3'}) {
      const auto map = files.MapForUpdate("a");
      map.value()->ForWriting(0, 1).value()[0] = static_cast<std::uint8_t>(letter);
      disk.WriteBack(random);
    }
    disk.Crash(random);
    outcomes.insert(disk.Contents().at("a"));
  }
  EXPECT_THAT(outcomes, ElementsAre("1", "2", "3"));
}

TEST(SimFileSystem, ADeadProcessHasNoEffectsAndHoldsNoLocks) {
  SimDisk disk;
  bool die = false;
  SimFileSystem files(disk, [&](std::string_view, const auto&) { return die ? Fate::kDie : Fate::kGoOn; });
  const auto lock = files.Lock("lock", LockMode::kExclusive);
  ASSERT_TRUE(lock.ok());
  auto file = files.Create("a");
  SimFileSystem other(disk);
  EXPECT_EQ(other.Lock("lock", LockMode::kShared).error().code(), ErrorCode::kUnavailable);
  die = true;
  EXPECT_FALSE(file.value()->Append(BytesOf("x")).ok());
  die = false;
  EXPECT_FALSE(file.value()->Append(BytesOf("x")).ok());
  EXPECT_FALSE(files.Stat("a").ok());
  EXPECT_TRUE(files.dead());
  EXPECT_EQ(disk.Contents().at("a"), "");
  EXPECT_TRUE(other.Lock("lock", LockMode::kExclusive).ok());
}

TEST(SimFileSystem, ARefusedEffectDoesNotHappenAndTheProcessContinues) {
  SimDisk disk;
  SimFileSystem files(
      disk, [](std::string_view effect, const auto&) { return effect == "rename" ? Fate::kRefuse : Fate::kGoOn; });
  Put(files, "a", "x", true);
  EXPECT_EQ(files.Rename("a", "b").error().code(), ErrorCode::kIo);
  EXPECT_TRUE(files.Remove("a").ok());
  EXPECT_THAT(disk.Contents(), SizeIs(0));
}

TEST(SimFileSystem, LocksAreSharedOrExclusive) {
  SimDisk disk;
  SimFileSystem files(disk);
  EXPECT_EQ(files.Lock("lock", LockMode::kShared).error().code(), ErrorCode::kNotFound);
  { const auto exclusive = files.Lock("lock", LockMode::kExclusive); }
  const auto one = files.Lock("lock", LockMode::kShared);
  const auto two = files.Lock("lock", LockMode::kShared);
  EXPECT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(files.Lock("lock", LockMode::kExclusive).error().code(), ErrorCode::kUnavailable);
}

TEST(SimFileSystem, TheSameSeedLosesTheSameData) {
  const auto outcome = [](std::uint64_t seed) {
    SimDisk disk;
    SimFileSystem files(disk);
    for (int i = 0; i < 20; ++i) Put(files, "f" + std::to_string(i), std::string(300, 'x'), i % 2 == 0);
    SeededRandom random(seed);
    disk.Crash(random);
    return disk.Contents();
  };
  EXPECT_EQ(outcome(7), outcome(7));
  EXPECT_NE(outcome(7), outcome(8));
}

}  // namespace
}  // namespace weightwire
