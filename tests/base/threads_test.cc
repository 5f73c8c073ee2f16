#include "base/threads.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <csignal>
#include <numeric>
#include <vector>

namespace weightwire {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 7));

TEST_P(ThreadPoolTest, VisitsEveryIndexOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (const std::size_t count : {0, 1, 2, 3, 1000}) {
    // Plain integers: if two threads took the same index or the end were not waited for, the thread sanitizer sees it.
    std::vector<int> visits(count, 0);
    pool.ParallelFor(count, [&](std::size_t index, std::size_t worker) {
      ASSERT_LT(worker, GetParam());
      ++visits[index];
    });
    EXPECT_EQ(visits, std::vector<int>(count, 1)) << count;
  }
}

TEST_P(ThreadPoolTest, AWorkerIsNeverInTwoCallsAtOnce) {
  ThreadPool pool(GetParam());
  std::vector<std::size_t> scratch(pool.threads(), 0);
  constexpr std::size_t kCount = 2000;
  pool.ParallelFor(kCount, [&](std::size_t index, std::size_t worker) { scratch[worker] += index; });
  EXPECT_EQ(std::accumulate(scratch.begin(), scratch.end(), std::size_t{0}), kCount * (kCount - 1) / 2);
}

TEST_P(ThreadPoolTest, RunsManyShortLoopsInARow) {
  ThreadPool pool(GetParam());
  std::size_t sum = 0;
  for (std::size_t loop = 0; loop < 500; ++loop) {
    std::atomic<std::size_t> calls = 0;
    pool.ParallelFor(3, [&](std::size_t, std::size_t) { ++calls; });
    sum += calls;
  }
  EXPECT_EQ(sum, 1500U);
}

TEST(ThreadPool, SeveralThreadsWorkAtTheSameTime) {
  ThreadPool pool(2);
  std::atomic<int> inside = 0;
  // Each call waits for the other: only two threads get past this.
  pool.ParallelFor(2, [&](std::size_t, std::size_t) {
    ++inside;
    while (inside.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(inside.load(), 2);
}

TEST(ThreadPool, ItsThreadsBlockTheSignalsOfTheProcess) {
  ThreadPool pool(2);
  std::array<sigset_t, 2> masks;
  std::atomic<int> inside = 0;
  pool.ParallelFor(2, [&](std::size_t, std::size_t worker) {
    pthread_sigmask(SIG_BLOCK, nullptr, &masks[worker]);
    ++inside;
    while (inside.load() < 2) std::this_thread::yield();
  });
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) {
    EXPECT_EQ(sigismember(&masks[0], signal), 0) << "the caller's own are as they were";
    EXPECT_EQ(sigismember(&masks[1], signal), 1);
  }
  EXPECT_EQ(sigismember(&masks[1], SIGSEGV), 0);
}

TEST(ThreadPoolDeathTest, AbortsOnALoopWithinALoop) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.ParallelFor(4, [&](std::size_t, std::size_t) { pool.ParallelFor(4, [](std::size_t, std::size_t) {}); });
      },
      "broken invariant");
}

}  // namespace
}  // namespace weightwire
