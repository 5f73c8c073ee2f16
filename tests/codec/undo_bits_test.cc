#include "codec/encode/undo_bits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "base/large_block.h"

namespace weightwire::testing {
namespace {

struct Replaced {
  std::vector<std::uint32_t> positions;
  std::vector<std::uint8_t> old_units;  // two bytes each
};

// Every `every`th unit of `count`, with bits that tell where they are from.
Replaced SomeUnits(std::uint32_t count, std::uint32_t every, std::uint16_t salt) {
  Replaced units;
  for (std::uint32_t i = every / 2; i < count; i += every) {
    units.positions.push_back(i);
    const auto bits = static_cast<std::uint16_t>(i * 7 + salt);
    units.old_units.push_back(static_cast<std::uint8_t>(bits));
    units.old_units.push_back(static_cast<std::uint8_t>(bits >> 8));
  }
  return units;
}

// By unit, what is kept of an entry.
std::map<std::uint64_t, std::uint16_t> Kept(const std::vector<ReplacedUnits>& replaced, std::size_t entry) {
  std::map<std::uint64_t, std::uint16_t> kept;
  for (const ReplacedUnits& units : replaced) {
    if (units.entry != entry) continue;
    EXPECT_TRUE(std::is_sorted(units.positions.begin(), units.positions.end()));
    for (std::size_t k = 0; k < units.positions.size(); ++k) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, units.old_units.data() + 2 * k, 2);
      EXPECT_TRUE(kept.emplace(units.first_unit + units.positions[k], bits).second);
    }
  }
  return kept;
}

void ExpectKept(const Replaced& units, std::uint64_t first_unit, const std::map<std::uint64_t, std::uint16_t>& kept) {
  ASSERT_EQ(kept.size(), units.positions.size());
  for (std::size_t k = 0; k < units.positions.size(); ++k) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, units.old_units.data() + 2 * k, 2);
    EXPECT_EQ(kept.at(first_unit + units.positions[k]), bits);
  }
}

TEST(UndoBits, UnitsFarApartKeepTheirPositions) {
  UndoBits bits;
  std::vector<ReplacedUnits> replaced;
  const Replaced near = SomeUnits(1000, 3, 1);
  const Replaced far = SomeUnits(1 << 18, 70, 2);
  const Replaced late = {{(1 << 18) - 1}, {5, 6}};
  const Replaced edge = {{65535, 65536, 131071, 131072}, {1, 2, 3, 4, 5, 6, 7, 8}};
  const std::vector<const Replaced*> all = {&near, &far, &late, &edge};
  for (std::size_t entry = 0; entry < all.size(); ++entry) {
    ASSERT_TRUE(bits.Keep(entry, entry << 20, all[entry]->positions, all[entry]->old_units, replaced).ok());
  }
  for (std::size_t entry = 0; entry < all.size(); ++entry) {
    ExpectKept(*all[entry], entry << 20, Kept(replaced, entry));
  }
}

TEST(UndoBits, ReusesMemoryAfterClear) {
  UndoBits bits;
  std::set<std::uintptr_t> pages_before;
  for (std::uint16_t round = 0; round < 3; ++round) {
    std::vector<ReplacedUnits> replaced;
    std::vector<Replaced> kept;
    for (std::size_t entry = 0; entry < 20; ++entry) kept.push_back(SomeUnits(1 << 18, 5, round * 20 + entry));
    for (std::size_t entry = 0; entry < kept.size(); ++entry) {
      ASSERT_TRUE(bits.Keep(entry, 0, kept[entry].positions, kept[entry].old_units, replaced).ok());
    }
    for (std::size_t entry = 0; entry < kept.size(); ++entry) ExpectKept(kept[entry], 0, Kept(replaced, entry));
    std::set<std::uintptr_t> pages;
    for (const ReplacedUnits& units : replaced) {
      pages.insert(reinterpret_cast<std::uintptr_t>(units.old_units.data()) / LargeBlock::kPage);
    }
    EXPECT_GT(pages.size(), 2);
    // The first of all begins with a small block.
    if (round > 1) {
      EXPECT_EQ(pages, pages_before);
    }
    pages_before = pages;
    bits.Clear();
  }
}

TEST(UndoBits, FewUnitsTakeLittleMemory) {
  UndoBits bits;
  std::vector<ReplacedUnits> replaced;
  const Replaced few = SomeUnits(1000, 100, 3);
  ASSERT_TRUE(bits.Keep(0, 0, few.positions, few.old_units, replaced).ok());
  EXPECT_LE(bits.memory_bytes(), std::size_t{64} << 10);
}

TEST(UndoBits, ManyThreadsTakeLittleMoreThanTheyHold) {
  for (std::size_t stretches = 1; stretches < 400; stretches = 2 * stretches + 1) {
    UndoBits bits;
    std::vector<ReplacedUnits> replaced;
    std::size_t held = 0;
    for (std::size_t entry = 0; entry < stretches; ++entry) {
      const Replaced some = SomeUnits(1 << 16, 70, entry);
      ASSERT_TRUE(bits.Keep(entry, 0, some.positions, some.old_units, replaced).ok());
      held += some.positions.size() * sizeof(std::uint16_t) + some.old_units.size();
    }
    EXPECT_LE(bits.memory_bytes(), 4 * held + (std::size_t{64} << 10)) << held;
  }
}

TEST(UndoBits, FreesTheMemoryOfAnUnusualVersion) {
  UndoBits bits;
  const Replaced all = SomeUnits(1 << 18, 1, 4);
  const Replaced few = SomeUnits(1000, 100, 5);
  std::vector<ReplacedUnits> replaced;
  for (std::size_t entry = 0; entry < 20; ++entry) {
    ASSERT_TRUE(bits.Keep(entry, 0, all.positions, all.old_units, replaced).ok());
  }
  EXPECT_GE(bits.memory_bytes(), 20 * all.positions.size() * 4);
  for (int version = 0; version < 2; ++version) {
    bits.Clear();
    replaced.clear();
    ASSERT_TRUE(bits.Keep(0, 0, few.positions, few.old_units, replaced).ok());
    ExpectKept(few, 0, Kept(replaced, 0));
    bits.FreeSpare();
  }
  EXPECT_LE(bits.memory_bytes(), LargeBlock::kPage);
}

}  // namespace
}  // namespace weightwire::testing
