#include "codec/format/order.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

namespace weightwire {
namespace {

template <typename Unit>
class OrderTest : public ::testing::Test {
 protected:
  static constexpr int kBits = std::numeric_limits<Unit>::digits;

  // All patterns of short units; of long ones the ends, the middle, and many random ones.
  static std::vector<Unit> Patterns() {
    std::vector<Unit> patterns;
    if constexpr (sizeof(Unit) <= 2) {
      for (std::uint32_t u = 0; u < (1u << kBits); ++u) patterns.push_back(static_cast<Unit>(u));
    } else {
      std::mt19937_64 random(kBits);
      const Unit top = Unit{1} << (kBits - 1);
      for (const Unit near : {Unit{0}, top}) {
        for (Unit d = 0; d < 4; ++d) {
          patterns.push_back(near + d);
          patterns.push_back(near - d);
        }
      }
      for (int i = 0; i < 100'000; ++i) patterns.push_back(static_cast<Unit>(random()));
    }
    return patterns;
  }
};
using UnitTypes = ::testing::Types<std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t>;
TYPED_TEST_SUITE(OrderTest, UnitTypes);

constexpr Order kBothOrders[] = {Order::kInteger, Order::kSignMagnitude};

TYPED_TEST(OrderTest, IsItsOwnInverse) {
  for (const Order order : kBothOrders) {
    for (const TypeParam unit : this->Patterns()) {
      ASSERT_EQ(FromOrdinal(ToOrdinal(unit, order), order), unit);
      ASSERT_EQ(ToOrdinal(ToOrdinal(unit, order), order), unit);
    }
  }
}

TYPED_TEST(OrderTest, IntegersAreTheirOwnOrdinal) {
  for (const TypeParam unit : this->Patterns()) ASSERT_EQ(ToOrdinal(unit, Order::kInteger), unit);
}

TYPED_TEST(OrderTest, NegativeNumbersComeInReverseBelowZero) {
  using Signed = std::make_signed_t<TypeParam>;
  constexpr TypeParam kTop = TypeParam{1} << (std::numeric_limits<TypeParam>::digits - 1);
  const auto ordinal = [](TypeParam unit) { return static_cast<Signed>(ToOrdinal(unit, Order::kSignMagnitude)); };
  EXPECT_EQ(ordinal(0), 0);
  EXPECT_EQ(ordinal(kTop), -1) << "minus zero is a number of its own";
  EXPECT_EQ(ordinal(static_cast<TypeParam>(kTop + 1)), -2);
  EXPECT_EQ(ordinal(static_cast<TypeParam>(~TypeParam{0})), std::numeric_limits<Signed>::min());
}

TYPED_TEST(OrderTest, EveryPatternIsReachedFromEveryOther) {
  std::mt19937_64 random(3);
  const std::vector<TypeParam> patterns = this->Patterns();
  const std::uint64_t largest = std::uint64_t{1} << (std::numeric_limits<TypeParam>::digits - 1);
  const auto check = [&](TypeParam from, TypeParam to) {
    for (const Order order : kBothOrders) {
      const Step step = StepBetween(from, to, order);
      ASSERT_EQ(Stepped(from, step, order), to);
      ASSERT_LE(step.magnitude, largest);
      ASSERT_EQ(step.magnitude == 0, from == to);
    }
  };
  if constexpr (sizeof(TypeParam) == 1) {
    for (const TypeParam from : patterns) {
      for (const TypeParam to : patterns) check(from, to);
    }
  } else {
    for (const TypeParam from : patterns) {
      for (int i = 0; i < 4; ++i) check(from, patterns[random() % patterns.size()]);
    }
    for (int i = 0; i < 100; ++i) {
      const TypeParam from = patterns[random() % patterns.size()];
      for (std::size_t k = 0; k < patterns.size(); k += 17) check(from, patterns[k]);
    }
  }
}

TYPED_TEST(OrderTest, EveryMagnitudeHasABucketAndComesBackFromIt) {
  constexpr int kBits = std::numeric_limits<TypeParam>::digits;
  const std::uint64_t largest = std::uint64_t{1} << (kBits - 1);
  const auto check = [&](std::uint64_t magnitude) {
    const Bucket bucket = BucketOf(magnitude);
    ASSERT_LT(int{bucket.symbol}, BucketCount(kBits)) << magnitude;
    ASSERT_EQ(int{bucket.extra_bits}, BucketExtraBits(bucket.symbol)) << magnitude;
    ASSERT_EQ(bucket.extra >> bucket.extra_bits, 0u) << magnitude;
    ASSERT_EQ(MagnitudeOf(bucket.symbol, bucket.extra), magnitude);
  };
  if constexpr (kBits <= 16) {
    for (std::uint64_t magnitude = 1; magnitude <= largest; ++magnitude) check(magnitude);
  } else {
    std::mt19937_64 random(4);
    for (int i = 0; i < 100'000; ++i) check(1 + (random() >> (random() % 64)) % largest);
    for (int log = 0; log < kBits; ++log) {
      for (int d = -2; d <= 2; ++d) {
        const std::uint64_t magnitude = (std::uint64_t{1} << log) + static_cast<std::uint64_t>(d);
        if (magnitude >= 1 && magnitude <= largest) check(magnitude);
      }
    }
  }
  // The last bucket is needed, and its last magnitude is the largest: no bucket holds a step of 2^width.
  const int last = BucketCount(kBits) - 1;
  EXPECT_EQ(MagnitudeOf(last, (std::uint64_t{1} << BucketExtraBits(last)) - 1), largest);
}

TYPED_TEST(OrderTest, BucketsFollowOneAnotherWithoutGaps) {
  constexpr int kBits = std::numeric_limits<TypeParam>::digits;
  std::uint64_t next = 1;
  for (int symbol = 0; symbol < BucketCount(kBits); ++symbol) {
    EXPECT_EQ(MagnitudeOf(symbol, 0), next);
    next += std::uint64_t{1} << BucketExtraBits(symbol);
  }
}

TEST(Order, NeighbouringFloatsAreOneStepApart) {
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  const auto step = [&](float from, float to) { return StepBetween(bits(from), bits(to), Order::kSignMagnitude); };
  for (const float value : {0.0F, 1.0F, -1.0F, 1e-40F, -1e-40F, 3.4e38F, 0.1F}) {
    const float above = std::nextafterf(value, INFINITY);
    EXPECT_EQ(step(value, above).magnitude, 1u) << value;
    EXPECT_FALSE(step(value, above).down) << value;
    EXPECT_TRUE(step(above, value).down) << value;
  }
  EXPECT_EQ(step(0.0F, -0.0F).magnitude, 1u);
  EXPECT_TRUE(step(0.0F, -0.0F).down);
  EXPECT_EQ(step(std::numeric_limits<float>::max(), INFINITY).magnitude, 1u);
}

TEST(Order, NanPayloadsAreNumbersLikeAnyOther) {
  const std::uint16_t quiet = 0x7fc0;
  for (std::uint32_t payload = 0x7f81; payload <= 0x7fff; ++payload) {
    const Step step = StepBetween<std::uint16_t>(quiet, static_cast<std::uint16_t>(payload), Order::kSignMagnitude);
    EXPECT_EQ(Stepped<std::uint16_t>(quiet, step, Order::kSignMagnitude), payload);
  }
}

}  // namespace
}  // namespace weightwire
