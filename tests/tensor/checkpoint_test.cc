#include "tensor/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoints.h"
#include "support/owned_tensor.h"

namespace weightwire {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::weightwire::testing::BytesOf;
using ::weightwire::testing::TemporaryDirectory;
using ::weightwire::testing::Tensor;
using ::weightwire::testing::WriteAll;
using ::weightwire::testing::WriteTensors;
using Buffer = std::vector<std::uint8_t>;

std::string OpenError(const std::filesystem::path& path) {
  const auto checkpoint = Checkpoint::Open(path);
  return checkpoint.ok() ? "accepted" : checkpoint.error().message();
}

TEST(Checkpoint, OpensOneFile) {
  const TemporaryDirectory directory;
  WriteTensors(directory / "any.safetensors", {Tensor("b", {1, 2}), Tensor("a", {3})}, {{"format", "pt"}});
  const auto opened = Checkpoint::Open(directory / "any.safetensors");
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  const Checkpoint& checkpoint = opened.value();
  EXPECT_EQ(checkpoint.layout().tensors()[0].name, "a");
  EXPECT_EQ(BytesOf(checkpoint, "a"), Buffer{3});
  EXPECT_EQ(BytesOf(checkpoint, "b"), (Buffer{1, 2}));
  EXPECT_TRUE(checkpoint.layout().aliases().empty());
  EXPECT_TRUE(checkpoint.directory().empty());
  ASSERT_EQ(checkpoint.files().size(), 1U);
  EXPECT_EQ(checkpoint.files()[0].tensors, (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(checkpoint.files()[0].metadata, (Metadata{{"format", "pt"}}));
}

TEST(Checkpoint, CopiesShareTheDataAndOutliveTheOriginal) {
  const TemporaryDirectory directory;
  WriteTensors(directory / "f", {Tensor("a", {1, 2})});
  auto original = std::make_unique<Checkpoint>(Checkpoint::Open(directory / "f").value());
  const Checkpoint copy = *original;
  EXPECT_EQ(copy.bytes(0).data(), original->bytes(0).data());
  original.reset();
  EXPECT_EQ(BytesOf(copy, "a"), (Buffer{1, 2}));
}

TEST(Checkpoint, DirectoryWithOneFileWinsOverTheIndex) {
  const TemporaryDirectory directory;
  WriteTensors(directory / kSingleFileName, {Tensor("a", {1})});
  WriteAll(directory / kIndexFileName, "not read");
  const auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
  EXPECT_EQ(checkpoint.value().directory(), directory.path());
  EXPECT_FALSE(checkpoint.value().has_index());
  EXPECT_EQ(BytesOf(checkpoint.value(), "a"), Buffer{1});
}

class ShardedCheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteTensors(directory_ / "1.safetensors", {Tensor("b", {1, 2}), Tensor("d", {5})});
    WriteTensors(directory_ / "2.safetensors", {Tensor("a", {3}), Tensor("c", {4})});
    WriteAll(directory_ / kIndexFileName, Index(R"("a":"2.safetensors","b":"1.safetensors","c":"2.safetensors")"
                                                R"(,"d":"1.safetensors")"));
  }

  static std::string Index(const std::string& entries) { return R"({"weight_map":{)" + entries + "}}"; }

  TemporaryDirectory directory_;
};

TEST_F(ShardedCheckpointTest, GathersTheShards) {
  const auto checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
  EXPECT_TRUE(checkpoint.value().has_index());
  EXPECT_EQ(checkpoint.value().layout().size(), 4U);
  EXPECT_EQ(BytesOf(checkpoint.value(), "a"), Buffer{3});
  EXPECT_EQ(BytesOf(checkpoint.value(), "b"), (Buffer{1, 2}));
  EXPECT_EQ(BytesOf(checkpoint.value(), "d"), Buffer{5});
}

TEST_F(ShardedCheckpointTest, FollowsLinksToFiles) {
  std::filesystem::rename(directory_ / "1.safetensors", directory_ / "blob");
  std::filesystem::create_symlink("blob", directory_ / "1.safetensors");
  EXPECT_EQ(OpenError(directory_.path()), "accepted");
}

TEST_F(ShardedCheckpointTest, RefusesATensorThatTheIndexDoesNotName) {
  WriteAll(directory_ / kIndexFileName, Index(R"("a":"2.safetensors","b":"1.safetensors","d":"1.safetensors")"));
  EXPECT_THAT(OpenError(directory_.path()),
              EndsWith(": 2.safetensors holds tensor \"c\", which model.safetensors.index.json does not name"));
}

TEST_F(ShardedCheckpointTest, RefusesATensorThatIsInNoShard) {
  WriteAll(directory_ / kIndexFileName,
           Index(R"("a":"2.safetensors","b":"1.safetensors","c":"2.safetensors","d":"1.safetensors")"
                 R"(,"e":"1.safetensors")"));
  EXPECT_THAT(OpenError(directory_.path()),
              EndsWith(": model.safetensors.index.json says that tensor \"e\" is in \"1.safetensors\", but it is not"));
}

TEST_F(ShardedCheckpointTest, RefusesATensorInAnotherShardThanTheIndexSays) {
  WriteAll(directory_ / kIndexFileName,
           Index(R"("a":"1.safetensors","b":"1.safetensors","c":"2.safetensors","d":"1.safetensors")"));
  EXPECT_THAT(OpenError(directory_.path()),
              EndsWith(": 2.safetensors holds tensor \"a\", but model.safetensors.index.json says it is in "
                       "\"1.safetensors\""));
}

TEST_F(ShardedCheckpointTest, RefusesATensorInTwoShards) {
  WriteTensors(directory_ / "2.safetensors", {Tensor("a", {3}), Tensor("c", {4}), Tensor("b", {1, 2})});
  EXPECT_THAT(OpenError(directory_.path()), HasSubstr("2.safetensors holds tensor \"b\""));
}

TEST_F(ShardedCheckpointTest, RefusesAMissingShard) {
  std::filesystem::remove(directory_ / "2.safetensors");
  const auto checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_EQ(checkpoint.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(checkpoint.error().message(), HasSubstr("2.safetensors"));
}

TEST_F(ShardedCheckpointTest, NamesADamagedShard) {
  WriteAll(directory_ / "2.safetensors", "short");
  EXPECT_THAT(OpenError(directory_.path()), HasSubstr("2.safetensors: not a safetensors file"));
}

TEST_F(ShardedCheckpointTest, RefusesAShardOutsideTheDirectory) {
  WriteAll(directory_ / kIndexFileName, Index(R"("a":"../x.safetensors")"));
  EXPECT_THAT(OpenError(directory_.path()), HasSubstr("not a plain file name"));
}

TEST(Checkpoint, RefusesADirectoryWithoutWeights) {
  const TemporaryDirectory directory;
  const auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_EQ(checkpoint.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(checkpoint.error().message(), HasSubstr("holds neither model.safetensors nor"));
}

TEST(Checkpoint, OpensAnAdapterIfThereAreNoOtherWeights) {
  const TemporaryDirectory directory;
  WriteTensors(directory / kAdapterFileName, {Tensor("lora_A", {1})}, {});
  const auto adapter = Checkpoint::Open(directory.path());
  ASSERT_TRUE(adapter.ok()) << adapter.error().message();
  EXPECT_TRUE(adapter.value().layout().Find("lora_A").has_value());
  WriteTensors(directory / kSingleFileName, {Tensor("whole", {1})}, {});
  EXPECT_TRUE(Checkpoint::Open(directory.path()).value().layout().Find("whole").has_value());
}

TEST(Checkpoint, RefusesAMissingPath) {
  EXPECT_EQ(Checkpoint::Open("no/such/file").error().code(), ErrorCode::kNotFound);
}

TEST(Checkpoint, ReadsTiesFromTheMetadata) {
  const TemporaryDirectory directory;
  WriteTensors(directory / "f", {Tensor("embed", {1}), Tensor("equal", {1})},
               {{"format", "pt"}, {"lm_head", "embed"}, {"equal", "embed"}});
  const auto checkpoint = Checkpoint::Open(directory / "f");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message();
  EXPECT_EQ(checkpoint.value().layout().aliases(), (Aliases{{"lm_head", "embed"}}));
  EXPECT_EQ(checkpoint.value().layout().size(), 2U);
}

TEST(Checkpoint, TiesMayCrossShardsButNotContradict) {
  const TemporaryDirectory directory;
  WriteTensors(directory / "1", {Tensor("a", {1})}, {{"t", "b"}});
  WriteTensors(directory / "2", {Tensor("b", {1})}, {{"t", "b"}});
  WriteAll(directory / kIndexFileName, R"({"weight_map":{"a":"1","b":"2"}})");
  EXPECT_EQ(Checkpoint::Open(directory.path()).value().layout().aliases(), (Aliases{{"t", "b"}}));
  WriteTensors(directory / "2", {Tensor("b", {1})}, {{"t", "a"}});
  EXPECT_THAT(OpenError(directory.path()), HasSubstr("ties \"t\" to \"b\" in one shard and to \"a\" in another"));
}

class ViewAsTest : public ::testing::Test {
 protected:
  const Layout tied_ =
      Layout::Make({Tensor("embed", {1, 2}).spec, Tensor("norm", {3}).spec}, {{"head", "embed"}}).value();

  std::string Error(std::vector<OwnedTensor> tensors, Aliases aliases = {}) {
    const auto view = testing::CheckpointOf(std::move(tensors), std::move(aliases)).value().ViewAs(tied_);
    if (view.ok()) return "accepted";
    EXPECT_EQ(view.error().code(), ErrorCode::kMismatch);
    return view.error().message();
  }
};

TEST_F(ViewAsTest, AcceptsACheckpointWithBothNamesOfATie) {
  const auto both =
      testing::CheckpointOf({Tensor("embed", {1, 2}), Tensor("head", {1, 2}), Tensor("norm", {3})}).value();
  const auto view = both.ViewAs(tied_);
  ASSERT_TRUE(view.ok()) << view.error().message();
  EXPECT_EQ(view.value().layout(), tied_);
  EXPECT_EQ(BytesOf(view.value(), "embed"), (Buffer{1, 2}));
  EXPECT_EQ(BytesOf(view.value(), "norm"), Buffer{3});
  EXPECT_EQ(view.value().file_layout(), both.layout());
}

TEST_F(ViewAsTest, AcceptsACheckpointThatKeepsTheOtherName) {
  const auto other = testing::CheckpointOf({Tensor("head", {1, 2}), Tensor("norm", {3})}, {{"embed", "head"}}).value();
  const auto view = other.ViewAs(tied_);
  ASSERT_TRUE(view.ok()) << view.error().message();
  EXPECT_EQ(BytesOf(view.value(), "embed"), (Buffer{1, 2}));
}

TEST_F(ViewAsTest, AcceptsACheckpointThatLostTheSecondName) {
  EXPECT_EQ(Error({Tensor("embed", {1, 2}), Tensor("norm", {3})}), "accepted");
}

TEST_F(ViewAsTest, IgnoresRecordedNamesOutsideTheLayout) {
  EXPECT_EQ(Error({Tensor("embed", {1, 2}), Tensor("norm", {3})}, {{"head", "embed"}, {"more", "norm"}}), "accepted");
}

TEST_F(ViewAsTest, MismatchesNameTheTensors) {
  EXPECT_EQ(Error({Tensor("embed", {1, 2}), Tensor("head", {1, 9}), Tensor("norm", {3})}),
            "\"head\" and \"embed\" should be one tied tensor, but they differ in the checkpoint");
  EXPECT_EQ(Error({Tensor("embed", {1, 2}), {{"head", DType::kU8, {2, 1}}, {1, 2}}, Tensor("norm", {3})}),
            "\"head\" and \"embed\" should be one tied tensor, but they differ in the checkpoint");
  EXPECT_EQ(Error({Tensor("embed", {1, 2}), Tensor("norm", {3})}, {{"head", "norm"}}),
            "\"head\" and \"embed\" should be one tied tensor, but they differ in the checkpoint");
  EXPECT_EQ(Error({Tensor("embed", {1, 2})}), "the checkpoint has no tensor \"norm\"");
  EXPECT_EQ(Error({Tensor("embed", {1, 2}), Tensor("norm", {3}), Tensor("more", {1})}),
            "the checkpoint has tensor \"more\", which should not be there");
  EXPECT_EQ(Error({Tensor("embed", {1, 2, 3}), Tensor("norm", {3})}),
            "tensor \"embed\" is U8 [3] in the checkpoint, but should be U8 [2]");
}

}  // namespace
}  // namespace weightwire
