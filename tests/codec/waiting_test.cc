#include "codec/format/waiting.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace weightwire {
namespace {

std::uint32_t Distance(std::uint32_t a, std::uint32_t b) { return a > b ? a - b : b - a; }

TEST(Waiting, BeginsAtCertaintyAndHalvesWithEveryOctave) {
  EXPECT_EQ(Waiting(0), 1u << 31);
  for (std::uint32_t octave = 0; octave <= 10; ++octave)
    EXPECT_EQ(Waiting(octave << kOctaveBits), (1u << 31) >> octave);
}

TEST(Waiting, IsTheFunctionOfTheSpecification) {
  // spec/FORMAT.md, "Positions", word for word.
  constexpr std::uint64_t kK[9] = {2147483648, 1969251188, 1805811301, 1655936265, 1518500250,
                                   1392470869, 1276901417, 1170923762, 1073741824};
  std::uint32_t wrong = 0;
  for (std::uint64_t t = 0; t <= kHorizon; ++t) {
    const std::uint64_t j = (t >> 17) % 8;
    const std::uint64_t f = (kK[j] - (((kK[j] - kK[j + 1]) * (t % (1 << 17))) >> 17)) >> (t >> 20);
    wrong += f != Waiting(static_cast<std::uint32_t>(t));
  }
  EXPECT_EQ(wrong, 0u);
}

TEST(Waiting, FallsWithEveryStepUpToTheHorizon) {
  // Otherwise a unit of rate 1 could have an empty interval, and its change could not be coded.
  std::uint32_t flat = 0;
  for (std::uint32_t t = 0; t < kHorizon; ++t) flat += Waiting(t) <= Waiting(t + 1);
  EXPECT_EQ(flat, 0u);
}

TEST(GuessTime, IsNearTheTruthAtBothEndsOfEveryInterval) {
  // For v in [Waiting(t + 1), Waiting(t)) the largest time with Waiting(time) > v is t.
  std::uint32_t worst = 0;
  for (std::uint32_t t = 0; t < kHorizon; ++t) {
    worst = std::max({worst, Distance(GuessTime(Waiting(t + 1)), t), Distance(GuessTime(Waiting(t) - 1), t)});
  }
  EXPECT_LE(worst, kGuessError);
}

TEST(GuessTime, IsNearTheTruthInBetween) {
  std::mt19937_64 random(1);
  std::uint32_t worst = 0;
  for (int i = 0; i < 2'000'000; ++i) {
    const auto t = static_cast<std::uint32_t>(random() % kHorizon);
    const std::uint32_t v = Waiting(t + 1) + static_cast<std::uint32_t>(random() % (Waiting(t) - Waiting(t + 1)));
    worst = std::max(worst, Distance(GuessTime(v), t));
  }
  EXPECT_LE(worst, kGuessError);
}

TEST(GuessTime, IsNearTheTruthAlsoWithTheLowestBitSet) {
  // The decoder asks for v | 1, because a v of 0 has no logarithm.
  std::uint32_t worst = 0;
  for (std::uint32_t t = 0; t < kHorizon; ++t) {
    worst = std::max({worst, Distance(GuessTime(Waiting(t + 1) | 1), t), Distance(GuessTime((Waiting(t) - 1) | 1), t)});
  }
  EXPECT_LE(worst, kGuessError);
}

TEST(GuessTime, LiesBeyondTheHorizonForWhatIsBeyondIt) {
  // Then the decoder asks exactly. The guess must not come out below the horizon by more than its error.
  const std::uint32_t last = Waiting(kHorizon);
  std::uint32_t least = ~0u;
  for (std::uint32_t v = 0; v < last; ++v) least = std::min(least, GuessTime(v | 1));
  EXPECT_GE(least + kGuessError, kHorizon);
}

}  // namespace
}  // namespace weightwire
