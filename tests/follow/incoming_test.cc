// Files on their way into a mirror: more of them than may be open at a time, in portions that come in any order.
#include "follow/mirror/incoming.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string_view>

#include "support/sim_file_system.h"

namespace weightwire {
namespace {

using testing::SimDisk;
using testing::SimFileSystem;
using Fate = SimFileSystem::Fate;

constexpr std::size_t kFiles = 200;
constexpr std::size_t kRows = 6;

std::string Row(std::size_t file, std::size_t row) { return fmt::format("file {:3} row {:2}; ", file, row); }

std::span<const std::uint8_t> AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::vector<AnchorFile> ManyFiles() {
  std::vector<AnchorFile> files(kFiles);
  for (std::size_t i = 0; i < kFiles; ++i) {
    files[i].name = fmt::format("shards-{}/{}.safetensors", i % 3, i);
    files[i].size_bytes = kRows * Row(i, 0).size();
  }
  return files;
}

TEST(IncomingFiles, MoreFilesThanMayBeOpenAreWrittenRowByRowAndSyncedOnceEach) {
  SimDisk disk;
  std::map<std::string, int, std::less<>> effects;
  SimFileSystem files(disk, [&](std::string_view effect, const FileSystem::Path&) {
    ++effects[std::string(effect)];
    return Fate::kGoOn;
  });
  const std::vector<AnchorFile> anchor = ManyFiles();
  auto incoming = IncomingFiles::Begin(files, "/incoming", anchor, false).value();
  for (std::size_t row = kRows; row-- > 0;) {
    for (std::size_t file = 0; file < kFiles; ++file) {
      const std::string text = Row(file, row);
      ASSERT_TRUE(incoming->WriteAt(file, row * text.size(), AsBytes(text)).ok());
    }
  }
  EXPECT_EQ(effects["sync"], 0);
  ASSERT_TRUE(incoming->Finish().ok());
  EXPECT_EQ(effects["create"], static_cast<int>(kFiles));
  EXPECT_EQ(effects["sync"], static_cast<int>(kFiles));
  ASSERT_TRUE(files.SyncDirectory("/").ok());

  SeededRandom random(1);
  disk.Crash(random);
  const std::map<std::string, std::string> left = disk.Contents();
  ASSERT_EQ(left.size(), kFiles);
  for (std::size_t file = 0; file < kFiles; ++file) {
    std::string expected;
    for (std::size_t row = 0; row < kRows; ++row) expected += Row(file, row);
    EXPECT_EQ(left.at("incoming/" + anchor[file].name), expected);
  }
}

TEST(IncomingFiles, FilesThatNothingWasWrittenToAreThereWithZeros) {
  SimDisk disk;
  SimFileSystem files(disk);
  auto incoming = IncomingFiles::Begin(files, "/incoming", ManyFiles(), false).value();
  ASSERT_TRUE(incoming->WriteAt(7, 0, AsBytes("x")).ok());
  ASSERT_TRUE(incoming->Finish().ok());
  const std::map<std::string, std::string> left = disk.Contents();
  ASSERT_EQ(left.size(), kFiles);
  EXPECT_EQ(left.at("incoming/shards-0/0.safetensors"), std::string(kRows * Row(0, 0).size(), '\0'));
  EXPECT_EQ(left.at("incoming/shards-1/7.safetensors").front(), 'x');
}

TEST(IncomingFiles, AFullDiskIsTriedAgain) {
  for (const std::string_view failing : {"create", "resize", "write"}) {
    SCOPED_TRACE(failing);
    SimDisk disk;
    bool full = true;
    SimFileSystem files(disk, [&](std::string_view effect, const FileSystem::Path&) {
      return effect == failing && full ? Fate::kRefuse : Fate::kGoOn;
    });
    auto incoming = IncomingFiles::Begin(files, "/incoming", ManyFiles(), false).value();
    EXPECT_FALSE(incoming->WriteAt(3, 1, AsBytes("x")).ok());
    EXPECT_FALSE(incoming->WriteAt(3, 1, AsBytes("x")).ok());
    full = false;
    EXPECT_TRUE(incoming->WriteAt(3, 1, AsBytes("x")).ok());
    ASSERT_TRUE(incoming->Finish().ok());
    const std::string text = disk.Contents().at("incoming/shards-0/3.safetensors");
    EXPECT_EQ(text.size(), kRows * Row(3, 0).size());
    EXPECT_EQ(text[1], 'x');
  }
}

}  // namespace
}  // namespace weightwire
