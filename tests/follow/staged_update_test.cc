// A follower whose caller applies: no step changes a target, whatever the update consists of, and Apply brings it to
// exactly the version that was staged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "follow/follower.h"
#include "follow/mirror/mirror_content.h"
#include "follow/mirror/reader.h"
#include "follow/mirror/swap_mirror.h"
#include "follow/targets/array_target.h"
#include "support/manual_clock.h"
#include "support/memory_store.h"
#include "support/run_maker.h"
#include "support/sim_file_system.h"

namespace weightwire {
namespace {

using weightwire::testing::SimDisk;
using weightwire::testing::SimFileSystem;

constexpr const char* kMirrorDirectory = "data/mirror";

enum class Kind { kArrays, kMirror, kSwap };

class StagedUpdateTest : public ::testing::TestWithParam<Kind> {
 protected:
  StagedUpdateTest() : store_(&clock_), maker_(store_), files_(disk_) {
    maker_.Publish();
    const TestState& state = maker_.states()[0];
    memory_ = state.tensors;
    for (auto& bytes : memory_) bytes.assign(bytes.size(), 0);
    if (GetParam() == Kind::kArrays) {
      std::vector<TargetArray> arrays;
      for (std::size_t i = 0; i < memory_.size(); ++i) arrays.push_back({state.layout->tensors()[i], memory_[i]});
      arrays_ = ArrayTarget::Make(std::move(arrays), maker_.kernels(), maker_.pool()).value();
    } else {
      OpenDirectory();
    }
    MakeFollower();
  }

  void OpenDirectory() {
    const auto open = GetParam() == Kind::kMirror ? OpenMirror : OpenSwapMirror;
    mirror_ = open(files_, kMirrorDirectory, {}, maker_.kernels(), maker_.pool()).value();
  }

  void MakeFollower() {
    FollowerOptions options;
    options.apply_at_once = false;
    follower_.emplace(maker_.run(), target(), NewId(maker_.random()), options,
                      FollowerTools{&clock_, &maker_.kernels(), &maker_.pool()});
  }

  [[nodiscard]] Target& target() { return arrays_ != nullptr ? static_cast<Target&>(*arrays_) : *mirror_; }

  // What readers open.
  [[nodiscard]] std::string Weights() {
    if (GetParam() == Kind::kMirror) return kMirrorDirectory;
    const auto link = files_.ReadLink(FileSystem::Path(kMirrorDirectory) / kSwapLink);
    return link.ok() ? std::string(kMirrorDirectory) + "/" + link.value() : std::string("nothing");
  }

  // Everything that a user of the target sees.
  [[nodiscard]] std::map<std::string, std::string> Seen() {
    std::map<std::string, std::string> seen;
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      seen[std::to_string(i)] = std::string(memory_[i].begin(), memory_[i].end());
    }
    if (mirror_ == nullptr) return seen;
    const std::string folder = Weights() + "/";
    for (auto& [name, text] : disk_.Contents()) {
      if (name.starts_with(folder) && !name.starts_with(folder + ".weightwire/")) seen[name] = text;
    }
    return seen;
  }

  // As poll does. Nothing that can be seen changes.
  void Poll() {
    const auto before = Seen();
    const auto held = target().held();
    for (;;) {
      const auto step = follower_->Step();
      ASSERT_TRUE(step.ok()) << step.error().message();
      ASSERT_EQ(Seen(), before);
      ASSERT_EQ(target().held(), held);
      ASSERT_NE(step.value(), FollowerStep::kApply);
      if (step.value() == FollowerStep::kUpToDate) return;
    }
  }

  void ExpectHolds(Version version) {
    ASSERT_TRUE(target().held().has_value());
    ASSERT_EQ(target().held()->version, version);
    const TestState& state = maker_.states()[version];
    if (mirror_ == nullptr) {
      EXPECT_EQ(memory_, state.tensors);
    } else {
      const auto content = MirrorContent::Open(files_, Weights(), state.layout);
      ASSERT_TRUE(content.ok()) << content.error().message();
      for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        EXPECT_TRUE(std::ranges::equal(content.value().tensors()[i], state.tensors[i]));
      }
    }
    EXPECT_TRUE(target().Verify().ok());
  }

  void PollAndApply(Version version) {
    Poll();
    ASSERT_TRUE(follower_->HasStaged());
    const Status applied = follower_->Apply();
    ASSERT_TRUE(applied.ok()) << applied.error().message();
    ExpectHolds(version);
  }

  ManualClock clock_;
  MemoryStore store_;
  RunMaker maker_;
  SimDisk disk_;
  SimFileSystem files_;
  std::vector<std::vector<std::uint8_t>> memory_;
  std::unique_ptr<ArrayTarget> arrays_;
  std::unique_ptr<Mirror> mirror_;
  std::optional<Follower> follower_;
};

TEST_P(StagedUpdateTest, NoStepChangesTheTarget) {
  PollAndApply(0);  // an anchor
  maker_.Publish();
  PollAndApply(1);  // a delta
  maker_.Publish();
  maker_.Publish();
  PollAndApply(3);  // two
  maker_.Publish(/*rebase=*/true);
  PollAndApply(4);  // an anchor over what is held
  maker_.Publish(/*rebase=*/true);
  maker_.Publish();
  PollAndApply(6);  // an anchor and a delta
  maker_.PublishUnchanged();
  PollAndApply(7);
}

TEST_P(StagedUpdateTest, DeltasAreStagedOverALoadThatWaits) {
  PollAndApply(0);
  maker_.Publish(/*rebase=*/true);
  Poll();
  EXPECT_EQ(follower_->status().staged, 1U);
  maker_.Publish();
  Poll();
  EXPECT_EQ(follower_->status().staged, 2U);
  maker_.Publish(/*rebase=*/true);  // takes the place of the load that waits
  PollAndApply(3);
}

TEST_P(StagedUpdateTest, AStagedLoadDoesNotOutliveItsFollower) {
  PollAndApply(0);
  maker_.Publish(/*rebase=*/true);
  Poll();
  follower_.reset();
  if (mirror_ != nullptr) {
    mirror_ = nullptr;
    OpenDirectory();
  }
  ExpectHolds(0);
  MakeFollower();
  PollAndApply(1);
}

TEST_P(StagedUpdateTest, AFailedVerificationMeansAFullLoad) {
  PollAndApply(0);
  maker_.Publish();
  PollAndApply(1);
  if (mirror_ == nullptr) {
    memory_[0][0] ^= 1;
  } else {
    const FileSystem::Path path = FileSystem::Path(Weights()) / "model-00001-of-00002.safetensors";
    const auto map = files_.MapForUpdate(path).value();
    map->ForWriting(map->size_bytes() - 1, 1).value()[0] ^= 1;
  }
  EXPECT_EQ(follower_->Verify().error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(follower_->status().held, std::nullopt);
  Poll();
  EXPECT_EQ(follower_->Staged(), nullptr);
  ASSERT_TRUE(follower_->Apply().ok());
  ExpectHolds(1);
}

TEST_P(StagedUpdateTest, ALoadThatReadersHoldOffIsAppliedLater) {
  if (GetParam() != Kind::kMirror) return;  // only a mirror's readers hold a lock
  PollAndApply(0);
  maker_.Publish(/*rebase=*/true);
  maker_.Publish();
  Poll();
  {
    const auto reading = SharedRead::Begin(files_, kMirrorDirectory);
    ASSERT_TRUE(reading.ok());
    EXPECT_EQ(follower_->Apply().error().code(), ErrorCode::kUnavailable);
    ExpectHolds(0);
  }
  ASSERT_TRUE(follower_->Apply().ok());
  ExpectHolds(2);
}

INSTANTIATE_TEST_SUITE_P(Targets, StagedUpdateTest, ::testing::Values(Kind::kArrays, Kind::kMirror, Kind::kSwap),
                         [](const auto& kind) {
                           return kind.param == Kind::kArrays   ? "arrays"
                                  : kind.param == Kind::kMirror ? "mirror"
                                                                : "swap";
                         });

}  // namespace
}  // namespace weightwire
