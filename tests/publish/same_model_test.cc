// A run holds one model: a state of another one is refused before anything is sent or written.
#include "publish/same_model.h"

#include <gtest/gtest.h>

#include "group.h"

namespace weightwire::testing {
namespace {

Layout LayoutOf(std::vector<TensorSpec> tensors, Aliases aliases = {}) {
  return Layout::Make(std::move(tensors), std::move(aliases)).value();
}

TEST(SameModelTest, OneTensorOfTheSameNameAndShapeIsEnough) {
  const Layout one = LayoutOf({{"a", DType::kF32, {2, 3}}, {"b", DType::kF32, {4}}}, {{"tied", "b"}});
  EXPECT_TRUE(SharesTensor(one, one));
  EXPECT_TRUE(SharesTensor(one, LayoutOf({{"a", DType::kBF16, {2, 3}}}))) << "types may change";
  EXPECT_TRUE(SharesTensor(one, LayoutOf({{"a", DType::kF32, {3, 2}}, {"b", DType::kF32, {4}}})));
  EXPECT_TRUE(SharesTensor(one, LayoutOf({{"tied", DType::kF32, {4}}}))) << "an alias is a name";
  EXPECT_TRUE(SharesTensor(LayoutOf({{"tied", DType::kF32, {4}}}), one));
  EXPECT_TRUE(SharesTensor(one, LayoutOf({}))) << "there is nothing to mistake";
  EXPECT_FALSE(SharesTensor(one, LayoutOf({{"a", DType::kF32, {3, 2}}}))) << "another shape";
  EXPECT_FALSE(SharesTensor(one, LayoutOf({{"c", DType::kF32, {2, 3}}}))) << "another name";
}

Model OtherModel() { return ModelOf({{{"other", DType::kU8, {5}}, {1, 2, 3, 4, 5}}}, {}); }

TEST(SameModelTest, AnotherModelIsRefusedAndNothingIsWritten) {
  for (const bool restarted : {false, true}) {
    World world;
    auto process = std::make_unique<Process>(world);
    ASSERT_TRUE(process->Open().ok());
    const Model model = SmallModel(1);
    process->MustPublish(model, 0);
    process->WorkUntilIdle();
    if (restarted) {
      PublisherOptions options;
      options.rebuild = false;  // so that there is no base, and the layout must be read
      process = std::make_unique<Process>(world, options);
      ASSERT_TRUE(process->Open().ok());
    }
    const std::uint64_t written = process->store().bytes_written();
    const auto refused = (*process)->Publish(BitsOf(OtherModel()), 1);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kMismatch);
    EXPECT_NE(refused.error().message().find("--allow-new-model"), std::string::npos) << refused.error().message();
    process->WorkUntilIdle();
    EXPECT_EQ(process->store().bytes_written(), written);
    process->MustPublish(Trained(model, 1), 1);
    process->WorkUntilIdle();
    EXPECT_EQ(VersionsIn(world.bucket), 2U) << "the publisher goes on with its own model";
  }
}

TEST(SameModelTest, AnotherModelIsPublishedWhenThatIsAllowed) {
  World world;
  PublisherOptions options;
  options.allow_new_model = true;
  Process process(world, options);
  ASSERT_TRUE(process.Open().ok());
  process.MustPublish(SmallModel(1), 0);
  process.MustPublish(OtherModel(), 1);
  process.WorkUntilIdle();
  const auto versions = ReadWholeRun(world.bucket);
  ASSERT_EQ(versions.size(), 2U);
  EXPECT_EQ(versions[1].model, OtherModel());
}

TEST(SameModelTest, RanksRefuseAnotherModelTogether) {
  World world;
  {
    Process process(world);
    ASSERT_TRUE(process.Open().ok());
    process.MustPublish(OtherModel(), 0);
    process.WorkUntilIdle();
  }
  Group group(world, 2);
  for (std::uint64_t rank = 0; rank < 2; ++rank) {
    const auto refused = group.Publish(rank, SmallModel(1), 1);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kMismatch);
  }
  group.WorkUntilIdle();
  EXPECT_EQ(VersionsIn(world.bucket), 1U);
}

}  // namespace
}  // namespace weightwire::testing
