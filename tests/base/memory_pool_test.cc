#include "base/memory_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <utility>

#include "base/unfilled_vector.h"

namespace weightwire {
namespace {

constexpr std::size_t kPoolBytes = std::size_t{3} << 20;
using Numbers = UnfilledVector<std::uint32_t>;

Numbers InPool(const std::shared_ptr<MemoryPool>& pool, std::size_t count) {
  Numbers numbers{UnfilledAllocator<std::uint32_t>(pool)};
  numbers.resize(count);
  std::iota(numbers.begin(), numbers.end(), 0U);
  return numbers;
}

TEST(MemoryPool, IsNotMadeForSmallOrExcessiveSizes) {
  EXPECT_EQ(MemoryPool::Make(0), nullptr);
  EXPECT_EQ(MemoryPool::Make(100'000), nullptr);
  EXPECT_EQ(MemoryPool::Make(~std::size_t{0}), nullptr);
}

TEST(MemoryPool, AllocationsDoNotOverlap) {
  const std::shared_ptr<MemoryPool> pool = MemoryPool::Make(kPoolBytes);
  ASSERT_NE(pool, nullptr);
  auto* first = static_cast<std::byte*>(pool->Take(100));
  auto* second = static_cast<std::byte*>(pool->Take(kPoolBytes - MemoryPool::Rounded(100)));
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second, first + MemoryPool::Rounded(100));
  EXPECT_TRUE(pool->Holds(first));
  EXPECT_TRUE(pool->Holds(first + kPoolBytes - 1));
  EXPECT_FALSE(pool->Holds(first + kPoolBytes));
  EXPECT_EQ(pool->Take(1), nullptr);
  EXPECT_EQ(pool->Take(~std::size_t{0}), nullptr);
}

TEST(UnfilledVector, KeepsItsPoolAlive) {
  std::shared_ptr<MemoryPool> pool = MemoryPool::Make(kPoolBytes);
  Numbers numbers = InPool(pool, 1000);
  ASSERT_TRUE(pool->Holds(numbers.data()));
  const std::weak_ptr<MemoryPool> watched = pool;
  pool.reset();
  Numbers moved;
  moved = std::move(numbers);
  numbers = Numbers();
  ASSERT_FALSE(watched.expired());
  EXPECT_EQ(moved[999], 999U);
  moved = Numbers();
  EXPECT_TRUE(watched.expired());
}

TEST(UnfilledVector, IsCopiedOutOfThePool) {
  std::shared_ptr<MemoryPool> pool = MemoryPool::Make(kPoolBytes);
  const Numbers copy = InPool(pool, 1000);
  const Numbers second = copy;
  EXPECT_FALSE(pool->Holds(second.data()));
  EXPECT_EQ(second, copy);
}

TEST(UnfilledVector, AllocatesOutsideAnExhaustedPool) {
  const std::shared_ptr<MemoryPool> pool = MemoryPool::Make(kPoolBytes);
  const Numbers large = InPool(pool, kPoolBytes / sizeof(std::uint32_t));
  const Numbers more = InPool(pool, 10);
  EXPECT_TRUE(pool->Holds(large.data()));
  EXPECT_FALSE(pool->Holds(more.data()));
  EXPECT_EQ(more[9], 9U);
}

}  // namespace
}  // namespace weightwire
