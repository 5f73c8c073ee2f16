// The encoder's kernels: every instruction set against the scalar ones, which define the result, and these against the
// specification.
#include "codec/kernels/encode_kernels.h"

#include <gtest/gtest.h>

#include <memory>

#include "codec/format/units.h"
#include "codec/kernels/convert_scalar.h"
#include "codec/kernels/encode_events.h"
#include "codec/kernels/kernels.h"
#include "codec/models.h"
#include "codec/random_tables.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

bool operator==(const RansEvent& a, const RansEvent& b) { return a.start == b.start && a.width == b.width; }

class EncodeKernelsTest : public ::testing::TestWithParam<const Kernels*> {
 protected:
  [[nodiscard]] static const EncodeKernels& kernels() { return *GetParam()->encode; }
};
INSTANTIATE_TEST_SUITE_P(Sets, EncodeKernelsTest, ::testing::ValuesIn(AllKernels()), [](const auto& test) {
  std::string name = test.param->name;
  std::erase(name, '-');
  return name;
});

// A tile in memory that ends where its units do, so that the address sanitizer sees a read past them.
struct Tile {
  int width;
  std::uint32_t count;
  std::size_t old_offset;
  std::size_t new_offset;
  std::unique_ptr<std::uint8_t[]> old_memory;
  std::unique_ptr<std::uint8_t[]> new_memory;

  [[nodiscard]] std::uint8_t* old_units() const { return old_memory.get() + old_offset; }
  [[nodiscard]] std::uint8_t* new_units() const { return new_memory.get() + new_offset; }

  Tile(Random& random, int unit_bytes, std::uint32_t unit_count)
      : width(unit_bytes), count(unit_count), old_offset(Below(random, 16)), new_offset(Below(random, 16)) {
    const auto unit_size = static_cast<std::size_t>(width);
    const std::size_t bytes = count * unit_size;
    old_memory = std::make_unique<std::uint8_t[]>(old_offset + bytes);
    new_memory = std::make_unique<std::uint8_t[]>(new_offset + bytes);
    for (std::size_t b = 0; b < bytes; ++b) old_units()[b] = static_cast<std::uint8_t>(random());
    std::copy_n(old_units(), bytes, new_units());
    // From all units to hardly any; small steps, as training makes them, or any.
    const std::uint64_t one_in = 1 + Below(random, Below(random, 3) == 0 ? 2 : 300);
    const std::uint64_t any_in = 1 + Below(random, 40);
    for (std::size_t u = 0; u < count; ++u) {
      if (Below(random, one_in) != 0) continue;
      std::uint8_t* unit = new_units() + u * unit_size;
      if (Below(random, any_in) == 0) {
        for (std::size_t b = 0; b < unit_size; ++b) unit[b] = static_cast<std::uint8_t>(random());
      } else {
        *unit = static_cast<std::uint8_t>(*unit + (Below(random, 2) == 0 ? 1 : -1));
      }
    }
  }
};

TEST_P(EncodeKernelsTest, CountFieldsAsTheScalarKernel) {
  Random random(11);
  for (int i = 0; i < Rounds(400); ++i) {
    const int width = kWidths[i % 4];
    const Tile tile(random, width, static_cast<std::uint32_t>(i < 100 ? i : Below(random, 5'000)));
    ClassRule rule;
    rule.bits = static_cast<std::uint8_t>(Below(random, 9));
    rule.shift = static_cast<std::uint8_t>(Below(random, static_cast<std::uint64_t>(8 * width - rule.bits)));
    // Few different fields, as in weights, or many.
    if (Below(random, 2) == 0) {
      for (std::size_t b = 0; b < tile.count * static_cast<std::size_t>(width); ++b) tile.old_units()[b] &= 0x13;
    }
    FieldCount truth{};
    FieldCount counts{};
    truth[7] = counts[7] = 1000;  // adds to what is there
    ScalarKernels()->encode->count_fields(tile.old_units(), tile.count, width, rule, truth);
    kernels().count_fields(tile.old_units(), tile.count, width, rule, counts);
    ASSERT_EQ(counts, truth) << tile.count << " units of " << width;
  }
}

// What scan gives for a whole tile.
struct Scanned {
  std::vector<std::uint32_t> positions;
  std::vector<std::uint32_t> ends;
  Bytes old_units;
  Bytes new_units;
  std::vector<std::uint32_t> times;
  std::uint64_t total = 0;
  friend bool operator==(const Scanned&, const Scanned&) = default;
};

// With floats, the tile's new units are made of them, chunk by chunk.
Scanned ScanTile(const EncodeKernels& kernels, const Tile& tile, const ExpandedTables& tables,
                 std::uint32_t chunk_units, const std::uint8_t* floats = nullptr) {
  const auto unit_size = static_cast<std::size_t>(tile.width);
  const std::size_t room = tile.count + kScanRoom;
  Scanned scanned{std::vector<std::uint32_t>(room),
                  std::vector<std::uint32_t>(room),
                  Bytes(room * unit_size),
                  Bytes(room * unit_size),
                  std::vector<std::uint32_t>(TimesRoom(tile.count)),
                  0};
  std::size_t found = 0;
  for (std::uint32_t begin = 0; begin < tile.count; begin += chunk_units) {
    ScanChunk chunk = {tile.old_units() + begin * unit_size, tile.new_units() + begin * unit_size, begin,
                       std::min(chunk_units, tile.count - begin), scanned.total};
    if (floats != nullptr) {
      chunk.floats = floats + begin * sizeof(float);
      chunk.made = tile.new_units() + begin * unit_size;
    }
    const ScanResult result =
        kernels.scan(chunk, tile.width, tables, scanned.times.data(),
                     {scanned.positions.data() + found, scanned.old_units.data() + found * unit_size,
                      scanned.new_units.data() + found * unit_size, scanned.ends.data() + found});
    found += result.found;
    scanned.total = result.time;
  }
  scanned.positions.resize(found);
  scanned.ends.resize(found);
  scanned.old_units.resize(found * unit_size);
  scanned.new_units.resize(found * unit_size);
  scanned.times.resize(tables.uniform ? 0 : (tile.count + kTimeBlock - 1) / kTimeBlock + 1);
  return scanned;
}

TEST_P(EncodeKernelsTest, ScanAsTheScalarKernel) {
  Random random(1);
  for (int i = 0; i < Rounds(800); ++i) {
    const int width = kWidths[i % 4];
    const auto count = static_cast<std::uint32_t>(i < 300 ? 1 + i : 1 + Below(random, 20'000));
    const Tile tile(random, width, count);
    const ExpandedTables tables(RandomTables(random, width, Below(random, 4) == 0),
                                static_cast<int>(Below(random, 255)) - 127);
    const Scanned truth = ScanTile(*ScalarEncodeKernels(), tile, tables, kChunkUnits);
    // In chunks of any size, too.
    const std::uint32_t chunk_units = Below(random, 2) == 0 ? kChunkUnits : kTimeBlock * (1 + Below(random, 512));
    ASSERT_TRUE(ScanTile(kernels(), tile, tables, chunk_units) == truth) << count << " units of " << width;
  }
}

TEST_P(EncodeKernelsTest, ScanConvertsFloatsToBf16) {
  Random random(2);
  for (int i = 0; i < Rounds(400); ++i) {
    const auto count = static_cast<std::uint32_t>(i < 200 ? 1 + i : 1 + Below(random, 20'000));
    const Tile tile(random, 2, count);
    // Most round to the units there are; some are anything, NaN too.
    const std::size_t offset = Below(random, 16);
    const auto memory = std::make_unique<std::uint8_t[]>(offset + count * sizeof(float));
    std::uint8_t* const floats = memory.get() + offset;
    for (std::uint32_t u = 0; u < count; ++u) {
      const std::uint32_t unit = LoadUnit<std::uint16_t>(tile.new_units(), u);
      const auto bits = static_cast<std::uint32_t>(random());
      StoreUnit(floats, u, Below(random, 50) == 0 ? bits : unit << 16 | (bits & 0x7fff));
      StoreUnit(tile.new_units(), u, ToBf16(LoadUnit<std::uint32_t>(floats, u)));
    }
    const ExpandedTables tables(RandomTables(random, 2, Below(random, 4) == 0),
                                static_cast<int>(Below(random, 255)) - 127);
    const Scanned truth = ScanTile(*ScalarEncodeKernels(), tile, tables, kChunkUnits);
    const Bytes units(tile.new_units(), tile.new_units() + 2 * std::size_t{count});
    std::fill_n(tile.new_units(), units.size(), std::uint8_t{0});
    ASSERT_TRUE(ScanTile(kernels(), tile, tables, kChunkUnits / 2, floats) == truth) << count << " units";
    ASSERT_TRUE(std::equal(units.begin(), units.end(), tile.new_units())) << count << " units";
  }
}

struct Made {
  std::vector<RansEvent> events;
  std::uint32_t single_steps;
};

Made MakeEvents(const EncodeKernels& kernels, const Tile& tile, const Scanned& scanned, const ExpandedTables& tables) {
  const SparseChanges changes = {tile.old_units(),         tile.count,
                                 scanned.times.data(),     scanned.total,
                                 scanned.positions.size(), scanned.positions.data(),
                                 scanned.old_units.data(), scanned.new_units.data(),
                                 scanned.ends.data()};
  Made made{std::vector<RansEvent>(MostEvents(changes.changed, changes.total_time) + kEventRoom), 0};
  const EventCounts counts = kernels.make_events(changes, tile.width, tables, made.events.data());
  EXPECT_LE(counts.events, MostEvents(changes.changed, changes.total_time));
  made.events.resize(counts.events);
  made.single_steps = counts.single_steps;
  return made;
}

// The events as the specification tells them, unit by unit, with exact times.
template <typename Unit>
Made PlainEvents(const Tile& tile, const ExpandedTables& tables) {
  Made made{{}, 0};
  std::uint64_t wait = 0;
  const auto limit = [](std::uint64_t time) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(time, kHorizon));
  };
  for (std::uint32_t i = 0; i < tile.count; ++i) {
    const Unit from = LoadUnit<Unit>(tile.old_units(), i);
    const Unit to = LoadUnit<Unit>(tile.new_units(), i);
    const std::uint32_t unit_class =
        tables.rule.ClassOfField(static_cast<std::uint32_t>(from >> tables.rule.shift) & tables.rule.FieldMask());
    if (wait >= kHorizon) {
      made.events.push_back(SurvivalEvent(Waiting(kHorizon)));
      wait = 0;
    }
    if (from != to) {
      const Step step = StepBetween<Unit>(from, to, tables.rule.order);
      made.single_steps += step.magnitude == 1 ? 1 : 0;
      made.events.push_back(
          ChangeEvent(Waiting(limit(wait)), Waiting(limit(wait + tables.rates[unit_class])), step.down));
      const Bucket bucket = BucketOf(step.magnitude);
      made.events.push_back(tables.events[unit_class * tables.stride + bucket.symbol].event);
      RansEvent raw[2];
      made.events.insert(made.events.end(), raw, AppendRawBits(bucket.extra, bucket.extra_bits, raw));
      wait = 0;
    } else {
      wait += tables.rates[unit_class];
    }
  }
  if (wait > kHorizon) {
    made.events.push_back(SurvivalEvent(Waiting(kHorizon)));
    wait = 0;
  }
  made.events.push_back(SurvivalEvent(Waiting(limit(wait))));
  return made;
}

TEST_P(EncodeKernelsTest, MakeTheEventsOfTheSpecification) {
  Random random(2);
  int with_changes = 0;
  for (int i = 0; i < Rounds(1200); ++i) {
    const int width = kWidths[i % 4];
    const Tile tile(random, width, static_cast<std::uint32_t>(1 + Below(random, i % 10 == 0 ? 20'000 : 1000)));
    // Rates of every size: totals above 2^32 and waits above the horizon are common here.
    const ExpandedTables tables(RandomTables(random, width, i % 3 == 0), 0);
    const Scanned scanned = ScanTile(*ScalarEncodeKernels(), tile, tables, kChunkUnits);
    if (scanned.positions.empty()) continue;
    ++with_changes;
    const Made truth = WithUnit(width, [&]<typename Unit>() { return PlainEvents<Unit>(tile, tables); });
    const Made made = MakeEvents(kernels(), tile, scanned, tables);
    ASSERT_EQ(made.single_steps, truth.single_steps);
    ASSERT_EQ(made.events.size(), truth.events.size());
    for (std::size_t k = 0; k < truth.events.size(); ++k)
      ASSERT_TRUE(made.events[k] == truth.events[k]) << i << " " << k;
  }
  EXPECT_GT(with_changes, Rounds(1200) / 2);
}

// Lanes of random events, and where their words go.
struct Lanes {
  std::vector<std::vector<RansEvent>> events;
  std::vector<std::vector<std::uint32_t>> words;

  [[nodiscard]] std::vector<PushLane> Push(const EncodeKernels& kernels) {
    std::vector<PushLane> lanes;
    words.assign(events.size(), {});
    for (std::size_t k = 0; k < events.size(); ++k) {
      words[k].resize(events[k].size() - kPushPad + 1);
      lanes.push_back({events[k].data() + kPushPad, events[k].size() - kPushPad, words[k].data()});
    }
    kernels.push_events(lanes);
    for (std::size_t k = 0; k < events.size(); ++k) words[k].resize(lanes[k].word_count);
    return lanes;
  }
};

// Widths of every size, with those at the ends and at powers of two more often than by chance.
std::uint32_t RandomWidth(Random& random) {
  switch (Below(random, 6)) {
    case 0:
      return 0;  // certain
    case 1:
      return static_cast<std::uint32_t>(1 + Below(random, 4));
    case 2:
      return static_cast<std::uint32_t>(~std::uint32_t{0} - Below(random, 4));
    case 3:
      return static_cast<std::uint32_t>((std::uint64_t{1} << Below(random, 32)) + Below(random, 3));
    case 4:
      return static_cast<std::uint32_t>(random()) << 16;
    default:
      return static_cast<std::uint32_t>(random() >> Below(random, 32));
  }
}

TEST_P(EncodeKernelsTest, PushAsTheScalarKernel) {
  Random random(3);
  for (int i = 0; i < Rounds(600); ++i) {
    Lanes lanes;
    const std::size_t count = 1 + Below(random, kLanes);
    const std::uint64_t longest = 1 + Below(random, Below(random, 4) == 0 ? 400 : 40);
    for (std::size_t k = 0; k < count; ++k) {
      std::vector<RansEvent> events(kPushPad, RansEvent{0, 0});
      const std::size_t size = Below(random, 8) == 0 ? 0 : Below(random, longest + 1);
      for (std::size_t e = 0; e < size; ++e) {
        const std::uint32_t width = RandomWidth(random);
        const std::uint64_t starts = width == 0 ? 1 : kRansTotal - width + 1;
        events.push_back({static_cast<std::uint32_t>(Below(random, starts)), width});
      }
      lanes.events.push_back(std::move(events));
    }
    const std::vector<PushLane> truth = lanes.Push(*ScalarEncodeKernels());
    const auto true_words = lanes.words;
    const std::vector<PushLane> pushed = lanes.Push(kernels());
    for (std::size_t k = 0; k < count; ++k) {
      ASSERT_EQ(pushed[k].state, truth[k].state) << i << " " << k;
      ASSERT_EQ(lanes.words[k], true_words[k]) << i << " " << k;
    }
  }
}

TEST_P(EncodeKernelsTest, DivideExactly) {
  // Three events make any division: one of width 2 takes the first state, 1, to its start + 1; one of width 1 moves
  // that up by 32 bits and adds its start; and the third divides it by its width. Multiples of the width and what is
  // just below them are where a guess would be wrong first.
  Random random(4);
  for (int i = 0; i < Rounds(4000); ++i) {
    Lanes lanes;
    std::vector<std::uint64_t> quotients;
    for (std::size_t k = 0; k < kLanes; ++k) {
      std::uint32_t width = RandomWidth(random);
      if (width == 0) width = 1;
      // The largest quotients are the hardest: below 2^32, so that no word is due.
      const std::uint64_t quotient =
          Below(random, 2) == 0 ? kRansTotal - 1 - Below(random, 3) : 1 + Below(random, kRansTotal - 1);
      const std::uint64_t state = quotient * width + (Below(random, 2) == 0 ? 0 : width - 1);
      const auto high = static_cast<std::uint32_t>(state >> 32);
      const auto low = static_cast<std::uint32_t>(state);
      std::vector<RansEvent> events(kPushPad, RansEvent{0, 0});
      events.push_back({0, width});  // the last is pushed first
      if (high != 0) events.push_back({low, 1});
      events.push_back({(high != 0 ? high : low) - 1, 2});
      quotients.push_back(quotient);
      lanes.events.push_back(std::move(events));
    }
    const std::vector<PushLane> pushed = lanes.Push(kernels());
    for (std::size_t k = 0; k < kLanes; ++k) {
      const std::uint32_t width = lanes.events[k][kPushPad].width;
      ASSERT_EQ(pushed[k].state >> 32, quotients[k]) << "width " << width;
      ASSERT_LT(static_cast<std::uint32_t>(pushed[k].state), width);
      ASSERT_EQ(pushed[k].word_count, 0u);
    }
  }
}

}  // namespace
}  // namespace weightwire
