#include "store/wrappers/limit_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "store/bytes.h"
#include "store/wrappers/forwarding_store.h"
#include "support/manual_clock.h"
#include "support/memory_store.h"

namespace weightwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Bytes;
using testing::ExpectError;
using testing::Succeeds;

TEST(LimitStore, HoldsTheRateOverSeveralCalls) {
  ManualClock clock;
  ManualSleeper sleeper(&clock);
  LimitStore store(std::make_unique<MemoryStore>(&clock), {.bytes_per_second = 1000, .requests_at_once = 0}, &clock,
                   &sleeper);
  Bytes out(500);
  ASSERT_TRUE(Succeeds(store.Put("a", Bytes(1000))));
  EXPECT_EQ(clock.Monotonic(), seconds(0));  // the line was free
  ASSERT_TRUE(Succeeds(store.Read("a", 0, out)));
  EXPECT_EQ(clock.Monotonic(), seconds(1));
  ASSERT_TRUE(Succeeds(store.Get("a", 1000)));
  EXPECT_EQ(clock.Monotonic(), milliseconds(1500));
  ASSERT_TRUE(Succeeds(store.PutIfAbsent("b", Bytes(1))));
  EXPECT_EQ(clock.Monotonic(), milliseconds(2500));
  auto upload = store.StartUpload("c", 2000);
  ASSERT_TRUE(Succeeds(upload));
  ASSERT_TRUE(Succeeds(upload.value()->WritePart(0, Bytes(2000))));
  EXPECT_EQ(clock.Monotonic(), milliseconds(2501));
  // What was not used meanwhile is not saved up.
  clock.Advance(seconds(100));
  ASSERT_TRUE(Succeeds(store.Put("a", Bytes(1000))));
  ASSERT_TRUE(Succeeds(store.Put("a", Bytes(1000))));
  EXPECT_EQ(clock.Monotonic(), milliseconds(103'501));
}

TEST(LimitStore, RequestsWithoutBytesDoNotWaitForTheRate) {
  ManualClock clock;
  ManualSleeper sleeper(&clock);
  LimitStore store(std::make_unique<MemoryStore>(&clock), {.bytes_per_second = 1, .requests_at_once = 0}, &clock,
                   &sleeper);
  ASSERT_TRUE(Succeeds(store.Put("a", Bytes(1000))));
  ASSERT_TRUE(Succeeds(store.Stat("a")));
  ASSERT_TRUE(Succeeds(store.List("", "", 1)));
  ASSERT_TRUE(Succeeds(store.Remove("a")));
  EXPECT_EQ(clock.Monotonic(), seconds(0));
}

TEST(LimitStore, StoppingEndsTheWait) {
  SystemClock clock;
  SystemSleeper sleeper;
  sleeper.Stop();
  LimitStore store(std::make_unique<MemoryStore>(&clock), {.bytes_per_second = 1, .requests_at_once = 0}, &clock,
                   &sleeper);
  ASSERT_TRUE(Succeeds(store.Put("a", Bytes(1'000'000))));
  ExpectError(store.Put("a", Bytes(1)), ErrorCode::kUnavailable);
}

// Counts how many are inside at once.
class CountingStore final : public ForwardingStore {
 public:
  explicit CountingStore(const Clock* clock) : ForwardingStore(std::make_unique<MemoryStore>(clock)) {}
  Result<WallTime> Now() override {
    const int inside = ++inside_;
    int most = most_.load();
    while (inside > most && !most_.compare_exchange_weak(most, inside)) {
    }
    // Stay until the room is full, so that one too many would be seen.
    while (!full_ && inside_.load() < 3) std::this_thread::yield();
    full_ = true;
    --inside_;
    return WallTime();
  }
  [[nodiscard]] int most() const { return most_; }

 private:
  std::atomic<int> inside_ = 0;
  std::atomic<int> most_ = 0;
  std::atomic<bool> full_ = false;
};

TEST(LimitStore, LetsOnlySoManyInAtOnce) {
  SystemClock clock;
  SystemSleeper sleeper;
  auto counting = std::make_unique<CountingStore>(&clock);
  const CountingStore& counts = *counting;
  LimitStore store(std::move(counting), {.bytes_per_second = 0, .requests_at_once = 3}, &clock, &sleeper);
  std::vector<std::thread> threads;
  for (int i = 0; i < 12; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < 50; ++call) EXPECT_TRUE(Succeeds(store.Now()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counts.most(), 3);
}

}  // namespace
}  // namespace weightwire
