#include "follow/anchor_load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "follow/follower_world.h"
#include "support/manual_clock.h"

namespace weightwire {
namespace {

class AnchorLoadTest : public ::testing::Test {
 protected:
  AnchorLoadTest() {
    maker_.Publish();
    name_ = maker_.AddAnchor(0).name;
  }

  std::unique_ptr<AnchorLoad> Begin() {
    return AnchorLoad::Begin(maker_.run(), maker_.run().ReadAnchor(name_).value(), maker_.records()[0],
                             maker_.states()[0].layout, target_, maker_.pool())
        .value();
  }
  [[nodiscard]] std::string KeyOf(const std::string& file) const { return AnchorFolder(name_) + file; }

  ManualClock clock_;
  MemoryStore inner_{&clock_};
  SpoiledStore store_{inner_};
  RunMaker maker_{store_};
  MemoryTarget target_{maker_.kernels(), maker_.pool()};
  AnchorName name_;
};

TEST_F(AnchorLoadTest, LoadsEveryObjectAndShowsNothingBeforeCommit) {
  const auto load = Begin();
  std::uint64_t bytes = 0;
  std::size_t objects = 0;
  while (!load->IsComplete()) {
    const auto portion = load->LoadPortion();
    ASSERT_TRUE(portion.ok()) << portion.error().message();
    EXPECT_FALSE(portion.value().lost.has_value());
    bytes += portion.value().bytes;
    if (portion.value().completes_object) ++objects;
  }
  const AnchorManifest manifest = maker_.run().ReadAnchor(name_).value().manifest;
  EXPECT_EQ(bytes, manifest.TotalBytes());
  EXPECT_EQ(objects, manifest.files.size());
  EXPECT_FALSE(target_.held().has_value());
  ASSERT_TRUE(load->Commit().ok());
  EXPECT_EQ(target_.held(), HeldOf(maker_.records()[0]));
  EXPECT_TRUE(target_.Verify().ok());
}

TEST_F(AnchorLoadTest, AnUnavailableStoreLeavesTheLoadWhereItWas) {
  const auto load = Begin();
  ASSERT_TRUE(load->LoadPortion().ok());
  const std::string next = load->ObjectKey();
  store_.fail = [](std::string_view, std::string_view) { return Error(ErrorCode::kUnavailable, "not now"); };
  EXPECT_EQ(load->LoadPortion().error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(load->ObjectKey(), next);
  store_.fail = nullptr;
  while (!load->IsComplete()) ASSERT_FALSE(load->LoadPortion().value().lost.has_value());
  EXPECT_TRUE(load->Commit().ok());
}

TEST_F(AnchorLoadTest, AnObjectThatWasDamagedOnTheWayIsLoadedAgainFromItsStart) {
  store_.damaged_once.insert(KeyOf("model-00001-of-00002.safetensors"));
  const auto load = Begin();
  int lost = 0;
  for (int i = 0; i < 100 && !load->IsComplete(); ++i) {
    const std::string key = load->ObjectKey();
    const auto portion = load->LoadPortion();
    ASSERT_TRUE(portion.ok());
    if (!portion.value().lost.has_value()) continue;
    ++lost;
    EXPECT_EQ(portion.value().lost->code(), ErrorCode::kCorrupt);
    EXPECT_THAT(portion.value().lost->message(), ::testing::HasSubstr(key));
    EXPECT_EQ(load->ObjectKey(), key);
  }
  EXPECT_EQ(lost, 1);
  EXPECT_TRUE(load->Commit().ok());
}

TEST_F(AnchorLoadTest, AMissingObjectIsReportedAndCanBeSkipped) {
  const std::string missing = KeyOf("model-00002-of-00002.safetensors");
  ASSERT_TRUE(inner_.Remove(missing).ok());
  const auto load = Begin();
  std::vector<std::string> lost;
  for (int i = 0; i < 100 && !load->IsComplete(); ++i) {
    const auto portion = load->LoadPortion();
    ASSERT_TRUE(portion.ok());
    if (!portion.value().lost.has_value()) continue;
    EXPECT_EQ(portion.value().lost->code(), ErrorCode::kNotFound);
    lost.push_back(load->ObjectKey());
    load->SkipObject();
  }
  EXPECT_EQ(lost, std::vector<std::string>{missing});
  EXPECT_TRUE(load->IsComplete());
}

TEST_F(AnchorLoadTest, BytesOfAnotherStateAreNotCommitted) {
  maker_.Publish();
  const auto load = AnchorLoad::Begin(maker_.run(), maker_.run().ReadAnchor(name_).value(), maker_.records()[1],
                                      maker_.states()[1].layout, target_, maker_.pool())
                        .value();
  while (!load->IsComplete()) ASSERT_TRUE(load->LoadPortion().ok());
  EXPECT_EQ(load->Commit().error().code(), ErrorCode::kCorrupt);
  EXPECT_FALSE(target_.held().has_value());
}

}  // namespace
}  // namespace weightwire
