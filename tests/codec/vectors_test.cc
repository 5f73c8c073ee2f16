// The golden files of spec/vectors: good ones decode to what is expected, bad ones are refused for the right reason,
// and the encoder still writes the same bytes.
#include "codec/vectors.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "support/temporary_directory.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

std::filesystem::path VectorsDirectory() { return std::filesystem::path(WEIGHTWIRE_SOURCE_DIR) / "spec/vectors"; }

Bytes FileAt(const std::filesystem::path& path) {
  const std::string text = ReadAll(path);
  return {text.begin(), text.end()};
}

std::set<std::string> NamesIn(const std::filesystem::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.insert(entry.path().filename());
  return names;
}

// As `weightwire apply` does: the base seen through the layout the delta applies to.
Result<Model> Apply(const std::filesystem::path& folder) {
  const Bytes delta = FileAt(folder / "delta.safetensors");
  WW_TRY(const DeltaFile file, DeltaFile::Parse(delta));
  WW_TRY(const Checkpoint opened, Checkpoint::Open(folder / "base.safetensors"));
  WW_TRY(const Layout layout, LayoutForDelta(file, opened.layout()));
  WW_TRY(const Checkpoint checkpoint, opened.ViewAs(layout));
  Model base;
  base.layout = std::make_shared<const Layout>(checkpoint.layout());
  for (std::size_t i = 0; i < base.layout->size(); ++i) {
    base.tensors.emplace_back(checkpoint.bytes(i).begin(), checkpoint.bytes(i).end());
  }
  WW_TRY(const auto change, StageDelta(file, ViewOf(base), BestKernels(), OneThread()));
  return Written(base, *change);
}

TEST(Vectors, GoodFilesDecodeToTheExpectedState) {
  const auto names = NamesIn(VectorsDirectory() / "good");
  EXPECT_GE(names.size(), 60u);
  for (const std::string& name : names) {
    const std::filesystem::path folder = VectorsDirectory() / "good" / name;
    const auto after = Apply(folder);
    ASSERT_TRUE(after.ok()) << name << ": " << after.error().message();
    const auto expected = Checkpoint::Open(folder / "expected.safetensors");
    ASSERT_TRUE(expected.ok()) << name;
    const auto seen = expected.value().ViewAs(*after.value().layout);
    ASSERT_TRUE(seen.ok()) << name << ": " << seen.error().message();
    for (std::size_t i = 0; i < after.value().tensors.size(); ++i) {
      const auto bytes = seen.value().bytes(i);
      EXPECT_TRUE(
          std::equal(bytes.begin(), bytes.end(), after.value().tensors[i].begin(), after.value().tensors[i].end()))
          << name << ", tensor " << after.value().layout->tensors()[i].name;
    }
  }
}

TEST(Vectors, BadFilesAreRefusedForTheExpectedReason) {
  const auto names = NamesIn(VectorsDirectory() / "bad");
  EXPECT_GE(names.size(), 80u);
  for (const std::string& name : names) {
    const std::filesystem::path folder = VectorsDirectory() / "bad" / name;
    const auto after = Apply(folder);
    ASSERT_FALSE(after.ok()) << name;
    std::string word = "damaged";
    if (after.error().code() == ErrorCode::kMismatch) word = "wrong-base";
    if (after.error().code() == ErrorCode::kUnsupported) word = "unsupported";
    if (word == "damaged") {
      EXPECT_TRUE(after.error().code() == ErrorCode::kCorrupt || after.error().code() == ErrorCode::kLimit) << name;
    }
    EXPECT_EQ(word + "\n", ReadAll(folder / "expected.txt")) << name << ": " << after.error().message();
  }
}

TEST(Vectors, TheEncoderWritesTheGoodFiles) {
  std::set<std::string> made;
  for (const GoodVector& good : GoodVectors().Make()) {
    const std::filesystem::path folder = VectorsDirectory() / "good" / good.name;
    ASSERT_TRUE(std::filesystem::exists(folder)) << good.name << ": run ./dev vectors";
    EXPECT_EQ(good.base, FileAt(folder / "base.safetensors")) << good.name;
    EXPECT_TRUE(good.delta == FileAt(folder / "delta.safetensors"))
        << good.name << ": the encoder writes other bytes; if it should, run ./dev vectors";
    EXPECT_EQ(good.expected, FileAt(folder / "expected.safetensors")) << good.name;
    made.insert(good.name);
  }
  EXPECT_EQ(NamesIn(VectorsDirectory() / "good"), made);
}

TEST(Vectors, TheBadFilesAreReproduced) {
  std::set<std::string> made;
  for (const BadVector& bad : BadVectors().Make()) {
    const std::filesystem::path folder = VectorsDirectory() / "bad" / bad.name;
    ASSERT_TRUE(std::filesystem::exists(folder)) << bad.name << ": run ./dev vectors";
    EXPECT_EQ(bad.base, FileAt(folder / "base.safetensors")) << bad.name;
    EXPECT_TRUE(bad.delta == FileAt(folder / "delta.safetensors")) << bad.name << ": run ./dev vectors";
    made.insert(bad.name);
  }
  EXPECT_EQ(NamesIn(VectorsDirectory() / "bad"), made);
}

std::uintmax_t SizeOf(const std::filesystem::path& folder) {
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

// A clone of the repository should stay small.
TEST(Vectors, StayBelowTheirSizeLimit) {
  EXPECT_LE(SizeOf(VectorsDirectory() / "good") + SizeOf(VectorsDirectory() / "bad"), 1U << 21);
  EXPECT_LE(SizeOf(VectorsDirectory() / "objects"), 1U << 18);
}

}  // namespace
}  // namespace weightwire
