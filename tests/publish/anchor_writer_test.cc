#include "publish/anchor_writer.h"

#include <gtest/gtest.h>

#include "base/real_file_system.h"
#include "publish/world.h"
#include "support/checkpoints.h"
#include "support/owned_tensor.h"
#include "support/temporary_directory.h"
#include "tensor/checkpoint_writer.h"

namespace weightwire::testing {
namespace {

Checkpoint CheckpointOf(const Model& model) {
  std::vector<OwnedTensor> tensors;
  for (std::size_t i = 0; i < model.layout->size(); ++i) {
    tensors.push_back({model.layout->tensors()[i], model.tensors[i]});
  }
  return testing::CheckpointOf(std::move(tensors), model.layout->aliases()).value();
}

// Writes the whole anchor, and passes the bytes sent after each step to `progress`.
Result<KnownAnchor> WriteAnchor(AnchorWriter& writer, const std::function<void(std::uint64_t)>& progress) {
  for (;;) {
    WW_TRY(const bool complete, writer.Step());
    if (progress) progress(writer.bytes_sent());
    if (complete) return writer.anchor();
  }
}

class AnchorWriterTest : public ::testing::Test {
 protected:
  AnchorWriterTest() : run_(Run::Open(world_.bucket).value()) {}

  [[nodiscard]] AnchorSubject SubjectOf(const Model& model) {
    EXPECT_TRUE(run_.PutLayout(*model.layout).ok());
    return {{4, NewId(world_.random)}, StateDigest(*model.layout, DigestsOf(model)), 1234};
  }
  [[nodiscard]] AnchorWriter WriterOf(const weightwire::Run& run, const Model& model, const AnchorSubject& subject,
                                      AnchorOptions options = {}) {
    return {run, subject, std::make_shared<CheckpointSource>(CheckpointOf(model)), std::move(options), BestKernels()};
  }
  [[nodiscard]] Bytes Object(const AnchorSubject& subject, const std::string& name) {
    return world_.bucket.Get(AnchorFolder(subject.name) + name, 1 << 28).value();
  }

  World world_;
  weightwire::Run run_;
};

TEST_F(AnchorWriterTest, HasTheFilesThatACheckpointOnADiskHas) {
  const Model model = SmallModel(1);
  for (const std::uint64_t max_shard_bytes : {std::uint64_t{1} << 30, std::uint64_t{500}}) {
    AnchorOptions options;
    options.files.max_shard_bytes = max_shard_bytes;
    const AnchorSubject subject = SubjectOf(model);
    AnchorWriter writer = WriterOf(run_, model, subject, options);
    const auto anchor = WriteAnchor(writer, {});
    ASSERT_TRUE(anchor.ok()) << anchor.error().message();
    EXPECT_EQ(ReadAnchorBits(run_, anchor.value().manifest), model);
    EXPECT_EQ(run_.ReadAnchor(subject.name).value().manifest, anchor.value().manifest);
    EXPECT_EQ(anchor.value().manifest.delta_bytes, 1234u);

    const TemporaryDirectory directory;
    const Checkpoint checkpoint = CheckpointOf(model);
    ASSERT_TRUE(testing::WriteCheckpoint(checkpoint, directory / "out", options.files).ok());
    EXPECT_EQ(EntryCount(directory / "out"), anchor.value().manifest.files.size());
    for (const AnchorFile& file : anchor.value().manifest.files) {
      const Bytes bytes = Object(subject, file.name);
      EXPECT_EQ(std::string(bytes.begin(), bytes.end()), ReadAll(directory.path() / "out" / file.name)) << file.name;
    }
  }
}

TEST_F(AnchorWriterTest, LargeFilesGoPieceByPiece) {
  Random random(1);
  const Model model = ModelOf({{{"big", DType::kBF16, {17 << 20}}, WeightLikeBf16(random, 17 << 20)},
                               {{"odd", DType::kU8, {4'000'003}}, RandomBytes(random, 4'000'003)},
                               {{"small", DType::kF32, {2}}, RandomBytes(random, 8)}});
  const AnchorSubject subject = SubjectOf(model);
  AnchorWriter writer = WriterOf(run_, model, subject);
  std::vector<std::uint64_t> sent;
  const auto anchor = WriteAnchor(writer, [&](std::uint64_t bytes) { sent.push_back(bytes); });
  ASSERT_TRUE(anchor.ok());
  EXPECT_GT(sent.size(), 3u);
  EXPECT_TRUE(std::ranges::is_sorted(sent));
  EXPECT_EQ(ReadAnchorBits(run_, anchor.value().manifest), model);
}

TEST_F(AnchorWriterTest, BitsOfAnotherVersionNeverBecomeAnAnchor) {
  const AnchorSubject subject = SubjectOf(SmallModel(1));
  Model other = SmallModel(1);
  other.tensors.back().back() ^= 1;
  AnchorWriter writer = WriterOf(run_, other, subject);
  const auto anchor = WriteAnchor(writer, {});
  ASSERT_FALSE(anchor.ok());
  EXPECT_EQ(anchor.error().code(), ErrorCode::kMismatch);
  EXPECT_FALSE(world_.bucket.Stat(AnchorManifestKey(subject.name)).ok());
}

TEST_F(AnchorWriterTest, GoesOnAfterEveryFailedRequest) {
  const Model model = SmallModel(1);
  for (const SimStore::Fate fate : {SimStore::Fate::kUnavailable, SimStore::Fate::kLostBefore,
                                    SimStore::Fate::kLostAfter, SimStore::Fate::kRefused}) {
    std::uint64_t requests = 0;
    for (std::uint64_t failing = 0; failing <= requests; ++failing) {
      requests = 0;
      SimStore store(world_.bucket, [&](std::string_view, std::string_view) {
        return requests++ == failing ? fate : SimStore::Fate::kGoOn;
      });
      const AnchorSubject subject = SubjectOf(model);
      AnchorOptions options;
      options.files.max_shard_bytes = 500;
      auto run = Run::Open(store);
      if (!run.ok()) run = Run::Open(store);
      AnchorWriter writer = WriterOf(run.value(), model, subject, options);
      int errors = 0;
      for (bool complete = false; !complete && errors < 3;) {
        // anchor.json comes last.
        EXPECT_FALSE(world_.bucket.Stat(AnchorManifestKey(subject.name)).ok() && errors == 0);
        const auto step = writer.Step();
        errors += step.ok() ? 0 : 1;
        complete = step.ok() && step.value();
      }
      EXPECT_LE(errors, 1);
      EXPECT_EQ(ReadAnchorBits(run_, run_.ReadAnchor(subject.name).value().manifest), model);
    }
  }
}

TEST_F(AnchorWriterTest, CarriesConfigurationAndTokenizerButNoCode) {
  RealFileSystem files;
  const TemporaryDirectory directory;
  for (const char* name : {"config.json", "tokenizer.json", "modeling.py", "pytorch_model.bin", "model.safetensors",
                           "model.safetensors.index.json", "with space.txt", ".hidden", "optimizer.pt"}) {
    WriteAll(directory / name, std::string("text of ") + name);
  }
  std::filesystem::create_directories(directory / "sub/.git");
  WriteAll(directory / "sub/more.txt", "more");
  WriteAll(directory / "sub/.git/config", "secret");
  std::filesystem::create_symlink("config.json", directory / "linked.json");
  std::filesystem::create_symlink("/nowhere", directory / "dangling.json");

  const auto extra = FindExtraFiles(files, directory.path(), /*include_code=*/false);
  ASSERT_TRUE(extra.ok()) << extra.error().message();
  std::vector<std::string> names;
  for (const ExtraFile& file : extra.value().files) names.push_back(file.name);
  EXPECT_EQ(names, (std::vector<std::string>{"config.json", "linked.json", "sub/more.txt", "tokenizer.json"}));
  // What might be missed is named.
  EXPECT_EQ(extra.value().left_out.size(), 5u);
  const auto with_code = FindExtraFiles(files, directory.path(), /*include_code=*/true);
  ASSERT_TRUE(with_code.ok()) << with_code.error().message();
  EXPECT_EQ(with_code.value().files.size(), names.size() + 3);
  EXPECT_EQ(with_code.value().left_out.size(), 2u);

  const Model model = SmallModel(1);
  const AnchorSubject subject = SubjectOf(model);
  AnchorOptions options;
  options.extra = extra.value().files;
  options.file_system = &files;
  AnchorWriter writer = WriterOf(run_, model, subject, options);
  const auto anchor = WriteAnchor(writer, {});
  ASSERT_TRUE(anchor.ok()) << anchor.error().message();
  EXPECT_EQ(ReadAnchorBits(run_, anchor.value().manifest), model);
  const Bytes linked = Object(subject, "linked.json");
  EXPECT_EQ(std::string(linked.begin(), linked.end()), "text of config.json");
}

}  // namespace
}  // namespace weightwire::testing
