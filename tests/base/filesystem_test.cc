// One contract for the file system of this machine and for the one in memory.
#include "base/filesystem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "base/real_file_system.h"
#include "support/sim_file_system.h"
#include "support/temporary_directory.h"

namespace weightwire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::SimDisk;
using testing::SimFileSystem;
using testing::TemporaryDirectory;

std::span<const std::uint8_t> BytesOf(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

class FileSystemTest : public ::testing::TestWithParam<bool> {
 protected:
  FileSystemTest() {
    if (GetParam()) {
      files_ = std::make_unique<RealFileSystem>();
      root_ = directory_.path();
    } else {
      files_ = std::make_unique<SimFileSystem>(disk_);
      root_ = "root";
      EXPECT_TRUE(files_->MakeDirectory(root_).ok());
    }
  }

  void Put(const std::string& name, std::string_view text) {
    auto file = files_->Create(root_ / name);
    ASSERT_TRUE(file.ok()) << file.error().message();
    ASSERT_TRUE(file.value()->Append(BytesOf(text)).ok());
    ASSERT_TRUE(file.value()->Sync().ok());
  }
  std::string Get(const std::string& name) {
    const auto bytes = files_->Read(root_ / name, 1000);
    return bytes.ok() ? std::string(bytes.value().begin(), bytes.value().end()) : bytes.error().message();
  }
  FileKind KindOf(const std::string& name) { return files_->Stat(root_ / name).value().value().kind; }

  TemporaryDirectory directory_;
  SimDisk disk_;
  std::unique_ptr<FileSystem> files_;
  std::filesystem::path root_;
};

INSTANTIATE_TEST_SUITE_P(, FileSystemTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "Real" : "Simulated"; });

TEST_P(FileSystemTest, FilesAreCreatedOnceAndReadWithinALimit) {
  Put("a", "hello");
  EXPECT_EQ(Get("a"), "hello");
  EXPECT_EQ(files_->Read(root_ / "a", 4).error().code(), ErrorCode::kLimit);
  EXPECT_EQ(files_->Read(root_ / "b", 4).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(files_->Create(root_ / "a").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(files_->Stat(root_ / "a").value(), (FileInfo{FileKind::kFile, 5}));
  EXPECT_FALSE(files_->Stat(root_ / "b").value().has_value());
  EXPECT_FALSE(files_->Stat(root_ / "a" / "below").value().has_value());
}

TEST_P(FileSystemTest, WritesPortionsInAnyOrder) {
  {
    const auto file = files_->Create(root_ / "a");
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file.value()->Resize(8).ok());
    ASSERT_TRUE(file.value()->WriteAt(6, BytesOf("67")).ok());
    ASSERT_TRUE(file.value()->WriteAt(0, BytesOf("012")).ok());
  }
  EXPECT_EQ(Get("a"), std::string("012\0\0\0"
                                  "67",
                                  8));
}

TEST_P(FileSystemTest, MapsShowWhatIsWritten) {
  Put("a", "hello");
  const auto map = files_->Map(root_ / "a");
  ASSERT_TRUE(map.ok());
  const auto update = files_->MapForUpdate(root_ / "a");
  ASSERT_TRUE(update.ok());
  EXPECT_EQ(update.value()->size_bytes(), 5U);
  const auto bytes = update.value()->ForWriting(1, 2);
  ASSERT_TRUE(bytes.ok());
  bytes.value()[0] = 'u';
  EXPECT_TRUE(update.value()->Sync().ok());
  EXPECT_EQ(map.value()->bytes()[1], 'u');
  EXPECT_EQ(Get("a"), "hullo");
}

TEST_P(FileSystemTest, AnEmptyFileIsAnEmptyMap) {
  Put("a", "");
  EXPECT_THAT(files_->Map(root_ / "a").value()->bytes(), IsEmpty());
  EXPECT_EQ(files_->MapForUpdate(root_ / "a").value()->size_bytes(), 0U);
}

TEST_P(FileSystemTest, AMapKeepsTheContentOfAReplacedFile) {
  Put("a", "old");
  Put("b", "new");
  const auto map = files_->Map(root_ / "a");
  ASSERT_TRUE(files_->Rename(root_ / "b", root_ / "a").ok());
  EXPECT_EQ(map.value()->bytes()[0], 'o');
  EXPECT_EQ(Get("a"), "new");
  EXPECT_THAT(files_->List(root_).value(), ElementsAre("a"));
}

TEST_P(FileSystemTest, ACloneIsIndependent) {
  Put("a", "same");
  {
    const auto clone = files_->Clone(root_ / "a", root_ / "b");
    ASSERT_TRUE(clone.ok()) << clone.error().message();
    EXPECT_TRUE(clone.value()->Sync().ok());
  }
  files_->MapForUpdate(root_ / "b").value()->ForWriting(0, 1).value()[0] = 'l';
  EXPECT_EQ(Get("a"), "same");
  EXPECT_EQ(Get("b"), "lame");
  EXPECT_FALSE(files_->Clone(root_ / "a", root_ / "b").ok());
}

TEST_P(FileSystemTest, DirectoriesAreListedSortedAndRemovedEmpty) {
  ASSERT_TRUE(files_->MakeDirectory(root_ / "d").ok());
  EXPECT_FALSE(files_->MakeDirectory(root_ / "d").ok());
  Put("d/b", "");
  Put("d/a", "");
  EXPECT_EQ(KindOf("d"), FileKind::kDirectory);
  EXPECT_THAT(files_->List(root_ / "d").value(), ElementsAre("a", "b"));
  EXPECT_FALSE(files_->RemoveDirectory(root_ / "d").ok());
  EXPECT_FALSE(files_->Remove(root_ / "d").ok());
  EXPECT_TRUE(files_->SyncDirectory(root_ / "d").ok());
  EXPECT_EQ(files_->List(root_ / "e").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(files_->Map(root_ / "d").error().code(), ErrorCode::kInvalidArgument);
}

TEST_P(FileSystemTest, LinksAreReadThroughButNotWrittenThrough) {
  ASSERT_TRUE(files_->MakeDirectory(root_ / "d").ok());
  Put("d/a", "text");
  ASSERT_TRUE(files_->MakeLink("d", root_ / "to_directory").ok());
  ASSERT_TRUE(files_->MakeLink("d/a", root_ / "to_file").ok());
  EXPECT_EQ(KindOf("to_file"), FileKind::kLink);
  EXPECT_EQ(files_->ReadLink(root_ / "to_directory").value(), "d");
  EXPECT_EQ(Get("to_directory/a"), "text");
  EXPECT_EQ(Get("to_file"), "text");
  EXPECT_EQ(files_->MapForUpdate(root_ / "to_file").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(files_->Create(root_ / "to_file").ok());
  EXPECT_FALSE(files_->MakeLink("d", root_ / "to_file").ok());
  // A link is replaced, not what it points to.
  ASSERT_TRUE(files_->MakeLink("nowhere", root_ / "new").ok());
  ASSERT_TRUE(files_->Rename(root_ / "new", root_ / "to_directory").ok());
  EXPECT_EQ(files_->ReadLink(root_ / "to_directory").value(), "nowhere");
  EXPECT_EQ(Get("d/a"), "text");
}

TEST_P(FileSystemTest, TheBootHasAnId) {
  EXPECT_NE(files_->BootId(), "");
  EXPECT_EQ(files_->BootId(), files_->BootId());
}

TEST_P(FileSystemTest, LocksNeverWait) {
  EXPECT_EQ(files_->Lock(root_ / "lock", LockMode::kShared).error().code(), ErrorCode::kNotFound);
  {
    const auto lock = files_->Lock(root_ / "lock", LockMode::kExclusive);
    ASSERT_TRUE(lock.ok());
    EXPECT_EQ(files_->Lock(root_ / "lock", LockMode::kShared).error().code(), ErrorCode::kUnavailable);
    EXPECT_EQ(files_->Lock(root_ / "lock", LockMode::kExclusive).error().code(), ErrorCode::kUnavailable);
  }
  const auto one = files_->Lock(root_ / "lock", LockMode::kShared);
  const auto two = files_->Lock(root_ / "lock", LockMode::kShared);
  EXPECT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(files_->Lock(root_ / "lock", LockMode::kExclusive).error().code(), ErrorCode::kUnavailable);
}

TEST_P(FileSystemTest, WriteDurablyReplacesAndRemovesLeftoversOfACrash) {
  Put("a.tmp", "left by a crash");
  ASSERT_TRUE(WriteDurably(*files_, root_ / "a", "one").ok());
  ASSERT_TRUE(WriteDurably(*files_, root_ / "a", "two").ok());
  EXPECT_EQ(Get("a"), "two");
  EXPECT_THAT(files_->List(root_).value(), ElementsAre("a"));
}

TEST_P(FileSystemTest, RemoveTreeDoesNotFollowLinks) {
  ASSERT_TRUE(files_->MakeDirectory(root_ / "kept").ok());
  Put("kept/a", "");
  ASSERT_TRUE(files_->MakeDirectory(root_ / "d").ok());
  ASSERT_TRUE(files_->MakeDirectory(root_ / "d" / "e").ok());
  Put("d/e/f", "");
  ASSERT_TRUE(files_->MakeLink("../kept", root_ / "d" / "link").ok());
  ASSERT_TRUE(RemoveTree(*files_, root_ / "d").ok());
  ASSERT_TRUE(RemoveTree(*files_, root_ / "d").ok());
  EXPECT_THAT(files_->List(root_).value(), ElementsAre("kept"));
  EXPECT_THAT(files_->List(root_ / "kept").value(), ElementsAre("a"));
}

TEST(WriteDurably, ACrashLeavesTheOldFileOrTheNewOne) {
  std::uint64_t effects = 1;
  int old_files = 0;
  int new_files = 0;
  for (std::uint64_t stop = 0; stop < effects; ++stop) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      SimDisk disk;
      {
        SimFileSystem files(disk);
        ASSERT_TRUE(WriteDurably(files, "a", std::string(200, 'o')).ok());
      }
      std::uint64_t count = 0;
      SimFileSystem files(disk, [&](std::string_view, const auto&) {
        return count++ == stop ? SimFileSystem::Fate::kDie : SimFileSystem::Fate::kGoOn;
      });
      ASSERT_FALSE(WriteDurably(files, "a", std::string(150, 'n')).ok());
      SeededRandom random(seed);
      disk.Crash(random);
      const std::string text = disk.Contents().at("a");
      old_files += text == std::string(200, 'o');
      new_files += text == std::string(150, 'n');
      EXPECT_TRUE(text == std::string(200, 'o') || text == std::string(150, 'n')) << stop;
    }
    SimDisk disk;
    SimFileSystem files(disk);
    ASSERT_TRUE(WriteDurably(files, "a", "n").ok());
    effects = files.effects();
  }
  EXPECT_EQ(effects, 5U) << "create, append, sync, rename, sync directory";
  EXPECT_GT(old_files, 0);
  EXPECT_GT(new_files, 0);
}

TEST(RealFileSystem, RefusesMissingFilesAndLinks) {
  const TemporaryDirectory directory;
  RealFileSystem files;
  const auto missing = files.MapForUpdate(directory / "none");
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(files.MakeLink("none", directory / "link").ok());
  EXPECT_THAT(files.MapForUpdate(directory / "link").error().message(), HasSubstr("it is a link"));
  EXPECT_FALSE(files.Lock(directory / "link", LockMode::kExclusive).ok());
}

}  // namespace
}  // namespace weightwire
