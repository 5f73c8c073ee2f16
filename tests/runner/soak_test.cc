// A long run, all at once and with real threads: a publisher with anchors, three followers, one of which disappears for
// a while and one of which joins late, and gc. Everybody ends exact, and neither memory nor open files grow.
//
// Nothing here depends on how fast it goes: the bucket's clock moves on by a second with each version, and leases, ages
// and what happens when are counted in those.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/real_file_system.h"
#include "codec/models.h"
#include "follow/mirror/mirror.h"
#include "follow/mirror/mirror_content.h"
#include "follow/targets/memory_target.h"
#include "log/gc.h"
#include "runner/follow_loop.h"
#include "runner/publisher_runner.h"
#include "store/backends/file_store.h"
#include "store/wrappers/forwarding_store.h"
#include "support/manual_clock.h"
#include "support/temporary_directory.h"

namespace weightwire::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr Version kVersions = 200;
constexpr bool kIsMeasured = false;  // the sanitizers keep memory of their own
#else
constexpr Version kVersions = 2000;
constexpr bool kIsMeasured = true;
#endif

constexpr Version kJoinsLate = kVersions / 5;
constexpr Version kFirstLook = kVersions / 4;
constexpr Version kDisappears = kVersions * 3 / 10;
constexpr Version kComesBack = kVersions * 8 / 10;
constexpr Version kLast = kVersions - 1;
// So often the publisher waits for everybody else, and gc collects. Nobody falls behind by more than twice as much.
constexpr Version kRound = kVersions / 40;
// Shorter than the one that disappears is away; far longer than anybody else ever is silent.
constexpr std::uint64_t kLeaseSeconds = std::max<std::uint64_t>(kMinLeaseSeconds, kVersions * 15 / 100);
// Longer than the publisher takes for anything, so gc finds nothing of its that is only half there.
constexpr std::chrono::seconds kMinimumAge{2 * kRound};

// A directory in memory where there is a place for such: the disk's speed is not what is tested.
class FastDirectory {
 public:
  FastDirectory() {
    std::error_code ignored;
    std::string pattern = std::filesystem::is_directory("/dev/shm", ignored) ? "/dev/shm/" : ::testing::TempDir();
    pattern += "weightwire-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  FastDirectory(const FastDirectory&) = delete;
  FastDirectory& operator=(const FastDirectory&) = delete;
  ~FastDirectory() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// Who has got how far; anybody may wait for anybody.
class Progress {
 public:
  enum Who : std::size_t { kPublisher, kCollector, kSteady, kLeaving, kLate, kAll };

  void Reach(Who who, Version version) {
    {
      const std::lock_guard lock(mutex_);
      reached_[who] = version;
    }
    changed_.notify_all();
  }
  // False: it is over.
  bool Await(Who who, Version version) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return over_ || (reached_[who].has_value() && *reached_[who] >= version); });
    return !over_;
  }
  void End() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<std::optional<Version>, kAll> reached_;
  bool over_ = false;
};

// A directory bucket with a clock of its own.
class Bucket final : public ForwardingStore {
 public:
  explicit Bucket(const std::filesystem::path& path)
      : ForwardingStore(std::make_unique<FileStore>(path, "the bucket")) {}

  [[nodiscard]] const Clock& clock() const { return clock_; }
  void LetPass(std::chrono::nanoseconds time) { clock_.Advance(time); }
  Result<WallTime> Now() override { return clock_.Wall(); }

 private:
  // An upload becomes a put.
  Result<std::unique_ptr<Upload>> DoStartUpload(std::string_view key, std::uint64_t size_bytes) override {
    return Store::DoStartUpload(key, size_bytes);
  }
  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override {
    SetTime(key);
    return inner().Put(key, bytes);
  }
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override {
    SetTime(key);
    auto outcome = inner().PutIfAbsent(key, bytes);
    if (outcome.ok() && outcome.value() == PutOutcome::kCreated && key.starts_with("versions/")) {
      clock_.Advance(std::chrono::seconds(1));
    }
    return outcome;
  }
  Result<ObjectInfo> DoStat(std::string_view key) override {
    WW_TRY(ObjectInfo info, inner().Stat(key));
    info.last_modified = TimeOf(key);
    return info;
  }
  Result<std::vector<ObjectInfo>> DoList(std::string_view prefix, std::string_view after, std::size_t limit) override {
    WW_TRY(std::vector<ObjectInfo> found, inner().List(prefix, after, limit));
    for (ObjectInfo& info : found) info.last_modified = TimeOf(info.key);
    return found;
  }
  Status DoRemove(std::string_view key) override {
    WW_RETURN_IF_ERROR(inner().Remove(key));
    const std::lock_guard lock(mutex_);
    times_.erase(std::string(key));
    return Ok();
  }

  // Records keep no time: nobody asks for it, and there are ever more of them.
  void SetTime(std::string_view key) {
    if (key.starts_with("versions/")) return;
    const std::lock_guard lock(mutex_);
    times_[std::string(key)] = clock_.Wall();
  }
  [[nodiscard]] WallTime TimeOf(std::string_view key) {
    const std::lock_guard lock(mutex_);
    const auto at = times_.find(key);
    return at == times_.end() ? clock_.Wall() : at->second;
  }

  ManualClock clock_;
  std::mutex mutex_;
  std::map<std::string, WallTime, std::less<>> times_;  // guarded by mutex_
};

struct World {
  RealFileSystem files;
  FastDirectory directory;
  Bucket bucket{directory / "bucket"};
  Progress progress;
};

// A follower on a thread of its own.
class FollowerThread {
 public:
  FollowerThread(World& world, Progress::Who who, Target& target, std::uint64_t id_seed, bool every_version,
                 std::optional<Version> until)
      : thread_([this, &world, who, &target, id_seed, every_version, until] {
          SeededRandom seeded(id_seed);
          SystemRandom random;
          ThreadPool pool(1);
          FollowerOptions options;
          options.name = "soak";
          options.every_version = every_version;
          options.lease_seconds = kLeaseSeconds;
          Follower follower(Run::Open(world.bucket).value(), target, NewId(seeded), options,
                            {&world.bucket.clock(), &BestKernels(), &pool});
          FollowLoopOptions loop;
          loop.until = until;
          loop.poll = std::chrono::milliseconds(2);
          FollowLoopEvents events;
          events.applied = [&] {
            world.progress.Reach(who, follower.status().held.value());
            return Ok();
          };
          const auto end = RunFollower(follower, loop, {&world.bucket.clock(), &sleeper_, &random}, events);
          if (!end.ok()) {
            ADD_FAILURE() << "follower " << who << ": " << end.error().message();
            world.progress.End();
          }
          EXPECT_EQ(follower.status().detours, 0u) << "follower " << who << " missed something it needed";
          // One that disappears says nothing.
          if (!until.has_value()) (void)follower.ReleaseLease();
        }) {}
  ~FollowerThread() {
    sleeper_.Stop();
    thread_.join();
  }
  FollowerThread(const FollowerThread&) = delete;
  FollowerThread& operator=(const FollowerThread&) = delete;

 private:
  SystemSleeper sleeper_;
  std::thread thread_;
};

// Collects once; what was removed.
std::uint64_t Collect(Bucket& bucket, std::chrono::seconds minimum_age) {
  SystemRandom random;
  GcOptions options;
  options.policy.anchors = 2;
  options.policy.minimum_age = minimum_age;
  options.grace = std::chrono::seconds(0);
  Collector collector(Run::Open(bucket).value(), options, random);
  for (;;) {
    const auto step = collector.Step();
    if (!step.ok()) {
      ADD_FAILURE() << "gc: " << step.error().message();
      return 0;
    }
    if (step.value().what == GcStep::What::kDone) return collector.progress().removed.objects;
    // The publisher may be waiting for us, and then no version moves the clock.
    if (step.value().what == GcStep::What::kWaits) bucket.LetPass(step.value().wait);
  }
}

// Collects again and again, while the publisher goes on.
class CollectorThread {
 public:
  explicit CollectorThread(World& world)
      : progress_(world.progress), thread_([this, &world] {
          for (Version next = 0; progress_.Await(Progress::kPublisher, next); next += kRound) {
            removed_ += Collect(world.bucket, kMinimumAge);
            progress_.Reach(Progress::kCollector, next);
          }
        }) {}
  ~CollectorThread() { Finish(); }
  CollectorThread(const CollectorThread&) = delete;
  CollectorThread& operator=(const CollectorThread&) = delete;

  // What it has removed in all.
  std::uint64_t Finish() {
    progress_.End();
    if (thread_.joinable()) thread_.join();
    return removed_;
  }

 private:
  Progress& progress_;
  std::uint64_t removed_ = 0;  // until the end, its thread's
  std::thread thread_;
};

struct Footprint {
  std::uint64_t anonymous_kib = 0;
  std::size_t open_files = 0;
};

Footprint Look() {
  ::malloc_trim(0);
  Footprint footprint;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "RssAnon:") status >> footprint.anonymous_kib;
  }
  footprint.open_files = EntryCount("/proc/self/fd");
  return footprint;
}

Model FirstModel() {
  Random random(1);
  return ModelOf({{{"embed", DType::kBF16, {200, 100}}, WeightLikeBf16(random, 20'000)},
                  {{"layer.a", DType::kBF16, {100, 100}}, WeightLikeBf16(random, 10'000)},
                  {{"norm", DType::kF32, {100}}, RandomBytes(random, 400)}});
}

std::unique_ptr<Mirror> MustOpenMirror(World& world, std::string_view name, ThreadPool& pool) {
  auto mirror = OpenMirror(world.files, world.directory / name, {}, BestKernels(), pool);
  if (!mirror.ok()) ADD_FAILURE() << mirror.error().message();
  return std::move(mirror).value();
}

void ExpectFiles(World& world, std::string_view name, const Model& model) {
  const auto content = MirrorContent::Open(world.files, world.directory / name, model.layout);
  ASSERT_TRUE(content.ok()) << content.error().message();
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    const auto bytes = content.value().tensors()[i];
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), model.tensors[i].begin(), model.tensors[i].end())) << name;
  }
}

TEST(Soak, EverybodyEndsExactAndNothingGrows) {
  World world;
  Progress& progress = world.progress;
  SystemRandom random;
  SystemClock clock;
  ASSERT_TRUE(Run::Create(world.bucket, false, random).ok());

  ThreadPool pool(1);
  PublisherOptions options;
  options.state_directory = world.directory / "state";
  options.base_on_disk = true;
  options.anchor_every = kRound;
  auto publisher = PublisherRunner::Open(Run::Open(world.bucket).value(), options,
                                         {&clock, &random, &world.files, &BestKernels(), &pool, {}});
  ASSERT_TRUE(publisher.ok()) << publisher.error().message();

  ThreadPool steady_pool(1);
  ThreadPool leaving_pool(1);
  ThreadPool late_pool(1);
  const auto steady = MustOpenMirror(world, "steady", steady_pool);
  auto leaving = MustOpenMirror(world, "leaving", leaving_pool);
  MemoryTarget late(BestKernels(), late_pool);
  std::optional<FollowerThread> steady_thread(std::in_place, world, Progress::kSteady, *steady, 1, true, std::nullopt);
  std::optional<FollowerThread> leaving_thread(std::in_place, world, Progress::kLeaving, *leaving, 2, false,
                                               kDisappears);
  std::optional<FollowerThread> late_thread;

  CollectorThread collector(world);
  const std::filesystem::path needed_by_the_one_away =
      world.directory / "bucket" / DeltaFolder(kDisappears, kDisappears + 1);
  Version last_for_the_one_leaving = kDisappears;
  Model model = FirstModel();
  Random training(7);
  Footprint before;
  const auto await_all = [&](Version version) {
    ASSERT_TRUE(publisher.value()->Flush());
    progress.Await(Progress::kCollector, version >= 2 * kRound ? version - 2 * kRound : 0);
    progress.Await(Progress::kSteady, version);
    if (leaving_thread.has_value()) progress.Await(Progress::kLeaving, std::min(version, last_for_the_one_leaving));
    if (late_thread.has_value()) progress.Await(Progress::kLate, version);
  };
  for (Version version = 0; version < kVersions; ++version) {
    if (version % kRound == kRound - 1) await_all(version - 1);
    if (version == kJoinsLate) late_thread.emplace(world, Progress::kLate, late, 3, false, std::nullopt);
    if (version == kFirstLook) {
      await_all(version - 1);
      before = Look();
    }
    if (version == kDisappears + 1) {
      await_all(version - 1);
      leaving_thread.reset();
      leaving.reset();
    }
    if (version == kComesBack) {
      // Its lease is over, and what it would have needed is gone. It comes back all the same.
      await_all(version - 1);
      EXPECT_FALSE(std::filesystem::exists(needed_by_the_one_away));
      last_for_the_one_leaving = kLast;
      leaving = MustOpenMirror(world, "leaving", leaving_pool);
      ASSERT_TRUE(leaving->held().has_value());
      EXPECT_EQ(leaving->held()->version, kDisappears);
      leaving_thread.emplace(world, Progress::kLeaving, *leaving, 2, false, std::nullopt);
    }
    StepBf16(training, model["embed"], 100);
    StepBf16(training, model["layer.a"], 100);
    ++model["norm"][version % 400];
    const auto ticket =
        publisher.value()->Publish({model.layout, {model.tensors.begin(), model.tensors.end()}}, version);
    ASSERT_TRUE(ticket.ok()) << ticket.error().message();
    progress.Reach(Progress::kPublisher, version);
  }
  await_all(kLast);
  EXPECT_EQ(publisher.value()->status().version, kLast);
  const Footprint after = Look();
  const std::uint64_t removed = collector.Finish();
  steady_thread.reset();
  leaving_thread.reset();
  late_thread.reset();

  ExpectFiles(world, "steady", model);
  ExpectFiles(world, "leaving", model);
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    const auto bytes = late.bytes(i);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), model.tensors[i].begin(), model.tensors[i].end()));
  }
  EXPECT_GT(removed, kVersions * 8 / 10);
  if (!kIsMeasured) return;
  RecordProperty("removed_by_gc", std::to_string(removed));
  RecordProperty("anonymous_kib_before", std::to_string(before.anonymous_kib));
  RecordProperty("anonymous_kib_after", std::to_string(after.anonymous_kib));
  // Less than if each of the versions between had left 3 KiB, about one delta, behind.
  EXPECT_LT(after.anonymous_kib, before.anonymous_kib + 4'500);
  // A request or two are on their way at any time.
  EXPECT_LE(after.open_files, before.open_files + 6);
}

}  // namespace
}  // namespace weightwire::testing
