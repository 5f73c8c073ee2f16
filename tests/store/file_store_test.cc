// What only a directory has. Everything else is in conformance_test.cc.
#include "store/backends/file_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "store/bytes.h"
#include "support/temporary_directory.h"

namespace weightwire {
namespace {

using testing::Bytes;
using testing::BytesOf;
using testing::ExpectError;
using testing::kSmall;
using testing::Succeeds;
using testing::TemporaryDirectory;

class FileStoreTest : public ::testing::Test {
 protected:
  std::filesystem::path Tmp() const { return root_ / ".weightwire" / "tmp"; }

  TemporaryDirectory directory_;
  const std::filesystem::path root_ = directory_ / "a" / "run";
  FileStore store_{root_, root_.string()};
};

TEST_F(FileStoreTest, ReadingDoesNotMakeTheDirectoryAndWritingDoes) {
  ExpectError(store_.Get("x", kSmall), ErrorCode::kNotFound);
  EXPECT_TRUE(store_.List("", "", 10).value().empty());
  EXPECT_TRUE(Succeeds(store_.Remove("x")));
  EXPECT_TRUE(Succeeds(store_.Now()));
  EXPECT_FALSE(std::filesystem::exists(root_));
  EXPECT_TRUE(Succeeds(store_.Put("x/y", BytesOf("z"))));
  EXPECT_EQ(testing::ReadAll(root_ / "x" / "y"), "z");
}

// A follower that reads "not found" believes that there is nothing newer.
TEST_F(FileStoreTest, ADirectoryThatHasGoneIsNotAnEmptyOne) {
  ASSERT_TRUE(Succeeds(store_.Put("a", BytesOf("1"))));
  ExpectError(store_.Get("b", kSmall), ErrorCode::kNotFound);
  const std::filesystem::path away = directory_ / "away";
  std::filesystem::rename(root_, away);
  ExpectError(store_.Get("b", kSmall), ErrorCode::kUnavailable);
  ExpectError(store_.Stat("a"), ErrorCode::kUnavailable);
  ExpectError(store_.List("", "", 10), ErrorCode::kUnavailable);
  ExpectError(store_.Remove("a"), ErrorCode::kUnavailable);
  std::filesystem::rename(away, root_);
  ExpectError(store_.Get("b", kSmall), ErrorCode::kNotFound);
}

// What is written while a mount is away would be lost under it when it comes back.
TEST_F(FileStoreTest, ADirectoryThatHasGoneIsNotMadeAgain) {
  ASSERT_TRUE(Succeeds(store_.Put("folder/a", BytesOf("1"))));
  const auto upload = store_.StartUpload("folder/u", 1);
  ASSERT_TRUE(Succeeds(upload));
  const std::filesystem::path away = directory_ / "away";
  std::filesystem::rename(root_, away);
  ExpectError(store_.Put("folder/b", BytesOf("2")), ErrorCode::kUnavailable);
  ExpectError(store_.PutIfAbsent("c", BytesOf("3")), ErrorCode::kUnavailable);
  ExpectError(store_.StartUpload("d", 1), ErrorCode::kUnavailable);
  ASSERT_TRUE(Succeeds(upload.value()->WritePart(0, BytesOf("5"))));
  ExpectError(upload.value()->Finish(), ErrorCode::kUnavailable);
  EXPECT_FALSE(std::filesystem::exists(root_));
  std::filesystem::rename(away, root_);
  EXPECT_TRUE(Succeeds(store_.Put("folder/b", BytesOf("2"))));
  EXPECT_EQ(store_.PutIfAbsent("c", BytesOf("3")).value(), PutOutcome::kCreated);
}

TEST_F(FileStoreTest, AFileIsNoEmptyDirectory) {
  std::filesystem::create_directories(root_.parent_path());
  testing::WriteAll(root_, "not a directory");
  ExpectError(store_.Get("a", kSmall), ErrorCode::kInvalidArgument);
}

TEST_F(FileStoreTest, WritesLeaveNoTemporaryFiles) {
  ASSERT_TRUE(Succeeds(store_.Put("a", BytesOf("1"))));
  ASSERT_TRUE(Succeeds(store_.PutIfAbsent("b", BytesOf("1"))));
  ASSERT_TRUE(Succeeds(store_.PutIfAbsent("b", BytesOf("2"))));
  ASSERT_TRUE(Succeeds(store_.Now()));
  {
    const auto given_up = store_.StartUpload("c", 5);
    ASSERT_TRUE(Succeeds(given_up));
    EXPECT_EQ(testing::EntryCount(Tmp()), 1U);
    EXPECT_EQ(store_.List("", "", 10).value().size(), 2U);
  }
  EXPECT_EQ(testing::EntryCount(Tmp()), 0U);
  struct stat status {};
  ASSERT_EQ(::stat((root_ / "b").c_str(), &status), 0);
  EXPECT_EQ(status.st_nlink, 1U);
}

TEST_F(FileStoreTest, OldTemporaryFilesAreRemovedAndYoungOnesStay) {
  std::filesystem::create_directories(Tmp());
  testing::WriteAll(Tmp() / "old", "left by a crash");
  testing::WriteAll(Tmp() / "young", "being written");
  const timespec times[2] = {{1000, 0}, {1000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (Tmp() / "old").c_str(), times, 0), 0);
  ASSERT_TRUE(Succeeds(store_.PutIfAbsent("a", BytesOf("1"))));
  EXPECT_FALSE(std::filesystem::exists(Tmp() / "old"));
  EXPECT_TRUE(std::filesystem::exists(Tmp() / "young"));
}

int LinkAndLoseTheAnswer(const char* from, const char* to) {
  if (::link(from, to) != 0) return -1;
  // The client repeats the request, and the server finds the name taken: by itself.
  errno = EEXIST;
  return -1;
}

TEST_F(FileStoreTest, ALinkWhoseAnswerWasLostIsStillOurs) {
  FileStore lossy(root_, "lossy", LinkAndLoseTheAnswer);
  EXPECT_EQ(lossy.PutIfAbsent("a", BytesOf("ours")).value(), PutOutcome::kCreated);
  EXPECT_EQ(lossy.PutIfAbsent("a", BytesOf("late")).value(), PutOutcome::kExists);
  EXPECT_EQ(store_.Get("a", kSmall).value(), BytesOf("ours"));
}

int NoLinks(const char* /*from*/, const char* /*to*/) {
  errno = EPERM;
  return -1;
}

TEST_F(FileStoreTest, WithoutHardLinksAnExclusiveRenameDoesIt) {
  FileStore store(root_, "no links", NoLinks);
  EXPECT_EQ(store.PutIfAbsent("a", BytesOf("first")).value(), PutOutcome::kCreated);
  EXPECT_EQ(store.PutIfAbsent("a", BytesOf("second")).value(), PutOutcome::kExists);
  EXPECT_EQ(store.Get("a", kSmall).value(), BytesOf("first"));
  EXPECT_EQ(testing::EntryCount(Tmp()), 0U);
}

TEST_F(FileStoreTest, LinksForeignNamesAndOwnFilesAreNotListedOrRead) {
  ASSERT_TRUE(Succeeds(store_.Put("real", BytesOf("x"))));
  testing::WriteAll(directory_ / "secret", "outside");
  std::filesystem::create_symlink(directory_ / "secret", root_ / "link");
  std::filesystem::create_symlink(root_, root_ / "loop");
  testing::WriteAll(root_ / "not a key", "x");
  ASSERT_EQ(::mkfifo((root_ / "pipe").c_str(), 0600), 0);
  ASSERT_EQ(store_.List("", "", 10).value().size(), 1U);
  EXPECT_EQ(store_.List("", "", 10).value()[0].key, "real");
  ExpectError(store_.Get("link", kSmall), ErrorCode::kNotFound);
  ExpectError(store_.Stat("link"), ErrorCode::kNotFound);
  ExpectError(store_.Get("pipe", kSmall), ErrorCode::kNotFound);
}

TEST_F(FileStoreTest, AnObjectAndOthersBelowItCannotBothBe) {
  ASSERT_TRUE(Succeeds(store_.Put("a", BytesOf("x"))));
  ExpectError(store_.Put("a/b", BytesOf("x")), ErrorCode::kInvalidArgument);
  ExpectError(store_.PutIfAbsent("a/b", BytesOf("x")), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(Succeeds(store_.Put("c/d", BytesOf("x"))));
  ExpectError(store_.Put("c", BytesOf("x")), ErrorCode::kInvalidArgument);
  ExpectError(store_.PutIfAbsent("c", BytesOf("x")), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_.Get("a", kSmall).value(), BytesOf("x"));
  EXPECT_EQ(store_.Get("c/d", kSmall).value(), BytesOf("x"));
}

TEST_F(FileStoreTest, AnEmptyFolderLeftByACrashGivesWay) {
  std::filesystem::create_directories(root_ / "a");
  std::filesystem::create_directories(root_ / "b");
  EXPECT_EQ(store_.PutIfAbsent("a", BytesOf("x")).value(), PutOutcome::kCreated);
  EXPECT_TRUE(Succeeds(store_.Put("b", BytesOf("x"))));
}

TEST_F(FileStoreTest, FoldersThatComeAndGoDisturbNobody) {
  std::atomic<bool> stop = false;
  std::thread remover([&] {
    FileStore other(root_, "other");
    while (!stop) {
      EXPECT_TRUE(Succeeds(other.Put("dir/sub/theirs", BytesOf("x"))));
      EXPECT_TRUE(Succeeds(other.Remove("dir/sub/theirs")));
    }
  });
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(store_.PutIfAbsent("dir/sub/ours", BytesOf("x")).value(), PutOutcome::kCreated);
    EXPECT_TRUE(Succeeds(store_.Get("dir/sub/ours", kSmall)));
    EXPECT_TRUE(Succeeds(store_.Remove("dir/sub/ours")));
  }
  stop = true;
  remover.join();
}

TEST_F(FileStoreTest, WhereWritingIsNotAllowedThatIsSaid) {
  // Permissions do not bind the superuser, so the way in is a file where a directory is needed.
  testing::WriteAll(directory_ / "file", "x");
  FileStore store(directory_ / "file" / "run", "the run");
  const Status put = store.Put("a", BytesOf("x"));
  ASSERT_FALSE(put.ok());
  EXPECT_THAT(put.error().message(), ::testing::HasSubstr("the run"));
  ExpectError(store.Get("a", kSmall), ErrorCode::kNotFound);
  // A kernel file system in which nobody may create anything.
  FileStore kernel("/sys", "kernel");
  ExpectError(kernel.Put("weightwire-test", BytesOf("x")), ErrorCode::kRefused);
}

}  // namespace
}  // namespace weightwire
