#include "publish/base_copy.h"

#include <gtest/gtest.h>

#include "publish/world.h"

namespace weightwire::testing {
namespace {

// In memory and in a file.
class BaseCopyTest : public ::testing::TestWithParam<bool> {
 protected:
  BaseCopyTest() {
    EXPECT_TRUE(files_.MakeDirectory("/state").ok());
    BaseLocation location;
    if (GetParam()) location = {&files_, "/state"};
    base_ = std::make_unique<BaseCopy>(location, BestKernels(), OneThread(), RunUnlocked());
  }

  [[nodiscard]] Model Held() const {
    const StateView view = base_->View();
    Model model;
    model.layout = view.shared_layout();
    std::vector<std::uint8_t> scratch;
    for (std::size_t i = 0; i < view.layout().size(); ++i) {
      const auto bytes = view.Units(i, 0, view.layout().unit_count(i), scratch);
      model.tensors.emplace_back(bytes.begin(), bytes.end());
    }
    EXPECT_EQ(base_->digests(), DigestsOf(model)) << "the digests are not those of the bits";
    return model;
  }

  // In pieces of a size that cuts units of every width.
  [[nodiscard]] Result<Model> Read(const BasePin& pin, std::size_t piece) const {
    Model model;
    model.layout = pin.layout;
    for (std::size_t i = 0; i < pin.layout->size(); ++i) {
      Bytes bytes(pin.layout->byte_size(i));
      for (std::size_t at = 0; at < bytes.size(); at += piece) {
        WW_RETURN_IF_ERROR(base_->ReadAt(pin, i, at, std::span(bytes).subspan(at, std::min(piece, bytes.size() - at))));
      }
      model.tensors.push_back(std::move(bytes));
    }
    return model;
  }

  SimDisk disk_;
  SimFileSystem files_{disk_};
  std::unique_ptr<BaseCopy> base_;
};
INSTANTIATE_TEST_SUITE_P(Storage, BaseCopyTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "file" : "memory"; });

std::vector<Model> History() {
  std::vector<Model> models = {SmallModel(1)};
  for (std::uint64_t i = 1; i < 4; ++i) models.push_back(Trained(models.back(), i, 3));
  models.push_back(WithOtherLayout(models.back()));
  models.push_back(models.back());
  models.push_back(Trained(models[2], 9));
  models.push_back(Trained(models.back(), 10));
  return models;
}

TEST_P(BaseCopyTest, EveryVersionCanBeRolledBackToAndReadMeanwhile) {
  const std::vector<Model> models = History();
  ASSERT_TRUE(base_->Replace(BitsOf(models[0]), 5).ok());
  std::vector<std::shared_ptr<const BasePin>> pins = {base_->Pin(false)};
  for (std::size_t i = 1; i < models.size(); ++i) {
    auto advance = base_->Advance(BitsOf(models[i]), /*unless_same=*/false);
    ASSERT_TRUE(advance.ok());
    EXPECT_EQ(advance.value().same, models[i] == models[i - 1]);
    EXPECT_EQ(base_->version(), 5 + i);
    EXPECT_EQ(Held(), models[i]);
    if (!advance.value().same) {
      EXPECT_EQ(MustApply(std::move(advance.value().delta).Seal(), models[i - 1]), models[i]);
    }
    pins.push_back(base_->Pin(false));
  }
  for (std::size_t i = models.size(); i-- > 0;) {
    ASSERT_TRUE(base_->RollBack(5 + i).ok());
    EXPECT_EQ(Held(), models[i]);
    // What came before is still there, whatever the base is at.
    for (std::size_t k = 0; k <= i; ++k) {
      for (const std::size_t piece : {1, 3, 7, 64, 4096}) {
        const auto read = Read(*pins[k], piece);
        ASSERT_TRUE(read.ok());
        EXPECT_EQ(read.value(), models[k]) << "version " << 5 + k << " of " << 5 + i << " in pieces of " << piece;
      }
    }
  }
}

TEST_P(BaseCopyTest, AStateThatIsTheSameStaysAtItsVersionIfAsked) {
  ASSERT_TRUE(base_->Replace(BitsOf(SmallModel(1)), 0).ok());
  EXPECT_TRUE(base_->Advance(BitsOf(SmallModel(1)), true).value().same);
  EXPECT_EQ(base_->version(), 0u);
  EXPECT_TRUE(base_->Advance(BitsOf(SmallModel(1)), false).value().same);
  EXPECT_EQ(base_->version(), 1u);
  EXPECT_FALSE(base_->Advance(BitsOf(SmallModel(2)), true).value().same);
  EXPECT_EQ(base_->version(), 2u);
}

TEST_P(BaseCopyTest, StepsBackAreKeptAsLongAsSomebodyNeedsThem) {
  const std::vector<Model> models = History();
  ASSERT_TRUE(base_->Replace(BitsOf(models[0]), 0).ok());
  ASSERT_TRUE(base_->Advance(BitsOf(models[1]), false).ok());
  auto pin = base_->Pin(false);
  ASSERT_TRUE(base_->Advance(BitsOf(models[2]), false).ok());
  ASSERT_TRUE(base_->Advance(BitsOf(models[3]), false).ok());
  base_->DiscardUndo(3, 0);
  EXPECT_EQ(Read(*pin, 100).value(), models[1]);
  const std::uint64_t kept = base_->step_bytes();
  EXPECT_GT(kept, 0u);
  pin.reset();
  base_->DiscardUndo(2, 0);
  EXPECT_LT(base_->step_bytes(), kept);
  ASSERT_TRUE(base_->RollBack(2).ok());
  EXPECT_EQ(Held(), models[2]);
  EXPECT_EQ(base_->step_bytes(), 0u);
  // Further back there is nothing, and that is said.
  EXPECT_FALSE(base_->RollBack(0).ok());
  EXPECT_FALSE(base_->holds());
}

TEST_P(BaseCopyTest, PinsAreRevokedOldestFirstWhenStepsTakeTooMuch) {
  const std::vector<Model> models = History();
  ASSERT_TRUE(base_->Replace(BitsOf(models[0]), 0).ok());
  std::vector<std::shared_ptr<const BasePin>> pins = {base_->Pin(true)};
  for (std::size_t i = 1; i < 4; ++i) {
    ASSERT_TRUE(base_->Advance(BitsOf(models[i]), false).ok());
    pins.push_back(base_->Pin(i != 2));
  }
  base_->DiscardUndo(3, base_->step_bytes());
  EXPECT_EQ(Read(*pins[0], 100).value(), models[0]);
  base_->DiscardUndo(3, base_->step_bytes() - 1);
  EXPECT_EQ(Read(*pins[0], 100).error().code(), ErrorCode::kMismatch);
  EXPECT_EQ(Read(*pins[1], 100).value(), models[1]);
  // One that is not revocable keeps its steps, whatever they take.
  base_->DiscardUndo(3, 0);
  EXPECT_FALSE(Read(*pins[1], 100).ok());
  EXPECT_EQ(Read(*pins[2], 100).value(), models[2]);
  EXPECT_GT(base_->step_bytes(), 0u);
}

TEST_P(BaseCopyTest, WhatWasPinnedIsGoneWhenTheBaseIsReplaced) {
  ASSERT_TRUE(base_->Replace(BitsOf(SmallModel(1)), 0).ok());
  const auto pin = base_->Pin(false);
  ASSERT_TRUE(base_->Replace(BitsOf(SmallModel(2)), 1).ok());
  const auto read = Read(*pin, 100);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code(), ErrorCode::kMismatch);
}

TEST_P(BaseCopyTest, BitsThatSomebodyChangedMeanwhileMakeNoVersion) {
  const std::vector<Model> models = History();
  StateBits changing = BitsOf(models[0]);
  changing.unchanged = [] { return Status(Error(ErrorCode::kInvalidArgument, "they move")); };
  EXPECT_EQ(base_->Replace(changing, 5).error().message(), "they move");
  EXPECT_FALSE(base_->holds());
  ASSERT_TRUE(base_->Replace(BitsOf(models[0]), 5).ok());
  const auto pin = base_->Pin(false);
  for (const bool unless_same : {false, true}) {
    for (const Model& model : models) {  // the same state and other layouts among them
      changing.layout = model.layout;
      changing.tensors = BitsOf(model).tensors;
      EXPECT_EQ(base_->Advance(changing, unless_same).error().message(), "they move");
      EXPECT_EQ(base_->version(), 5);
      EXPECT_EQ(Held(), models[0]);
      EXPECT_EQ(Read(*pin, 64).value(), models[0]);
    }
  }
  StateBits still = BitsOf(models[1]);
  still.unchanged = [] { return Ok(); };
  ASSERT_TRUE(base_->Advance(still, /*unless_same=*/false).ok());
  EXPECT_EQ(Held(), models[1]);
}

TEST(BaseCopy, AFileIsAdoptedByItsFullDigestOnly) {
  SimDisk disk;
  SimFileSystem files(disk);
  ASSERT_TRUE(files.MakeDirectory("/state").ok());
  const BaseLocation location{&files, "/state"};
  const Model model = SmallModel(3);
  const auto open = [&] { return std::make_unique<BaseCopy>(location, BestKernels(), OneThread(), RunUnlocked()); };
  const std::vector<BaseCopy::Candidate> candidates = {
      {7, StateDigest(*SmallModel(4).layout, DigestsOf(SmallModel(4))), SmallModel(4).layout},
      {8, StateDigest(*model.layout, DigestsOf(model)), model.layout}};
  EXPECT_EQ(open()->Adopt(candidates), std::nullopt);
  ASSERT_TRUE(open()->Replace(BitsOf(model), 1).ok());
  {
    auto base = open();
    EXPECT_EQ(base->Adopt(candidates), 1u);
    EXPECT_EQ(base->version(), 8u);
    // With the tie, which the file does not know of.
    EXPECT_EQ(*base->layout(), *model.layout);
  }
  // Any wrong bit in the tensors is found; a file that cannot be read is none.
  const std::size_t size = files.Stat("/state/base.safetensors").value()->size_bytes;
  for (std::size_t at = 0; at < size; at += 97) {
    const auto map = files.MapForUpdate("/state/base.safetensors").value();
    const auto bytes = map->ForWriting(0, size).value();
    bytes[at] ^= 0x10;
    EXPECT_EQ(open()->Adopt(candidates), std::nullopt) << at;
    map->ForWriting(0, size).value()[at] ^= 0x10;
  }
  EXPECT_EQ(open()->Adopt(candidates), 1u);
}

TEST(BaseCopy, ADiskThatRefusesLeavesTheBaseExactOrLost) {
  const std::vector<Model> models = History();
  bool refused = true;
  for (std::uint64_t failing = 0; refused; ++failing) {
    SimDisk disk;
    std::uint64_t effects = 0;
    bool armed = false;
    refused = false;
    SimFileSystem files(disk, [&](std::string_view, const FileSystem::Path&) {
      if (!armed || effects++ != failing) return SimFileSystem::Fate::kGoOn;
      refused = true;
      return SimFileSystem::Fate::kRefuse;
    });
    ASSERT_TRUE(files.MakeDirectory("/state").ok());
    const BaseLocation location{&files, "/state"};
    BaseCopy base(location, BestKernels(), OneThread(), RunUnlocked());
    ASSERT_TRUE(base.Replace(BitsOf(models[0]), 0).ok());
    armed = true;
    for (const std::size_t next : {1, 4, 3}) {
      const bool advanced = base.holds() && base.Advance(BitsOf(models[next]), false).ok();
      if (advanced && next == 4) static_cast<void>(base.RollBack(base.version() - 1));
      if (!base.holds()) break;
      const StateView view = base.View();
      std::vector<std::span<const std::uint8_t>> tensors;
      for (std::size_t i = 0; i < view.layout().size(); ++i) tensors.push_back(view.InPlace(i));
      EXPECT_EQ(DigestTensors(tensors, BestKernels(), OneThread()), base.digests()) << failing;
    }
  }
}

}  // namespace
}  // namespace weightwire::testing
