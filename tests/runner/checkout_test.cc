#include "runner/checkout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/real_file_system.h"
#include "follow/mirror/mirror_state.h"
#include "support/manual_clock.h"
#include "support/memory_store.h"
#include "support/run_maker.h"
#include "support/temporary_directory.h"

namespace weightwire {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CheckoutTest : public ::testing::Test {
 protected:
  CheckoutTest() {
    for (int i = 0; i < 4; ++i) maker_.Publish();
  }
  Status CheckOutVersion(Version version, const AfterStep& after_step = nullptr) {
    const CheckoutTools tools{&files_, &random_, {&clock_, &maker_.kernels(), &maker_.pool()}};
    return CheckOut(maker_.run(), maker_.records()[version], folder_ / "out", false, tools, after_step);
  }
  [[nodiscard]] bool Exists(std::string_view name) const { return std::filesystem::exists(folder_ / name); }

  ManualClock clock_;
  MemoryStore store_{&clock_};
  RunMaker maker_{store_};
  RealFileSystem files_;
  SeededRandom random_{7};
  testing::TemporaryDirectory folder_;
};

TEST_F(CheckoutTest, ADirectoryHasNothingOfOursInIt) {
  ASSERT_TRUE(CheckOutVersion(2).ok());
  EXPECT_TRUE(Exists("out/config.json"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out" / kMirrorFolder));
  EXPECT_FALSE(Exists(".out.weightwire"));
  const Status again = CheckOutVersion(2);
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().message(), HasSubstr("already exists"));
}

TEST_F(CheckoutTest, AnErrorBeforeAnyVersionIsThereLeavesNothing) {
  int steps = 0;
  const Status ended = CheckOutVersion(3, [&](const Result<FollowerStep>&) -> Status {
    return ++steps < 4 ? Ok() : Status(Error(ErrorCode::kIo, "interrupted"));
  });
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.error().message(), "interrupted");
  EXPECT_FALSE(Exists("out"));
  EXPECT_FALSE(Exists(".out.weightwire"));
}

TEST_F(CheckoutTest, AVersionOnTheWayIsKeptAndContinuedFrom) {
  const Status ended = CheckOutVersion(3, [&](const Result<FollowerStep>& step) -> Status {
    return step.value() == FollowerStep::kStage ? Status(Error(ErrorCode::kUnavailable, "no answer")) : Ok();
  });
  ASSERT_FALSE(ended.ok());
  EXPECT_THAT(ended.error().message(),
              AllOf(HasSubstr("no answer; "), HasSubstr("holds version 0"), HasSubstr("continues from it")));
  EXPECT_TRUE(Exists(".out.weightwire"));
  int loads = 0;
  ASSERT_TRUE(CheckOutVersion(3, [&](const Result<FollowerStep>& step) -> Status {
                loads += step.value() == FollowerStep::kLoad ? 1 : 0;
                return Ok();
              }).ok());
  EXPECT_EQ(loads, 0);
  EXPECT_TRUE(Exists("out"));
  EXPECT_FALSE(Exists(".out.weightwire"));
}

TEST_F(CheckoutTest, AVersionThatGcRemovedIsExplained) {
  maker_.AddAnchor(3);
  ASSERT_TRUE(store_.Remove(AnchorManifestKey(maker_.records()[0].record.anchor->name)).ok());
  const Status gone = CheckOutVersion(1);
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(gone.error().message(), AllOf(HasSubstr("version 1 of memory cannot be fetched any more"),
                                            HasSubstr("the next one that can be fetched is version 3")));
  EXPECT_FALSE(Exists(".out.weightwire"));
  MemoryTarget target(maker_.kernels(), maker_.pool());
  const Status load = Load(maker_.run(), 1, target, {&clock_, &maker_.kernels(), &maker_.pool()}, random_, nullptr);
  ASSERT_FALSE(load.ok());
  EXPECT_EQ(load.error().message(), gone.error().message());
}

}  // namespace
}  // namespace weightwire
