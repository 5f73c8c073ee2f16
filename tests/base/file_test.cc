#include "base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <string>
#include <vector>

#include "support/temporary_directory.h"

namespace weightwire {
namespace {

using ::testing::HasSubstr;
using ::weightwire::testing::EntryCount;
using ::weightwire::testing::ReadAll;
using ::weightwire::testing::TemporaryDirectory;
using ::weightwire::testing::WriteAll;

std::span<const std::uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

TEST(File, WritesAndReadsAtAnOffset) {
  const TemporaryDirectory directory;
  const auto file = File::Create(directory / "f");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file.value().WriteAt(2, Bytes("cd")).ok());
  ASSERT_TRUE(file.value().WriteAt(0, Bytes("ab")).ok());
  ASSERT_TRUE(file.value().Sync().ok());
  EXPECT_EQ(file.value().size().value(), 4U);
  EXPECT_EQ(ReadAll(directory / "f"), "abcd");

  std::array<std::uint8_t, 2> read{};
  const auto reopened = File::OpenForRead(directory / "f");
  ASSERT_TRUE(reopened.value().ReadAt(1, read).ok());
  EXPECT_EQ(read, (std::array<std::uint8_t, 2>{'b', 'c'}));

  const Status past_end = reopened.value().ReadAt(3, read);
  ASSERT_FALSE(past_end.ok());
  EXPECT_EQ(past_end.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(past_end.error().message(),
            "cannot read " + (directory / "f").string() + ": it ends at byte 4, 1 bytes too early");
}

TEST(File, UpdateKeepsTheRest) {
  const TemporaryDirectory directory;
  WriteAll(directory / "f", "abcd");
  ASSERT_TRUE(File::OpenForUpdate(directory / "f").value().WriteAt(1, Bytes("X")).ok());
  EXPECT_EQ(ReadAll(directory / "f"), "aXcd");
}

TEST(File, ErrorsNameThePathAndTheReason) {
  const TemporaryDirectory directory;
  const auto missing = File::OpenForRead(directory / "nothing");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(missing.error().message(),
            "cannot open " + (directory / "nothing").string() + ": No such file or directory");
  EXPECT_FALSE(File::OpenForUpdate(directory / "nothing").ok());

  WriteAll(directory / "taken", "old");
  const auto taken = File::Create(directory / "taken");
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ReadAll(directory / "taken"), "old");
}

TEST(MappedFile, HoldsTheBytesAndMoves) {
  const TemporaryDirectory directory;
  WriteAll(directory / "f", "abc");
  auto opened = MappedFile::Open(directory / "f");
  ASSERT_TRUE(opened.ok());
  const std::uint8_t* data = opened.value().bytes().data();
  const MappedFile map = std::move(opened).value();
  EXPECT_EQ(map.bytes().data(), data);
  EXPECT_EQ(std::string(map.bytes().begin(), map.bytes().end()), "abc");
}

TEST(MappedFile, AnEmptyFileIsAnEmptySpan) {
  const TemporaryDirectory directory;
  WriteAll(directory / "f", "");
  const auto map = MappedFile::Open(directory / "f");
  ASSERT_TRUE(map.ok());
  EXPECT_TRUE(map.value().bytes().empty());
}

TEST(MappedFile, ADirectoryIsAnError) {
  const TemporaryDirectory directory;
  const auto map = MappedFile::Open(directory.path());
  ASSERT_FALSE(map.ok());
  EXPECT_EQ(map.error().code(), ErrorCode::kInvalidArgument);
}

// It would be waited for, and nobody may ever write to it.
TEST(MappedFile, APipeIsAnError) {
  const TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  const auto map = MappedFile::Open(directory / "pipe");
  ASSERT_FALSE(map.ok());
  EXPECT_EQ(map.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(map.error().message(), HasSubstr("not a regular file"));
}

TEST(MappedFile, AboveFourGigabytes) {
  const TemporaryDirectory directory;
  constexpr std::uint64_t kSize = (std::uint64_t{1} << 32) + 7;
  ASSERT_TRUE(File::Create(directory / "f").value().WriteAt(kSize - 1, Bytes("!")).ok());
  const auto map = MappedFile::Open(directory / "f");
  ASSERT_TRUE(map.ok());
  ASSERT_EQ(map.value().bytes().size(), kSize);
  EXPECT_EQ(map.value().bytes().back(), '!');
}

TEST(CopyFile, CopiesButNeverOverwrites) {
  const TemporaryDirectory directory;
  WriteAll(directory / "from", "abc");
  ASSERT_TRUE(CopyFile(directory / "from", directory / "to").ok());
  EXPECT_EQ(ReadAll(directory / "to"), "abc");
  WriteAll(directory / "from", "changed");
  EXPECT_FALSE(CopyFile(directory / "from", directory / "to").ok());
  EXPECT_EQ(ReadAll(directory / "to"), "abc");
}

TEST(Rename, RefusesOrReplaces) {
  const TemporaryDirectory directory;
  WriteAll(directory / "from", "new");
  WriteAll(directory / "to", "old");
  const Status refused = Rename(directory / "from", directory / "to", Existing::kRefuse);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message(),
            (directory / "to").string() + " already exists; remove it or choose another name");
  EXPECT_EQ(ReadAll(directory / "to"), "old");
  ASSERT_TRUE(Rename(directory / "from", directory / "to", Existing::kReplace).ok());
  EXPECT_EQ(ReadAll(directory / "to"), "new");
}

TEST(AtomicFile, AppearsOnlyWhenCommitted) {
  const TemporaryDirectory directory;
  auto file = AtomicFile::Create(directory / "f", Existing::kRefuse);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file.value().Append(Bytes("ab")).ok());
  ASSERT_TRUE(file.value().Append(Bytes("cd")).ok());
  EXPECT_FALSE(std::filesystem::exists(directory / "f"));
  ASSERT_TRUE(file.value().Commit().ok());
  EXPECT_EQ(ReadAll(directory / "f"), "abcd");
  EXPECT_EQ(EntryCount(directory.path()), 1U);
}

TEST(AtomicFile, RemovesTheTemporaryFileWhenDropped) {
  const TemporaryDirectory directory;
  {
    auto file = AtomicFile::Create(directory / "f", Existing::kReplace);
    ASSERT_TRUE(file.value().Append(Bytes("ab")).ok());
    EXPECT_EQ(EntryCount(directory.path()), 1U);
  }
  EXPECT_EQ(EntryCount(directory.path()), 0U);
}

TEST(AtomicFile, RefusesANameThatExistsBeforeOrAtCommit) {
  const TemporaryDirectory directory;
  {
    auto late = AtomicFile::Create(directory / "f", Existing::kRefuse);
    WriteAll(directory / "f", "somebody else's");
    EXPECT_FALSE(AtomicFile::Create(directory / "f", Existing::kRefuse).ok());
    EXPECT_FALSE(late.value().Commit().ok());
  }
  EXPECT_EQ(ReadAll(directory / "f"), "somebody else's");
  EXPECT_EQ(EntryCount(directory.path()), 1U);

  auto replacing = AtomicFile::Create(directory / "f", Existing::kReplace);
  ASSERT_TRUE(replacing.value().Append(Bytes("ours")).ok());
  ASSERT_TRUE(replacing.value().Commit().ok());
  EXPECT_EQ(ReadAll(directory / "f"), "ours");
}

TEST(AtomicFile, ErrorsNameTheWantedFile) {
  const TemporaryDirectory directory;
  const auto file = AtomicFile::Create(directory / "no/such/f", Existing::kReplace);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code(), ErrorCode::kNotFound);
  EXPECT_TRUE(file.error().message().starts_with("cannot write " + (directory / "no/such/f").string()))
      << file.error().message();
}

}  // namespace
}  // namespace weightwire
