#include "codec/encode/sample_tables.h"

#include <gtest/gtest.h>

#include <random>

#include "codec/format/format.h"

namespace weightwire {
namespace {

// Rates that halve with every class, about as those of trained weights do, with some classes empty and some that
// contradict it.
Classes AnyClasses(std::mt19937_64& random, std::uint64_t units) {
  Classes classes;
  classes.alphabet = static_cast<std::size_t>(BucketCount(16));
  classes.symbols.resize(kClassCount * classes.alphabet);
  for (std::size_t c = 0; c < kClassCount; ++c) {
    if (random() % 4 == 0) continue;
    classes.units[c] = 1 + random() % units;
    const std::uint64_t largest =
        random() % 8 == 0 ? classes.units[c] : classes.units[c] >> std::min<std::size_t>(c, 9);
    classes.changed[c] = random() % (largest + 1);
    classes.symbols[c * classes.alphabet] = classes.changed[c];
  }
  return classes;
}

TableSet SetOf(const Classes& classes, TableKind kind) {
  Sample sample;
  sample.complete = false;
  TableSet set = SetWithSymbols(classes, {7, 8, 110, Order::kSignMagnitude}, sample);
  SetRates(classes, sample.complete, kind, set);
  return set;
}

TEST(BestScale, CostsHardlyMoreThanAnyOther) {
  std::mt19937_64 random(1);
  for (int turn = 0; turn < 400; ++turn) {
    const std::uint64_t units = std::uint64_t{1} << (4 + random() % 44);  // few and many: both kinds of numbers
    const TableSet set =
        SetOf(AnyClasses(random, units), turn % 5 == 0 ? TableKind::kUniform : TableKind::kConditioned);
    const Classes classes = AnyClasses(random, units);
    const int best = BestScale(classes, set);
    const Cost least = PositionCost(classes, set, best);
    for (int scale = -kMaxScale; scale <= kMaxScale; ++scale) {
      const Cost cost = PositionCost(classes, set, scale);
      ASSERT_LE(least * 20, cost * 21) << "turn " << turn << ": " << scale << " beats " << best;
    }
  }
}

TEST(SetRates, CostNoMoreThanAnyOtherUniformRate) {
  std::mt19937_64 random(2);
  for (int turn = 0; turn < 400; ++turn) {
    Classes classes = AnyClasses(random, std::uint64_t{1} << (4 + random() % 44));
    Sample all;  // complete: the counts are what is to be coded
    TableSet set = SetWithSymbols(classes, {7, 8, 110, Order::kSignMagnitude}, all);
    SetRates(classes, /*complete=*/true, TableKind::kUniform, set);
    const Cost least = PositionCost(classes, set, 0);
    for (int code = 0; code <= kMaxRateCode; ++code) {
      set.rate_codes.fill(static_cast<std::uint8_t>(code));
      ASSERT_GE(PositionCost(classes, set, 0), least) << "turn " << turn << ", code " << code;
    }
  }
}

TEST(SymbolCost, IsTheSameByPricesAndByTheSet) {
  std::mt19937_64 random(3);
  int impossible = 0;
  for (int turn = 0; turn < 200; ++turn) {
    const bool dense = turn % 2 == 0;
    const auto any_symbols = [&] {
      Classes classes = AnyClasses(random, 1000);
      classes.dense = dense;
      classes.alphabet += dense ? 1 : 0;
      classes.symbols.assign(kClassCount * classes.alphabet, 0);
      for (std::uint64_t& count : classes.symbols) count += random() % 3 == 0 ? random() % 50 : 0;
      return classes;
    };
    Sample sample;
    sample.complete = turn % 4 < 2;  // then what was not seen cannot be coded
    const TableSet set = SetWithSymbols(any_symbols(), {7, 8, 110, Order::kSignMagnitude}, sample);
    const Classes classes = any_symbols();
    const Cost cost = SymbolCost(classes, set);
    EXPECT_EQ(cost, SymbolCost(classes, std::span<const std::uint64_t>(SymbolPricesOf(set))));
    EXPECT_TRUE(sample.complete || cost != kImpossible);
    impossible += cost == kImpossible ? 1 : 0;
  }
  EXPECT_GT(impossible, 0);
}

TEST(OwnCosts, AreThoseOfTheSetThatBuildSetMakes) {
  std::mt19937_64 random(4);
  for (int turn = 0; turn < 300; ++turn) {
    const auto kind = static_cast<TableKind>(turn % 3);
    Classes classes = AnyClasses(random, std::uint64_t{1} << (4 + random() % 44));
    classes.dense = kind == TableKind::kDense;
    classes.alphabet += classes.dense ? 1 : 0;
    classes.symbols.assign(kClassCount * classes.alphabet, 0);
    for (std::size_t c = 0; c < kClassCount; ++c) {
      std::uint64_t left = classes.changed[c];
      std::uint64_t* const symbols = classes.symbols.data() + c * classes.alphabet;
      if (classes.dense) symbols[0] = classes.units[c] - left;
      const std::size_t first = classes.dense ? 1 : 0;
      for (std::size_t s = first; s + 1 < classes.alphabet && left > 0 && random() % 4 != 0; ++s) {
        const std::uint64_t some = random() % (left + 1);
        symbols[s] += some;
        left -= some;
      }
      symbols[first + random() % 3] += left;
    }
    Sample sample;
    sample.complete = turn % 2 == 0;
    TableSet set = SetWithSymbols(classes, {7, 8, 110, Order::kSignMagnitude}, sample);
    SetRates(classes, sample.complete, kind, set);
    EXPECT_TRUE(OwnTableCost(classes, kind) == TableCost(set)) << turn;
    EXPECT_TRUE(OwnPositionCost(classes, sample.complete, kind) == PositionCost(classes, set, 0)) << turn;
    EXPECT_TRUE(OwnSymbolCost(classes, sample.complete) == SymbolCost(classes, set)) << turn;
  }
}

}  // namespace
}  // namespace weightwire
