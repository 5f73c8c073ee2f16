#include "publish/spool.h"

#include <gtest/gtest.h>

#include "log/fields.h"
#include "publish/world.h"

namespace weightwire::testing {
namespace {

Record SomeRecord(Version version, std::span<const std::uint8_t> part) {
  Record record;
  record.version = version;
  record.parent = Sha256Digest{};
  record.time = TimeText(WallTime());
  record.layout = SmallModel(1).layout->hash();
  const Sha256Digest hash = ObjectHash(part);
  record.delta = {{PartKey(version - 1, version, hash), part.size(), hash}};
  record.delta_bytes = part.size();
  return record;
}

class SpoolTest : public ::testing::Test {
 protected:
  SpoolTest() {
    SimFileSystem files(disk_);
    EXPECT_TRUE(files.MakeDirectory("/state").ok());
    EXPECT_TRUE(files.SyncDirectory("/").ok());
  }

  static Status Write(Spool& spool, Version version, const Bytes& part) {
    return spool.Write(version, ToJson(SomeRecord(version, part)), part, SmallModel(1).layout.get());
  }

  SimDisk disk_;
  const Bytes part_ = Bytes(1000, 7);
};

TEST_F(SpoolTest, WhatIsWrittenIsFoundAgain) {
  SimFileSystem files(disk_);
  Spool spool(files, "/state/spool");
  ASSERT_TRUE(spool.Recover().value().empty());
  for (const Version version : {11, 9, 10}) ASSERT_TRUE(Write(spool, version, part_).ok());
  const auto found = Spool(files, "/state/spool").Recover();
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found.value().size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(found.value()[i].entry.ok());
    const SpoolEntry& entry = found.value()[i].entry.value();
    EXPECT_EQ(entry.known.record, SomeRecord(9 + i, part_));
    EXPECT_EQ(entry.record_json, ToJson(SomeRecord(9 + i, part_)));
    EXPECT_EQ(*entry.layout, *SmallModel(1).layout);
    EXPECT_TRUE(std::ranges::equal(spool.OpenPart(9 + i).value()->bytes(), part_));
  }
  for (const Version version : {9, 10, 11}) ASSERT_TRUE(spool.Remove(version).ok());
  ASSERT_TRUE(spool.Remove(9).ok());
  EXPECT_TRUE(spool.Recover().value().empty());
}

TEST_F(SpoolTest, AnEntryIsThereWholeOrNotAtAllWhereverThePowerFails) {
  SeededRandom random(1);
  bool done = false;
  for (std::uint64_t die_at = 0; !done; ++die_at) {
    for (int round = 0; round < 10; ++round) {
      SimDisk disk;
      {
        SimFileSystem files(disk);
        ASSERT_TRUE(files.MakeDirectory("/state").ok());
        ASSERT_TRUE(files.SyncDirectory("/").ok());
      }
      std::uint64_t effects = 0;
      bool written = false;
      {
        SimFileSystem files(disk, [&](std::string_view, const FileSystem::Path&) {
          return effects++ == die_at ? SimFileSystem::Fate::kDie : SimFileSystem::Fate::kGoOn;
        });
        Spool spool(files, "/state/spool");
        written = spool.Recover().ok() && Write(spool, 3, part_).ok();
        done = !files.dead();
      }
      disk.Crash(random);
      SimFileSystem files(disk);
      Spool spool(files, "/state/spool");
      const auto found = spool.Recover();
      ASSERT_TRUE(found.ok());
      if (written) {
        ASSERT_EQ(found.value().size(), 1u);
      }
      for (const FoundEntry& entry : found.value()) {
        ASSERT_TRUE(entry.entry.ok()) << entry.entry.error().message();
        EXPECT_EQ(entry.entry.value().record_json, ToJson(SomeRecord(3, part_)));
      }
      // And another can be written in its place.
      const Bytes other(500, 9);
      ASSERT_TRUE(Write(spool, 3, other).ok());
      EXPECT_EQ(spool.Recover().value().at(0).entry.value().known.record, SomeRecord(3, other));
    }
  }
}

TEST_F(SpoolTest, AnEntryThatFailedDoesNotComeBackInPlaceOfALaterOne) {
  // The rename happened, and making it durable did not; then another entry takes its place, and the power fails.
  SeededRandom random(2);
  for (int round = 0; round < 50; ++round) {
    SimDisk disk;
    bool refuse = false;
    SimFileSystem files(disk, [&](std::string_view effect, const FileSystem::Path& path) {
      const bool last = effect == "sync directory" && path == "/state/spool";
      return refuse && (last || effect == "remove") ? SimFileSystem::Fate::kRefuse : SimFileSystem::Fate::kGoOn;
    });
    ASSERT_TRUE(files.MakeDirectory("/state").ok());
    ASSERT_TRUE(files.SyncDirectory("/").ok());
    Spool spool(files, "/state/spool");
    ASSERT_TRUE(spool.Recover().ok());
    refuse = true;
    ASSERT_FALSE(Write(spool, 3, part_).ok());
    refuse = false;
    disk.WriteBack(random);
    const Bytes other(500, 9);
    ASSERT_TRUE(Write(spool, 3, other).ok());
    disk.Crash(random);
    SimFileSystem after(disk);
    const auto found = Spool(after, "/state/spool").Recover();
    ASSERT_TRUE(found.ok());
    ASSERT_EQ(found.value().size(), 1u);
    EXPECT_EQ(found.value()[0].entry.value().known.record, SomeRecord(3, other));
  }
}

TEST_F(SpoolTest, ADamagedEntryIsNotTrusted) {
  for (const char* name : {"part.safetensors", "record.json", "layout.json"}) {
    SimFileSystem files(disk_);
    Spool spool(files, "/state/spool");
    ASSERT_TRUE(spool.Recover().ok());
    ASSERT_TRUE(Write(spool, 3, part_).ok());
    const auto map = files.MapForUpdate(FileSystem::Path("/state/spool/00000000000000000003") / name).value();
    map->ForWriting(0, map->size_bytes()).value()[20] ^= 1;
    const auto found = spool.Recover();
    ASSERT_TRUE(found.ok());
    ASSERT_EQ(found.value().size(), 1u);
    EXPECT_FALSE(found.value()[0].entry.ok()) << name;
  }
}

}  // namespace
}  // namespace weightwire::testing
