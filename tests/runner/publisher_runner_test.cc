// A publisher with its threads, on a real directory and a real store. Nothing here depends on how fast it goes: tests
// wait for what must come, and hold the store back by a gate where the order matters.
#include "runner/publisher_runner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "base/real_file_system.h"
#include "publish/world.h"
#include "store/backends/file_store.h"
#include "support/temporary_directory.h"

namespace weightwire::testing {
namespace {

// Requests wait here as long as it is shut.
class Gate {
 public:
  void Shut() {
    const std::lock_guard lock(mutex_);
    shut_ = true;
  }
  void Open() {
    {
      const std::lock_guard lock(mutex_);
      shut_ = false;
    }
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !shut_; });
    --waiting_;
  }
  void WaitForSomebody() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool shut_ = false;
  int waiting_ = 0;
};

struct RealWorld {
  SystemClock clock;
  SystemRandom random;
  RealFileSystem files;
  TemporaryDirectory directory;
  MemoryStore bucket{&clock};
  ThreadPool pool{2};

  RealWorld() { EXPECT_TRUE(Run::Create(bucket, false, random).ok()); }

  [[nodiscard]] PublisherTools Tools() { return {&clock, &random, &files, &BestKernels(), &pool, {}}; }
  [[nodiscard]] PublisherOptions Options() const {
    PublisherOptions options;
    options.state_directory = directory / "state";
    options.base_on_disk = true;
    options.retry = {std::chrono::milliseconds(1), std::chrono::milliseconds(1), std::chrono::milliseconds(1)};
    return options;
  }
};

std::unique_ptr<PublisherRunner> MustOpen(RealWorld& world, Store& store, PublisherOptions options) {
  auto runner = PublisherRunner::Open(Run::Open(store).value(), std::move(options), world.Tools());
  if (!runner.ok()) ADD_FAILURE() << runner.error().message();
  return std::move(runner).value();
}

TEST(PublisherRunner, PublishesInTheBackgroundWhileAnchorsGoAlong) {
  RealWorld world;
  PublisherOptions options = world.Options();
  options.anchor_every = 3;
  options.max_versions = 3;
  options.anchor_files.max_shard_bytes = 300;
  std::vector<Model> models = {SmallModel(1)};
  for (std::uint64_t i = 1; i <= 40; ++i) models.push_back(Trained(models.back(), i));
  std::vector<Ticket> tickets;
  {
    auto runner = MustOpen(world, world.bucket, options);
    Model state = models[0];
    for (std::size_t i = 0; i < models.size(); ++i) {
      // The caller's memory is its own again once the call has returned.
      state = models[i];
      auto ticket = runner->Publish(BitsOf(state), i);
      ASSERT_TRUE(ticket.ok()) << ticket.error().message();
      tickets.push_back(ticket.value());
      for (Bytes& tensor : state.tensors) std::fill(tensor.begin(), tensor.end(), 0xff);
    }
    for (const Ticket& ticket : tickets) EXPECT_EQ(runner->Wait(ticket).stage, TicketStage::kCommitted);
    EXPECT_TRUE(runner->Flush());
    EXPECT_EQ(runner->status().version, models.size() - 1);
  }
  const auto versions = ReadWholeRun(world.bucket);
  ASSERT_EQ(versions.size(), models.size());
  for (std::size_t i = 0; i < models.size(); ++i) EXPECT_EQ(versions[i].model, models[i]);
  const auto run = Run::Open(world.bucket);
  const auto anchors = run.value().ListAnchors(0).value();
  EXPECT_GE(anchors.size(), 2u);
  for (const AnchorName& name : anchors) {
    EXPECT_EQ(ReadAnchorBits(run.value(), run.value().ReadAnchor(name).value().manifest), models[name.version]);
  }
}

TEST(PublisherRunner, TheCallerDoesNotWaitForTheNetworkUntilTheSpoolIsFull) {
  RealWorld world;
  Gate gate;
  SimStore slow(world.bucket, [&](std::string_view, std::string_view) {
    gate.Pass();
    return SimStore::Fate::kGoOn;
  });
  PublisherOptions options = world.Options();
  options.max_versions = 3;
  auto runner = MustOpen(world, slow, options);
  std::vector<Model> models = {SmallModel(1)};
  for (std::uint64_t i = 1; i < 4; ++i) models.push_back(Trained(models.back(), i));
  gate.Shut();
  for (std::size_t i = 0; i < 3; ++i) ASSERT_TRUE(runner->Publish(BitsOf(models[i]), i).ok());
  EXPECT_EQ(runner->status().pending_versions, 3u);
  // The fourth waits for room, which comes when the gate is opened.
  std::atomic<bool> returned = false;
  std::thread caller([&] {
    EXPECT_TRUE(runner->Publish(BitsOf(models[3]), 3).ok());
    returned = true;
  });
  gate.WaitForSomebody();
  EXPECT_FALSE(returned);
  gate.Open();
  caller.join();
  EXPECT_TRUE(runner->Flush());
  EXPECT_EQ(VersionsIn(world.bucket), 4u);
}

TEST(PublisherRunner, SkipsWhenToldTo) {
  RealWorld world;
  Gate gate;
  SimStore slow(world.bucket, [&](std::string_view, std::string_view) {
    gate.Pass();
    return SimStore::Fate::kGoOn;
  });
  PublisherOptions options = world.Options();
  options.max_versions = 1;
  options.skip_when_full = true;
  auto runner = MustOpen(world, slow, options);
  gate.Shut();
  ASSERT_TRUE(runner->Publish(BitsOf(SmallModel(1)), 0).ok());
  const auto skipped = runner->Publish(BitsOf(SmallModel(2)), 1);
  ASSERT_TRUE(skipped.ok());
  EXPECT_EQ(runner->Wait(skipped.value(), std::chrono::nanoseconds(0)).stage, TicketStage::kSkipped);
  gate.Open();
  EXPECT_TRUE(runner->Flush());
}

TEST(PublisherRunner, TriesAgainByItself) {
  RealWorld world;
  std::atomic<int> failures = 20;
  std::atomic<bool> armed = false;
  SimStore flaky(world.bucket, [&](std::string_view, std::string_view) {
    return armed && failures-- > 0 ? SimStore::Fate::kUnavailable : SimStore::Fate::kGoOn;
  });
  auto runner = MustOpen(world, flaky, world.Options());
  armed = true;
  const auto ticket = runner->Publish(BitsOf(SmallModel(1)), 0);
  ASSERT_TRUE(ticket.ok());
  EXPECT_EQ(runner->Wait(ticket.value()).stage, TicketStage::kCommitted);
  EXPECT_LE(failures, 0);
}

TEST(PublisherRunner, StoppingKeepsWhatIsSpooledForTheNextStart) {
  RealWorld world;
  const Model first = SmallModel(1);
  const Model second = Trained(first, 1);
  {
    auto runner = MustOpen(world, world.bucket, world.Options());
    ASSERT_TRUE(runner->Publish(BitsOf(first), 0).ok());
    EXPECT_TRUE(runner->Flush());
  }
  {
    std::atomic<bool> gone = false;
    SimStore store(world.bucket, [&](std::string_view, std::string_view) {
      return gone ? SimStore::Fate::kUnavailable : SimStore::Fate::kGoOn;
    });
    auto runner = MustOpen(world, store, world.Options());
    gone = true;
    const auto ticket = runner->Publish(BitsOf(second), 1);
    ASSERT_TRUE(ticket.ok());
    while (!runner->Wait(ticket.value(), std::chrono::nanoseconds(0))
                .times[static_cast<std::size_t>(TicketStage::kSpooled)]
                .has_value()) {
      std::this_thread::yield();
    }
    runner->Stop();
    EXPECT_FALSE(runner->Wait(ticket.value()).IsFinal());
    EXPECT_FALSE(runner->Flush());
  }
  EXPECT_EQ(VersionsIn(world.bucket), 1u);
  auto runner = MustOpen(world, world.bucket, world.Options());
  EXPECT_TRUE(runner->Flush());
  const auto versions = ReadWholeRun(world.bucket);
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_EQ(versions[1].model, second);
}

TEST(PublisherRunner, OnAStoreInADirectory) {
  RealWorld world;
  FileStore store(world.directory / "bucket", "bucket");
  ASSERT_TRUE(Run::Create(store, false, world.random).ok());
  auto runner = MustOpen(world, store, world.Options());
  Model model = SmallModel(1);
  for (std::uint64_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(runner->Publish(BitsOf(model), i).ok());
    model = Trained(model, i);
  }
  EXPECT_TRUE(runner->Flush());
  EXPECT_EQ(VersionsIn(store), 5u);
}

}  // namespace
}  // namespace weightwire::testing
