#include "sim/mirror_machine.h"

#include <fmt/format.h>

#include <algorithm>

#include "follow/mirror/mirror_content.h"

namespace weightwire::sim {
namespace {

using weightwire::testing::SimFileSystem;

constexpr const char* kDirectory = "/mirror";

}  // namespace

class MirrorFollower::Keeper final : public Process {
 public:
  explicit Keeper(MirrorFollower& machine) : Process(machine.name() + "/follower"), machine_(machine) {}
  void Step() override { machine_.Follow(); }

 private:
  MirrorFollower& machine_;
};

class MirrorFollower::Reader final : public Process {
 public:
  explicit Reader(MirrorFollower& machine) : Process(machine.name() + "/reader"), machine_(machine) {}
  void Step() override { machine_.Read(); }

 private:
  MirrorFollower& machine_;
};

MirrorFollower::MirrorFollower(World& world, Bucket& bucket, Oracle& oracle, std::string name, FollowerOptions options,
                               const Planted& planted)
    : Machine(world, name),
      bucket_(bucket),
      oracle_(oracle),
      options_(std::move(options)),
      planted_(planted),
      random_(world.random().Next()),
      id_(NewId(random_)),
      keeper_(std::make_unique<Keeper>(*this)),
      reader_(std::make_unique<Reader>(*this)) {
  options_.name = std::move(name);
}

MirrorFollower::~MirrorFollower() = default;

std::vector<Process*> MirrorFollower::processes() { return {keeper_.get(), reader_.get()}; }

std::unique_ptr<SimFileSystem> MirrorFollower::NewProcess() {
  return std::make_unique<SimFileSystem>(disk_, [this](std::string_view effect, const FileSystem::Path& path) {
    if (!world().Effect(*this, effect, path.string())) return SimFileSystem::Fate::kDie;
    const bool refuse = world().Chance(world().rates().disk_refuses);
    if (refuse) world().Trace("the disk refuses");
    return refuse ? SimFileSystem::Fate::kRefuse : SimFileSystem::Fate::kGoOn;
  });
}

void MirrorFollower::OnStart() { reader_files_ = NewProcess(); }

void MirrorFollower::EndFollowing() {
  ceiling_.reset();
  is_limited_ = false;
  in_doubt_ = false;
  follower_ = nullptr;
  mirror_ = nullptr;
  store_ = nullptr;
  faulty_files_ = nullptr;
  files_ = nullptr;
}

void MirrorFollower::OnDeath(bool power_failed) {
  EndFollowing();
  reading_.reset();
  reader_files_ = nullptr;
  if (power_failed) disk_.Crash(world().random());
}

std::optional<Version> MirrorFollower::held() const {
  if (mirror_ == nullptr || !mirror_->held().has_value()) return std::nullopt;
  return mirror_->held()->version;
}

void MirrorFollower::Open() {
  files_ = NewProcess();
  faulty_files_ = std::make_unique<weightwire::testing::FaultyMirrorDisk>(*files_, kDirectory, planted_.mirror);
  store_ = std::make_unique<FollowerStore>(bucket_, *this, options_.keep_lease, planted_.follower_stores);
  auto mirror = OpenMirror(*faulty_files_, kDirectory, {}, oracle_.kernels(), oracle_.pool());
  if (dead()) return;
  if (!mirror.ok()) {
    world().Trace(fmt::format("{} cannot open its mirror: {}", name(), mirror.error().message()));
    EndFollowing();
    return;
  }
  mirror_ = std::move(mirror).value();
  CheckMirror();
}

void MirrorFollower::Follow() {
  // The operating system writes when it likes.
  if (random_.Below(8) == 0) disk_.WriteBack(random_);
  if (mirror_ == nullptr) return Open();
  store_->BeginStep();
  if (follower_ == nullptr) {
    auto run = Run::Open(store_->store());
    if (!run.ok()) return;
    follower_ = std::make_unique<Follower>(run.value(), *mirror_, id_, options_,
                                           FollowerTools{&world().clock(), &oracle_.kernels(), &oracle_.pool()});
    return;
  }
  if (world().faults() && random_.Below(12) == 0 && mirror_->undo_target().has_value()) return TakeBack();
  if (world().faults() && random_.Below(40) == 0 && oracle_.version_count() != 0) Limit();
  // The operator lets it go on: the version may be gone, and waiting for it ends in errors only.
  if (!world().faults() && is_limited_) Unlimit();
  const bool apply = !options_.apply_at_once && follower_->HasStaged() && random_.Below(4) == 0;
  Result<FollowerStep> step = FollowerStep::kApply;
  if (apply) {
    if (const Status applied = follower_->Apply(); !applied.ok()) step = applied.error();
  } else {
    step = follower_->Step();
  }
  if (dead()) return;
  if (!step.ok()) {
    world().Trace(fmt::format("{} cannot go on: {}", name(), step.error().message()));
    // A mirror whose disk failed is opened again, by another process; or the follower mends it itself.
    if (step.error().code() == ErrorCode::kIo) in_doubt_ = true;
    if (step.error().code() == ErrorCode::kIo && random_.Below(2) == 0) EndFollowing();
    return;
  }
  if (step.value() == FollowerStep::kApply) CheckMirror();
  if (step.value() == FollowerStep::kUpToDate) {
    in_doubt_ = false;
    world().Wait(std::chrono::seconds(1));
    Unlimit();  // it may have been taken back, limited or pinned
  }
}

void MirrorFollower::Limit() {
  const Version at = random_.Below(oracle_.version_count());
  // A change that its disk has left half done may still be finished, wherever it leads.
  ceiling_ = in_doubt_ ? std::nullopt : std::optional(std::max(at, held().value_or(at)));
  is_limited_ = true;
  if (random_.Below(2) == 0) {
    world().Trace(fmt::format("{} is limited to version {}", name(), at));
    follower_->LimitTo(at);
    return;
  }
  world().Trace(fmt::format("{} is pinned to version {}", name(), at));
  follower_->Pin(at);
  // A crash on the way back may leave it at the version of an anchor before the pin.
  if (floor_.has_value() && at < *floor_) floor_ = 0;
}

void MirrorFollower::Unlimit() {
  follower_->Unpin();
  follower_->LimitTo(std::nullopt);
  is_limited_ = false;
  ceiling_.reset();
}

void MirrorFollower::TakeBack() {
  floor_ = std::min(mirror_->undo_target()->version, *floor_);
  const Status undone = follower_->Undo();
  if (dead()) return;
  if (!undone.ok()) {
    world().Trace(fmt::format("{} cannot take a change back: {}", name(), undone.error().message()));
    if (undone.error().code() == ErrorCode::kIo) EndFollowing();
    return;
  }
  world().Trace(name() + " took a change back");
  CheckMirror();
}

void MirrorFollower::CheckMirror() {
  if (mirror_->damage().has_value()) {
    world().Violation(fmt::format("{} has lost its mirror: {}", name(), mirror_->damage()->message()));
    return;
  }
  if (!mirror_->held().has_value()) {
    if (floor_.has_value()) world().Violation(fmt::format("{} has forgotten version {}", name(), *floor_));
    return;
  }
  const Held& held = *mirror_->held();
  world().Trace(fmt::format("{} holds version {}", name(), held.version));
  if (floor_.has_value() && held.version < *floor_) {
    world().Violation(fmt::format("{} went back from version {} to {}", name(), *floor_, held.version));
  }
  if (ceiling_.has_value() && held.version > *ceiling_) {
    world().Violation(fmt::format("{} went on to version {}, beyond {}", name(), held.version, *ceiling_));
  }
  floor_ = held.version;
  ExpectFiles(*files_, name(), held);
}

void MirrorFollower::Read() {
  if (!reading_.has_value()) {
    auto reading = SharedRead::Begin(*reader_files_, kDirectory);
    if (reading.ok() && !dead()) reading_.emplace(std::move(reading).value());
    return;
  }
  // It takes its time, while the follower would like to write.
  if (random_.Below(4) != 0) return;
  if (reading_->Confirm().ok()) {
    ExpectFiles(*reader_files_, reader_->name(), reading_->held());
  } else {
    world().Violation(fmt::format("what {} reads has changed under its lock", reader_->name()));
  }
  reading_.reset();
}

void MirrorFollower::ExpectFiles(FileSystem& files, const std::string& who, const Held& held) {
  const auto truth = oracle_.Find(held);
  if (truth == nullptr) {
    world().Violation(fmt::format("{} says it holds version {}, but there is no such one", who, held.version));
    return;
  }
  const auto content = MirrorContent::Open(files, kDirectory, truth->layout);
  if (!content.ok()) {
    world().Violation(fmt::format("{} cannot read version {}: {}", who, held.version, content.error().message()));
    return;
  }
  oracle_.Expect(who, held.version, content.value().layout(), content.value().tensors());
}

}  // namespace weightwire::sim
