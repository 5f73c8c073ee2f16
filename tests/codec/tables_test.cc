#include "codec/format/tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace weightwire {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;

Bytes BytesOf(const TableSet& set) {
  Bytes bytes;
  ByteWriter writer(bytes);
  set.Write(writer);
  return bytes;
}

Result<TableSet> Read(const Bytes& bytes) {
  ByteReader reader(bytes);
  WW_TRY(TableSet set, TableSet::Read(reader));
  WW_RETURN_IF_ERROR(reader.ExpectEnd());
  return set;
}

TableSet RandomSet(std::mt19937_64& random, int unit_bits) {
  TableSet set;
  set.unit_bits = unit_bits;
  const auto kind = random() % 3;
  set.dense = kind == 1;
  set.uniform = kind == 2;
  set.rule.bits = static_cast<std::uint8_t>(random() % (std::min(8, unit_bits - 1) + 1));
  set.rule.shift = static_cast<std::uint8_t>(random() % static_cast<std::uint64_t>(unit_bits - set.rule.bits));
  set.rule.lowest = static_cast<std::uint8_t>(random());
  set.rule.order = random() % 2 == 0 ? Order::kInteger : Order::kSignMagnitude;
  if (!set.dense) {
    for (auto& code : set.rate_codes) code = static_cast<std::uint8_t>(random() % (kMaxRateCode + 1));
    if (set.uniform) set.rate_codes.fill(set.rate_codes[0]);
  }
  for (SymbolWeights& weights : set.symbols) {
    weights.tail = random() % 2 == 0;
    weights.codes.resize(random() % (static_cast<std::uint64_t>(set.AlphabetSize()) + 1), 1);
    if (weights.codes.size() > 1) {
      for (auto& code : weights.codes) code = static_cast<std::uint8_t>(random() % (kMaxRateCode + 2));
      weights.codes.back() = static_cast<std::uint8_t>(1 + random() % (kMaxRateCode + 1));
    }
  }
  return set;
}

TEST(RateOf, RisesEightStepsADoubling) {
  EXPECT_EQ(RateOf(0), 1u);
  EXPECT_EQ(RateOf(8 * 10), 1u << 10);
  EXPECT_EQ(RateOf(kMaxRateCode), 235u << 16);
  for (int code = 1; code <= kMaxRateCode; ++code) EXPECT_GE(RateOf(code), RateOf(code - 1)) << code;
  EXPECT_LT(RateOf(kMaxRateCode), 1u << 24);
}

TEST(ClassRule, TakesAWindowOfTheField) {
  const ClassRule rule{7, 8, 100, Order::kSignMagnitude};
  EXPECT_EQ(rule.ClassOfField(0), 0);
  EXPECT_EQ(rule.ClassOfField(100), 0);
  EXPECT_EQ(rule.ClassOfField(101), 1);
  EXPECT_EQ(rule.ClassOfField(115), 15);
  EXPECT_EQ(rule.ClassOfField(255), 15);
  EXPECT_TRUE(rule.Fits(16));
  EXPECT_FALSE(rule.Fits(8));
  EXPECT_FALSE((ClassRule{9, 8, 0, Order::kInteger}).Fits(16));
  EXPECT_FALSE((ClassRule{8, 0, 0, Order::kInteger}).Fits(8)) << "a shift by the whole width";
}

TEST(TableSet, ReadsBackWhatItWrites) {
  std::mt19937_64 random(1);
  for (const int unit_bits : {8, 16, 32, 64}) {
    for (int i = 0; i < 500; ++i) {
      const TableSet set = RandomSet(random, unit_bits);
      ASSERT_TRUE(set.CheckFits().ok());
      auto again = Read(BytesOf(set));
      ASSERT_TRUE(again.ok()) << again.error().message();
      again.value().unit_bits = unit_bits;  // from the tensors that use it
      ASSERT_EQ(again.value(), set);
    }
  }
}

TEST(TableSet, RefusesTruncation) {
  std::mt19937_64 random(2);
  const Bytes bytes = BytesOf(RandomSet(random, 16));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(Read(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length))).ok()) << length;
  }
}

// flags, shift, bits, lowest, then (not dense) rates, then 16 headers with codes.
Bytes Written(std::uint8_t flags, std::uint8_t shift, std::uint8_t bits, const Bytes& rates, const Bytes& first_class) {
  Bytes bytes = {flags, shift, bits, 0};
  bytes.insert(bytes.end(), rates.begin(), rates.end());
  bytes.insert(bytes.end(), first_class.begin(), first_class.end());
  bytes.resize(bytes.size() + 15, 0x80);
  return bytes;
}

std::string ReadError(const Bytes& bytes) {
  const auto set = Read(bytes);
  if (set.ok()) return "accepted";
  EXPECT_EQ(set.error().code(), ErrorCode::kCorrupt);
  return set.error().message();
}

TEST(TableSet, RefusesMalformedFields) {
  const Bytes one_rate = {191};
  const Bytes one_symbol = {1};
  EXPECT_EQ(ReadError(Written(4, 0, 0, one_rate, one_symbol)), "accepted");
  EXPECT_EQ(ReadError(Written(5, 63, 8, one_rate, one_symbol)), "accepted")
      << "whether it fits is asked with the units";
  EXPECT_EQ(ReadError(Written(2, 0, 0, {}, one_symbol)), "accepted");
  EXPECT_EQ(ReadError(Written(0, 0, 0, Bytes(16, 0), one_symbol)), "accepted");
  EXPECT_EQ(ReadError(Written(4, 0, 0, one_rate, {3, 192, 0, 0})), "accepted");

  EXPECT_THAT(ReadError(Written(8, 0, 0, Bytes(16, 0), one_symbol)), HasSubstr("unknown flags"));
  EXPECT_THAT(ReadError(Written(0x80, 0, 0, Bytes(16, 0), one_symbol)), HasSubstr("unknown flags"));
  EXPECT_THAT(ReadError(Written(6, 0, 0, {}, one_symbol)), HasSubstr("no rates"));
  EXPECT_THAT(ReadError(Written(4, 64, 0, one_rate, one_symbol)), HasSubstr("class rule"));
  EXPECT_THAT(ReadError(Written(4, 0, 9, one_rate, one_symbol)), HasSubstr("class rule"));
  EXPECT_THAT(ReadError(Written(4, 0, 0, {192}, one_symbol)), HasSubstr("rate"));
  EXPECT_THAT(ReadError(Written(4, 0, 0, one_rate, {2, 1, 193})), HasSubstr("weight"));
  EXPECT_THAT(ReadError(Written(4, 0, 0, one_rate, {2, 0, 0})), HasSubstr("without weights"));
  EXPECT_THAT(ReadError(Written(4, 0, 0, one_rate, {0x82, 0, 0})), HasSubstr("without weights"));
}

TEST(TableSet, MustFitTheUnitsItIsUsedFor) {
  TableSet set;
  set.rule = {7, 8, 0, Order::kSignMagnitude};
  set.unit_bits = 16;
  EXPECT_TRUE(set.CheckFits().ok());
  set.unit_bits = 8;
  EXPECT_FALSE(set.CheckFits().ok()) << "the field lies outside";
  set.rule = {};
  EXPECT_TRUE(set.CheckFits().ok());
  set.symbols[3].codes.assign(static_cast<std::size_t>(BucketCount(8)), 1);
  EXPECT_TRUE(set.CheckFits().ok());
  set.symbols[3].codes.push_back(1);
  EXPECT_FALSE(set.CheckFits().ok()) << "more symbols than bytes have buckets";
  set.dense = true;
  EXPECT_TRUE(set.CheckFits().ok()) << "a dense set has one symbol more";
}

TEST(NormalizedWidths, SumToTheWholeOrToNothing) {
  std::mt19937_64 random(3);
  for (const int unit_bits : {8, 16, 32, 64}) {
    for (int i = 0; i < 500; ++i) {
      const TableSet set = RandomSet(random, unit_bits);
      for (const SymbolWeights& weights : set.symbols) {
        const auto widths = NormalizedWidths(weights, set.AlphabetSize());
        ASSERT_EQ(widths.size(), static_cast<std::size_t>(set.AlphabetSize()));
        const bool any = !weights.codes.empty() || weights.tail;
        ASSERT_EQ(std::accumulate(widths.begin(), widths.end(), std::uint64_t{0}), any ? 65536u : 0u);
        for (std::size_t s = 0; s < widths.size(); ++s) {
          const bool possible = s < weights.codes.size() ? weights.codes[s] != 0 : weights.tail;
          ASSERT_EQ(widths[s] != 0, possible) << s;
        }
      }
    }
  }
}

TEST(NormalizedWidths, AreTheNumbersOfTheSpecification) {
  EXPECT_EQ(NormalizedWidths({{}, false}, 4), (std::vector<std::uint32_t>{0, 0, 0, 0}));
  EXPECT_EQ(NormalizedWidths({{}, true}, 4), (std::vector<std::uint32_t>{65533, 1, 1, 1}));
  EXPECT_EQ(NormalizedWidths({{1}, false}, 4), (std::vector<std::uint32_t>{65536, 0, 0, 0}));
  EXPECT_EQ(NormalizedWidths({{1}, true}, 4), (std::vector<std::uint32_t>{65533, 1, 1, 1}));
  EXPECT_EQ(NormalizedWidths({{1, 1}, false}, 4), (std::vector<std::uint32_t>{32768, 32768, 0, 0}));
  // Three equal thirds: the rest goes to the first of the largest.
  EXPECT_EQ(NormalizedWidths({{9, 9, 9}, false}, 3), (std::vector<std::uint32_t>{21846, 21845, 21845}));
  // The smallest weight beside the largest still has a width of 1, taken from the largest.
  EXPECT_EQ(NormalizedWidths({{192, 1, 0, 1}, true}, 6), (std::vector<std::uint32_t>{65532, 1, 0, 1, 1, 1}));
}

TEST(ExpandedTables, EncoderAndDecoderSeeTheSameIntervals) {
  std::mt19937_64 random(4);
  for (const int unit_bits : {8, 16, 32, 64}) {
    for (int i = 0; i < 50; ++i) {
      const TableSet set = RandomSet(random, unit_bits);
      const int scale = static_cast<int>(random() % 255) - 127;
      const ExpandedTables tables(set, scale);
      for (std::size_t c = 0; c < kClassCount; ++c) {
        if (!set.dense) {
          ASSERT_EQ(tables.rates[c], RateOf(std::clamp(set.rate_codes[c] + scale, 0, kMaxRateCode)));
        }
        std::size_t slot = c * tables.stride;
        std::uint64_t start = 0;
        for (std::size_t symbol = 0; symbol < static_cast<std::size_t>(set.AlphabetSize()); ++symbol) {
          const SymbolEvent& event = tables.events[c * tables.stride + symbol];
          if (!event.possible) continue;
          ASSERT_EQ(event.event.start, start);
          start += event.event.width == 0 ? kRansTotal : event.event.width;
          ASSERT_EQ(tables.slots[slot].symbol, symbol);
          ASSERT_EQ(tables.slots[slot].event.start, event.event.start);
          ASSERT_EQ(tables.lasts[slot], static_cast<std::uint32_t>(start - 1));
          ++slot;
        }
        ASSERT_EQ((tables.usable_classes >> c) & 1, start == 0 ? 0u : 1u);
        ASSERT_TRUE(start == 0 || start == kRansTotal);
        ASSERT_LT(slot, (c + 1) * tables.stride) << "a search must find an end";
        for (; slot < (c + 1) * tables.stride; ++slot) ASSERT_EQ(tables.lasts[slot], 0xffffffffu);
      }
    }
  }
}

}  // namespace
}  // namespace weightwire
