#include "tensor/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "support/checkpoints.h"
#include "support/random_tensors.h"

namespace weightwire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weightwire::testing::BytesOf;
using ::weightwire::testing::EntryCount;
using ::weightwire::testing::ReadAll;
using ::weightwire::testing::TemporaryDirectory;
using ::weightwire::testing::Tensor;
using ::weightwire::testing::WriteAll;
using ::weightwire::testing::WriteTensors;
using Buffer = std::vector<std::uint8_t>;

Checkpoint Open(const std::filesystem::path& path) {
  auto checkpoint = Checkpoint::Open(path);
  if (!checkpoint.ok()) ADD_FAILURE() << checkpoint.error().message();
  return std::move(checkpoint).value();
}

// Everything below a directory, by relative path.
std::map<std::string, std::string> Tree(const std::filesystem::path& root) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (entry.is_regular_file()) files[entry.path().lexically_relative(root).string()] = ReadAll(entry.path());
  }
  return files;
}

void MakeShardedModel(const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory / "sub/deeper");
  WriteTensors(directory / "1.safetensors", {Tensor("b", {1, 2}), Tensor("a", {3})}, {{"format", "pt"}, {"t", "c"}});
  WriteTensors(directory / "2.safetensors", {Tensor("d", {}), Tensor("c", {4})}, {{"format", "pt"}});
  WriteAll(directory / kIndexFileName,
           R"({"metadata":{"total_size":4,"kept":"as is"},"weight_map":{"a":"1.safetensors","b":"1.safetensors",)"
           R"("c":"2.safetensors","d":"2.safetensors"}})");
  WriteAll(directory / "config.json", "{}");
  WriteAll(directory / "sub/deeper/tokenizer.json", "tokens");
}

TEST(WriteCheckpointLike, ADirectoryIsReproducedByteForByte) {
  const TemporaryDirectory directory;
  MakeShardedModel(directory / "source");
  const Checkpoint source = Open(directory / "source");
  EXPECT_EQ(source.layout().aliases(), (Aliases{{"t", "c"}}));
  const auto written = WriteCheckpointLike(source, source.layout(), directory / "out", testing::DataOf(source));
  ASSERT_TRUE(written.ok()) << written.error().message();
  EXPECT_EQ(Tree(directory / "out"), Tree(directory / "source"));
  EXPECT_EQ(EntryCount(directory.path()), 2U);
}

TEST(WriteCheckpointLike, OneFileIsReproducedByteForByte) {
  const TemporaryDirectory directory;
  WriteTensors(directory / "source", {Tensor("b", {1, 2}), Tensor("a", {3})}, {{"format", "pt"}, {"t", "b"}});
  const Checkpoint source = Open(directory / "source");
  ASSERT_TRUE(WriteCheckpointLike(source, source.layout(), directory / "out", testing::DataOf(source)).ok());
  EXPECT_EQ(ReadAll(directory / "out"), ReadAll(directory / "source"));
}

TEST(WriteCheckpointLike, WritesDataGivenInPortions) {
  const TemporaryDirectory directory;
  MakeShardedModel(directory / "source");
  const Checkpoint source = Open(directory / "source");
  const auto plus_ten = [&](std::size_t index, const TensorSink& sink) -> Status {
    for (const std::uint8_t byte : source.bytes(index)) {
      WW_RETURN_IF_ERROR(sink(Buffer{static_cast<std::uint8_t>(byte + 10)}));
    }
    return Ok();
  };
  ASSERT_TRUE(WriteCheckpointLike(source, source.layout(), directory / "out/", plus_ten).ok());
  const Checkpoint out = Open(directory / "out");
  EXPECT_EQ(BytesOf(out, "a"), Buffer{13});
  EXPECT_EQ(BytesOf(out, "b"), (Buffer{11, 12}));
  EXPECT_EQ(BytesOf(out, "c"), Buffer{14});
}

TEST(WriteCheckpointLike, SkipsAndReportsOtherWeightsAndOurOwnFiles) {
  const TemporaryDirectory directory;
  MakeShardedModel(directory / "source");
  WriteAll(directory / "source/sub/deeper/other.safetensors", "x");
  WriteAll(directory / "source/sub/other.safetensors.index.json", "x");
  const auto wanted = Tree(directory / "source");
  std::filesystem::create_directories(directory / "source/.git/objects");
  std::filesystem::create_directories(directory / "source/.weightwire");
  WriteAll(directory / "source/.git/HEAD", "x");
  WriteAll(directory / "source/.weightwire/journal", "x");
  WriteAll(directory / "source/adapter.safetensors", "x");
  WriteAll(directory / "source/model.fp16.safetensors.index.json", "x");
  std::filesystem::create_symlink("nowhere", directory / "source/dangling");
  std::filesystem::create_directory_symlink(directory.path(), directory / "source/sub/loop");
  const Checkpoint source = Open(directory / "source");
  const auto written = WriteCheckpointLike(source, source.layout(), directory / "out", testing::DataOf(source));
  ASSERT_TRUE(written.ok()) << written.error().message();
  EXPECT_EQ(Tree(directory / "out"), wanted);
  EXPECT_THAT(written.value(),
              ElementsAre(".git", "adapter.safetensors", "dangling", "model.fp16.safetensors.index.json", "sub/loop"));
}

TEST(WriteCheckpointLike, CarriesTheContentOfLinkedFiles) {
  const TemporaryDirectory directory;
  MakeShardedModel(directory / "source");
  WriteAll(directory / "blob", "linked");
  std::filesystem::create_symlink("../blob", directory / "source/tokenizer.model");
  const Checkpoint source = Open(directory / "source");
  ASSERT_TRUE(WriteCheckpointLike(source, source.layout(), directory / "out", testing::DataOf(source)).ok());
  EXPECT_FALSE(std::filesystem::is_symlink(directory / "out/tokenizer.model"));
  EXPECT_EQ(ReadAll(directory / "out/tokenizer.model"), "linked");
}

TEST(WriteCheckpointLike, RefusesAnOutputThatExists) {
  const TemporaryDirectory directory;
  MakeShardedModel(directory / "source");
  const Checkpoint source = Open(directory / "source");
  std::filesystem::create_directory(directory / "out");
  bool asked = false;
  const auto written =
      WriteCheckpointLike(source, source.layout(), directory / "out", [&](std::size_t, const TensorSink&) -> Status {
        asked = true;
        return Ok();
      });
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(written.error().message(), HasSubstr("already exists"));
  EXPECT_FALSE(asked);
  EXPECT_EQ(EntryCount(directory / "out"), 0U);
  EXPECT_EQ(EntryCount(directory.path()), 2U);
}

TEST(WriteCheckpointLike, KeepsAnOutputThatAppearsDuringTheWrite) {
  const TemporaryDirectory directory;
  MakeShardedModel(directory / "source");
  const Checkpoint source = Open(directory / "source");
  const auto data = testing::DataOf(source);
  const auto written =
      WriteCheckpointLike(source, source.layout(), directory / "out", [&](std::size_t index, const TensorSink& sink) {
        std::filesystem::create_directory(directory / "out");
        return data(index, sink);
      });
  EXPECT_FALSE(written.ok());
  EXPECT_EQ(EntryCount(directory / "out"), 0U);
  EXPECT_EQ(EntryCount(directory.path()), 2U);
}

TEST(WriteCheckpointLike, AFailureLeavesNothingBehind) {
  const TemporaryDirectory directory;
  MakeShardedModel(directory / "source");
  WriteTensors(directory / "single", {Tensor("a", {1})});
  const auto fail = [](std::size_t, const TensorSink&) -> Status { return Error(ErrorCode::kMismatch, "no data"); };
  for (const char* name : {"source", "single"}) {
    const Checkpoint source = Open(directory / name);
    const auto written = WriteCheckpointLike(source, source.layout(), directory / "out", fail);
    ASSERT_FALSE(written.ok());
    EXPECT_EQ(written.error().code(), ErrorCode::kMismatch);
    EXPECT_EQ(EntryCount(directory.path()), 2U);
  }
}

TEST(WriteCheckpointLike, ErrorsNameTheOutput) {
  const TemporaryDirectory directory;
  MakeShardedModel(directory / "source");
  WriteTensors(directory / "single", {Tensor("a", {1})});
  for (const char* name : {"source", "single"}) {
    const Checkpoint source = Open(directory / name);
    const auto output = directory / "no/such/out";
    const auto written = WriteCheckpointLike(source, source.layout(), output, testing::DataOf(source));
    ASSERT_FALSE(written.ok());
    EXPECT_THAT(written.error().message(), HasSubstr(output.string()));
    EXPECT_THAT(written.error().message(), HasSubstr("No such file or directory"));
  }
}

TEST(WriteCheckpointLike, TensorsMayBeAddedRemovedAndRetyped) {
  const TemporaryDirectory directory;
  MakeShardedModel(directory / "source");
  const Checkpoint source = Open(directory / "source");
  // b is gone, c is re-typed, e is new, t no longer stands for c but for e.
  const Checkpoint next =
      testing::CheckpointOf(
          {Tensor("a", {9}), {{"c", DType::kBF16, {2}}, {1, 2, 3, 4}}, Tensor("d", {}), Tensor("e", {5})}, {{"t", "e"}})
          .value();
  const auto written = WriteCheckpointLike(source, next.layout(), directory / "out", testing::DataOf(next));
  ASSERT_TRUE(written.ok()) << written.error().message();
  const Checkpoint out = Open(directory / "out");
  EXPECT_EQ(out.layout(), next.layout());
  for (const char* name : {"a", "c", "d", "e", "t"}) EXPECT_EQ(BytesOf(out, name), BytesOf(next, name)) << name;
  EXPECT_THAT(out.files()[0].tensors, ElementsAre("a"));
  EXPECT_THAT(out.files()[1].tensors, ElementsAre("d", "c", "e"));
  EXPECT_EQ(out.files()[0].metadata, (Metadata{{"format", "pt"}}));
  EXPECT_EQ(out.files()[1].metadata, (Metadata{{"format", "pt"}, {"t", "e"}}));
  EXPECT_THAT(ReadAll(directory / "out" / kIndexFileName), HasSubstr("\"total_size\": 6\n"));
}

TEST(WriteCheckpointLike, BothNamesOfATieAreWrittenWhereTheSourceHasBoth) {
  const TemporaryDirectory directory;
  WriteTensors(directory / "source", {Tensor("embed", {1}), Tensor("head", {1})}, {{"format", "pt"}});
  const Layout tied = Layout::Make({Tensor("embed", {1}).spec}, {{"head", "embed"}}).value();
  const auto source = Open(directory / "source").ViewAs(tied);
  ASSERT_TRUE(source.ok());
  const auto seven = [](std::size_t index, const TensorSink& sink) -> Status {
    EXPECT_EQ(index, 0U);
    return sink(Buffer{7});
  };
  ASSERT_TRUE(WriteCheckpointLike(source.value(), tied, directory / "out", seven).ok());
  const Checkpoint out = Open(directory / "out");
  EXPECT_THAT(out.files()[0].tensors, ElementsAre("embed", "head"));
  EXPECT_EQ(BytesOf(out, "embed"), Buffer{7});
  EXPECT_EQ(BytesOf(out, "head"), Buffer{7});
  EXPECT_EQ(out.files()[0].metadata, (Metadata{{"format", "pt"}}));
  EXPECT_TRUE(out.ViewAs(tied).ok());
}

// Otherwise the output would have another state digest than the layout's.
TEST(WriteCheckpointLike, WritesATieUnderTheNameThatTheLayoutKeeps) {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "source");
  WriteTensors(directory / "source/1.safetensors", {Tensor("head", {1})}, {{"embed", "head"}, {"format", "pt"}});
  WriteAll(directory / "source" / kIndexFileName, R"({"weight_map":{"head":"1.safetensors"}})");
  const Layout tied = Layout::Make({Tensor("embed", {1}).spec}, {{"head", "embed"}}).value();
  const auto source = Open(directory / "source").ViewAs(tied);
  ASSERT_TRUE(source.ok());
  ASSERT_TRUE(WriteCheckpointLike(source.value(), tied, directory / "out", testing::DataOf(source.value())).ok());
  const Checkpoint out = Open(directory / "out");
  EXPECT_EQ(out.layout(), tied);
  EXPECT_EQ(out.files()[0].metadata, (Metadata{{"format", "pt"}, {"head", "embed"}}));
  EXPECT_EQ(BytesOf(out, "embed"), Buffer{1});
}

TEST(WriteCheckpointLike, KeepsRecordedNamesOutsideTheLayout) {
  const TemporaryDirectory directory;
  WriteTensors(directory / "source", {Tensor("embed", {1})}, {{"head", "embed"}});
  const Layout plain = Layout::Make({Tensor("embed", {1}).spec}, {}).value();
  const auto source = Open(directory / "source").ViewAs(plain);
  ASSERT_TRUE(source.ok()) << source.error().message();
  ASSERT_TRUE(WriteCheckpointLike(source.value(), plain, directory / "out", testing::DataOf(source.value())).ok());
  EXPECT_EQ(ReadAll(directory / "out"), ReadAll(directory / "source"));
}

TEST(WriteCheckpointLike, AnIndexOfNoShardsMayGetTensors) {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "source");
  WriteAll(directory / "source" / kIndexFileName, R"({"weight_map":{}})");
  const Checkpoint source = Open(directory / "source");
  ASSERT_TRUE(WriteCheckpointLike(source, source.layout(), directory / "same", testing::DataOf(source)).ok());
  EXPECT_EQ(Tree(directory / "same"), Tree(directory / "source"));
  const Checkpoint next = testing::CheckpointOf({Tensor("a", {9})}, {{"t", "a"}}).value();
  const auto written = WriteCheckpointLike(source, next.layout(), directory / "out", testing::DataOf(next));
  ASSERT_TRUE(written.ok()) << written.error().message();
  const Checkpoint out = Open(directory / "out");
  EXPECT_EQ(out.layout(), next.layout());
  EXPECT_EQ(BytesOf(out, "a"), Buffer{9});
  EXPECT_EQ(EntryCount(directory / "out"), 1U) << "model.safetensors, and no index";
}

TEST(WriteCheckpointLike, RecordsALostSecondName) {
  const TemporaryDirectory directory;
  WriteTensors(directory / "source", {Tensor("embed", {1})}, {{"format", "pt"}});
  const Layout tied = Layout::Make({Tensor("embed", {1}).spec}, {{"head", "embed"}}).value();
  const auto source = Open(directory / "source").ViewAs(tied);
  ASSERT_TRUE(WriteCheckpointLike(source.value(), tied, directory / "out", testing::DataOf(source.value())).ok());
  EXPECT_EQ(Open(directory / "out").layout(), tied);
}

TEST(PlanFresh, SmallModelsAreOneFile) {
  const TemporaryDirectory directory;
  const Checkpoint model = testing::CheckpointOf({Tensor("b", {1}), Tensor("a", {2})}, {{"c", "a"}}).value();
  ASSERT_TRUE(testing::WriteCheckpoint(model, directory / "out", {}).ok());
  EXPECT_EQ(EntryCount(directory / "out"), 1U);
  const Checkpoint out = Open(directory / "out");
  EXPECT_EQ(out.layout(), model.layout());
  EXPECT_EQ(out.files()[0].metadata, (Metadata{{"c", "a"}, {"format", "pt"}}));
}

TEST(PlanFresh, LargeModelsAreShards) {
  const TemporaryDirectory directory;
  const Checkpoint model =
      testing::CheckpointOf({Tensor("a", {1, 1}), Tensor("b", {2}), Tensor("c", {3, 3, 3, 3, 3}), Tensor("d", {4})},
                            {{"e", "d"}})
          .value();
  const CheckpointOptions options{.max_shard_bytes = 3};
  ASSERT_TRUE(testing::WriteCheckpoint(model, directory / "out", options).ok());
  const Checkpoint out = Open(directory / "out");
  EXPECT_EQ(out.layout(), model.layout());
  for (const char* name : {"a", "b", "c", "d", "e"}) EXPECT_EQ(BytesOf(out, name), BytesOf(model, name)) << name;
  ASSERT_EQ(out.files().size(), 3U);
  EXPECT_EQ(out.files()[0].name, "model-00001-of-00003.safetensors");
  EXPECT_THAT(out.files()[0].tensors, ElementsAre("a", "b"));
  EXPECT_THAT(out.files()[1].tensors, ElementsAre("c"));
  EXPECT_THAT(out.files()[2].tensors, ElementsAre("d"));
  EXPECT_EQ(out.files()[2].metadata, (Metadata{{"e", "d"}, {"format", "pt"}}));
  EXPECT_THAT(ReadAll(directory / "out" / kIndexFileName), HasSubstr("\"total_size\": 9\n"));
}

TEST(PlanFresh, AnAdapterIsOneFile) {
  const TemporaryDirectory directory;
  WriteTensors(directory / "f", {Tensor("a", {1, 2}), Tensor("b", {3, 4})}, {});
  const Checkpoint source = Open(directory / "f");
  const CheckpointOptions options{.max_shard_bytes = 1, .adapter = true};
  const CheckpointPlan plan = PlanFresh(source.layout(), options);
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_EQ(plan.front().name, kAdapterFileName);
}

RC_GTEST_PROP(PlanFreshProperty, OpensAsWhatWasWritten, ()) {
  const TemporaryDirectory directory;
  const auto model = testing::CheckpointOf(*testing::RandomTensors());
  RC_ASSERT(model.ok());
  const CheckpointOptions options{.max_shard_bytes = *rc::gen::inRange<std::uint64_t>(1, 2000)};
  const Status fresh = testing::WriteCheckpoint(model.value(), directory / "fresh", options);
  RC_ASSERT(fresh.ok());
  const auto opened = Checkpoint::Open(directory / "fresh");
  RC_ASSERT(opened.ok());
  RC_ASSERT(opened.value().layout() == model.value().layout());
  for (std::size_t i = 0; i < model.value().layout().size(); ++i) {
    const auto expected = model.value().bytes(i);
    const auto actual = opened.value().bytes(i);
    RC_ASSERT(Buffer(expected.begin(), expected.end()) == Buffer(actual.begin(), actual.end()));
  }
  RC_ASSERT(
      WriteCheckpointLike(opened.value(), opened.value().layout(), directory / "copy", testing::DataOf(opened.value()))
          .ok());
  RC_ASSERT(Tree(directory / "copy") == Tree(directory / "fresh"));
}

}  // namespace
}  // namespace weightwire
