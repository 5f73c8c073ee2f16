// Every instruction set against the scalar kernels, which define the result.
#include "codec/kernels/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "codec/encode/tile_encoder.h"
#include "codec/models.h"
#include "codec/random_tables.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

class KernelsTest : public ::testing::TestWithParam<const Kernels*> {};
INSTANTIATE_TEST_SUITE_P(Sets, KernelsTest, ::testing::ValuesIn(AllKernels()), [](const auto& test) {
  std::string name = test.param->name;
  std::erase(name, '-');
  return name;
});

TEST_P(KernelsTest, FindTheChangesOfTheScalarKernel) {
  Random random(1);
  for (int i = 0; i < Rounds(1500); ++i) {
    const int width = kWidths[i % 4];
    const auto count = static_cast<std::uint32_t>(i < 300 ? i : Below(random, kChunkUnits + 1));
    const std::size_t old_offset = Below(random, 16);
    const std::size_t new_offset = Below(random, 16);
    // Exactly as many bytes as it may read, so that the address sanitizer sees one more.
    const std::size_t bytes = count * static_cast<std::size_t>(width);
    const auto old_memory = std::make_unique<std::uint8_t[]>(old_offset + bytes);
    const auto new_memory = std::make_unique<std::uint8_t[]>(new_offset + bytes);
    std::uint8_t* old_units = old_memory.get() + old_offset;
    std::uint8_t* new_units = new_memory.get() + new_offset;
    for (std::size_t b = 0; b < bytes; ++b) old_units[b] = new_units[b] = static_cast<std::uint8_t>(random());
    const std::uint64_t one_in = Below(random, 3) == 0 ? 1 : 1 + Below(random, 300);
    for (std::size_t u = 0; u < count; ++u) {
      if (Below(random, one_in) == 0) {
        const std::size_t width_bytes = static_cast<std::size_t>(width);
        new_units[u * width_bytes + Below(random, width_bytes)] ^= static_cast<std::uint8_t>(1u << Below(random, 8));
      }
    }
    std::vector<std::uint16_t> truth(count + 64);
    std::vector<std::uint16_t> found(count + 64);
    truth.resize(ScalarKernels()->find_changed(old_units, new_units, count, width, truth.data()));
    found.resize(GetParam()->find_changed(old_units, new_units, count, width, found.data()));
    ASSERT_EQ(found, truth) << count << " units of " << width;
  }
}

// Symbols may be impossible, the first among them: nothing that can be encoded, but a decoder must know what to do.
TableSet TablesWithHoles(Random& random, int width, bool uniform) {
  TableSet set = RandomTables(random, width, uniform);
  for (SymbolWeights& weights : set.symbols) {
    weights.codes.assign(1 + Below(random, 12), 100);
    for (std::uint8_t& code : weights.codes) code = static_cast<std::uint8_t>(Below(random, 3) == 0 ? 0 : 100);
    weights.codes.back() = 100;
    weights.tail = Below(random, 2) == 0;
    if (Below(random, 8) == 0) weights = {};
  }
  return set;
}

TEST_P(KernelsTest, SumRatesAsTheScalarKernel) {
  Random random(2);
  for (int i = 0; i < Rounds(600); ++i) {
    const int width = kWidths[i % 4];
    const ExpandedTables tables(RandomTables(random, width, false), static_cast<int>(Below(random, 255)) - 127);
    const auto count = static_cast<std::uint32_t>(i < 200 ? i / 2 : Below(random, 20'000));
    const std::size_t offset = Below(random, 16);
    const std::size_t bytes = count * static_cast<std::size_t>(width);
    const auto memory = std::make_unique<std::uint8_t[]>(offset + bytes);
    for (std::size_t b = 0; b < offset + bytes; ++b) memory[b] = static_cast<std::uint8_t>(random());
    std::vector<std::uint32_t> truth(TimesRoom(count));
    std::vector<std::uint32_t> times(TimesRoom(count));
    const std::uint8_t* units = memory.get() + offset;
    const std::uint64_t sum = ScalarKernels()->sum_rates(units, count, width, tables, truth.data());
    ASSERT_EQ(GetParam()->sum_rates(units, count, width, tables, times.data()), sum);
    const std::size_t used = (count + kTimeBlock - 1) / kTimeBlock + 1;
    truth.resize(used);
    times.resize(used);
    ASSERT_EQ(times, truth) << count << " units of " << width;
  }
}

TEST_P(KernelsTest, DigestAsTheScalarKernel) {
  Random random(3);
  const DigestKeys& keys = FixedDigestKeys();
  const auto reduced = [](DigestSums sums) {
    for (auto& sum : sums.sums) {
      EXPECT_LT(sum, (std::uint64_t{1} << 61) + 8);
      sum %= kDigestPrime;
    }
    return sums.sums;
  };
  for (int i = 0; i < Rounds(2000); ++i) {
    const auto first = static_cast<std::uint32_t>(Below(random, 2) == 0 ? 0 : Below(random, kDigestBlockWords));
    const auto count = static_cast<std::uint32_t>(Below(random, kDigestBlockWords - first + 1));
    const std::size_t offset = Below(random, 8);
    const auto memory = std::make_unique<std::uint8_t[]>(offset + 4 * std::size_t{count});
    // Every third all ones: the largest sums there can be.
    for (std::size_t b = 0; b < offset + 4 * std::size_t{count}; ++b) {
      memory[b] = i % 3 == 0 ? 0xff : static_cast<std::uint8_t>(random());
    }
    ASSERT_EQ(reduced(GetParam()->digest_words(memory.get() + offset, first, count, keys)),
              reduced(ScalarKernels()->digest_words(memory.get() + offset, first, count, keys)))
        << first << " + " << count;
  }
}

// The tiles of one entry with random tables, their streams and what they decode to.
struct SparseTiles {
  int width;
  ExpandedTables tables;
  std::vector<std::uint32_t> counts;
  std::vector<Bytes> base;
  std::vector<Bytes> fresh;
  std::vector<std::vector<std::uint32_t>> changed;
  std::vector<Bytes> streams;

  SparseTiles(Random& random, int unit_bytes, bool uniform)
      : width(unit_bytes), tables(RandomTables(random, unit_bytes, uniform), 0) {
    const std::size_t tiles = 1 + Below(random, 3 * kLanes);
    // Some are longer than the windows that lanes look at.
    const std::uint64_t largest = 1 + Below(random, Below(random, 4) == 0 ? 6000 : 300);
    for (std::size_t t = 0; t < tiles; ++t) {
      counts.push_back(static_cast<std::uint32_t>(1 + Below(random, largest)));
      base.push_back(RandomBytes(random, counts[t] * static_cast<std::size_t>(width)));
      fresh.push_back(base[t]);
      const std::uint64_t one_in =
          Below(random, 8) == 0 ? ~std::uint64_t{0} : 1 + Below(random, 1 + Below(random, 200));
      for (std::size_t u = 0; u < counts[t]; ++u) {
        if (one_in == ~std::uint64_t{0} || Below(random, one_in) != 0) continue;
        const std::size_t at = u * static_cast<std::size_t>(width);
        if (Below(random, 2) == 0) {
          fresh[t][at] ^= 1;
        } else {
          for (int b = 0; b < width; ++b)
            fresh[t][at + static_cast<std::size_t>(b)] = static_cast<std::uint8_t>(random());
        }
      }
    }
    TileEncoder encoder(*ScalarKernels());
    changed.resize(tiles);
    for (std::size_t begin = 0; begin < tiles; begin += kLanes) {
      const std::size_t lanes = std::min(kLanes, tiles - begin);
      std::vector<TileInput> inputs;
      for (std::size_t k = 0; k < lanes; ++k) {
        inputs.push_back({base[begin + k].data(), fresh[begin + k].data(), counts[begin + k]});
      }
      EXPECT_TRUE(encoder.EncodeSparse(inputs, width, tables, [](std::size_t) { return Ok(); }).ok());
      for (std::size_t k = 0; k < lanes; ++k) {
        const auto stream = encoder.stream(k);
        const auto positions = encoder.changes(k).positions;
        changed[begin + k].assign(positions.begin(), positions.end());
        streams.emplace_back(stream.begin(), stream.end());
      }
    }
  }

  struct Decoded {
    bool intact;
    std::vector<std::uint32_t> positions;
    Bytes new_units;
    friend bool operator==(const Decoded&, const Decoded&) = default;
  };

  [[nodiscard]] std::vector<Decoded> Decode(const Kernels& kernels) const { return DecodeTogether({this}, kernels); }

  // The tiles of several entries in one call. All have room for all their units to change, or for `room` changes.
  static std::vector<Decoded> DecodeTogether(const std::vector<const SparseTiles*>& entries, const Kernels& kernels,
                                             std::uint32_t room = ~0u) {
    std::vector<SparseTile> tiles;
    std::vector<Bytes> changes;
    std::uint32_t largest = 0;
    const int width = entries.front()->width;
    for (const SparseTiles* entry : entries) {
      for (std::size_t t = 0; t < entry->counts.size(); ++t) {
        SparseTile tile;
        tile.base = entry->base[t].data();
        tile.unit_count = entry->counts[t];
        tile.stream = entry->streams[t];
        tile.tables = &entry->tables;
        tile.max_changed = std::min(room, entry->counts[t]);
        changes.emplace_back(tile.max_changed * RecordBytes(width));
        tile.changes = changes.back().data();
        largest = std::max(largest, tile.unit_count);
        tiles.push_back(tile);
      }
    }
    std::vector<std::uint32_t> times(TimesRoom(largest));
    kernels.decode_sparse(tiles, width, times.data());
    std::vector<Decoded> decoded;
    for (std::size_t t = 0; t < tiles.size(); ++t) {
      if (!tiles[t].intact) {
        decoded.push_back({false, {}, {}});
        continue;
      }
      decoded.push_back({true, {}, {}});
      WithUnit(width, [&]<typename Unit>() {
        for (std::uint32_t k = 0; k < tiles[t].changed; ++k) {
          const TileChange<Unit> change = LoadChange<Unit>(changes[t].data(), k);
          EXPECT_EQ(change.old_unit, LoadUnit<Unit>(tiles[t].base, change.position));
          decoded.back().positions.push_back(change.position);
          const auto at = decoded.back().new_units.size();
          decoded.back().new_units.resize(at + sizeof(Unit));
          StoreUnit<Unit>(decoded.back().new_units.data() + at, 0, change.new_unit);
        }
      });
    }
    return decoded;
  }
};

TEST_P(KernelsTest, DecodeWhatTheEncoderWrote) {
  Random random(4);
  for (int i = 0; i < Rounds(200); ++i) {
    const SparseTiles tiles(random, kWidths[i % 4], i % 3 == 0);
    const auto decoded = tiles.Decode(*GetParam());
    for (std::size_t t = 0; t < decoded.size(); ++t) {
      ASSERT_TRUE(decoded[t].intact) << t;
      ASSERT_EQ(decoded[t].positions, tiles.changed[t]) << t;
      Bytes written = tiles.base[t];
      const auto width = static_cast<std::size_t>(tiles.width);
      for (std::size_t k = 0; k < decoded[t].positions.size(); ++k) {
        std::memcpy(written.data() + decoded[t].positions[k] * width, decoded[t].new_units.data() + k * width, width);
      }
      ASSERT_EQ(written, tiles.fresh[t]) << t;
    }
  }
}

TEST_P(KernelsTest, DecodeTilesOfSeveralEntriesTogether) {
  Random random(6);
  for (int i = 0; i < Rounds(60); ++i) {
    std::vector<std::unique_ptr<SparseTiles>> entries;
    std::vector<const SparseTiles*> pointers;
    std::vector<SparseTiles::Decoded> truth;
    for (std::size_t k = 1 + Below(random, 6); k > 0; --k) {
      entries.push_back(std::make_unique<SparseTiles>(random, kWidths[i % 4], Below(random, 4) == 0));
      pointers.push_back(entries.back().get());
      for (auto& tile : entries.back()->Decode(*ScalarKernels())) truth.push_back(std::move(tile));
    }
    ASSERT_TRUE(SparseTiles::DecodeTogether(pointers, *GetParam()) == truth) << i;
  }
}

TEST_P(KernelsTest, RefuseTilesWithMoreChangesThanRoom) {
  Random random(7);
  for (int i = 0; i < Rounds(60); ++i) {
    const SparseTiles tiles(random, kWidths[i % 4], i % 3 == 0);
    const auto room = static_cast<std::uint32_t>(Below(random, 12));
    const auto decoded = SparseTiles::DecodeTogether({&tiles}, *GetParam(), room);
    for (std::size_t t = 0; t < decoded.size(); ++t) {
      ASSERT_EQ(decoded[t].intact, tiles.changed[t].size() <= std::min(room, tiles.counts[t])) << t;
      if (!decoded[t].intact) continue;
      ASSERT_EQ(decoded[t].positions, tiles.changed[t]) << t;
    }
  }
}

TEST_P(KernelsTest, DecodeDamagedStreamsAsTheScalarKernel) {
  // Refused or not, the result must not depend on the instruction set, and a damaged tile must not disturb the others.
  Random random(5);
  for (int i = 0; i < Rounds(300); ++i) {
    SparseTiles tiles(random, kWidths[i % 4], i % 3 == 0);
    const auto intact = tiles.Decode(*GetParam());
    std::vector<bool> damaged(tiles.streams.size(), false);
    for (std::size_t t = 0; t < tiles.streams.size(); ++t) {
      Bytes& stream = tiles.streams[t];
      if (stream.empty() || Below(random, 2) == 0) continue;
      damaged[t] = true;
      switch (Below(random, 4)) {
        case 0:
          stream.resize(Below(random, stream.size()));
          break;
        case 1:
          stream = RandomBytes(random, 1 + Below(random, 40));
          break;
        default:
          stream[Below(random, stream.size())] ^= static_cast<std::uint8_t>(1u << Below(random, 8));
      }
    }
    const auto truth = tiles.Decode(*ScalarKernels());
    const auto decoded = tiles.Decode(*GetParam());
    ASSERT_TRUE(decoded == truth) << i;
    for (std::size_t t = 0; t < damaged.size(); ++t) {
      ASSERT_TRUE(damaged[t] || decoded[t] == intact[t]);
    }
  }
}

TEST_P(KernelsTest, DecodeRandomBytesAsTheScalarKernel) {
  // Tables with impossible symbols and classes, and streams that nobody wrote: they end somewhere, and everywhere
  // there.
  Random random(8);
  std::size_t ended = 0;
  for (int i = 0; i < Rounds(400); ++i) {
    SparseTiles tiles(random, kWidths[i % 4], false);
    const TableSet set = TablesWithHoles(random, tiles.width, i % 3 == 0);
    tiles.tables = ExpandedTables(set, 0);
    for (Bytes& stream : tiles.streams) {
      stream = RandomBytes(random, Below(random, 60));
      // A state of few bits leaves few events.
      if (stream.size() > 4 && Below(random, 2) == 0) std::fill(stream.end() - 4, stream.end(), std::uint8_t{0});
      if (Below(random, 4) == 0) stream = {static_cast<std::uint8_t>(Below(random, 4))};
    }
    const auto truth = tiles.Decode(*ScalarKernels());
    ASSERT_TRUE(tiles.Decode(*GetParam()) == truth) << i;
    for (const auto& tile : truth) ended += tile.intact && !tile.positions.empty() ? 1 : 0;
  }
  EXPECT_GT(ended, 0u);
}

TEST_P(KernelsTest, SplitChangesAsTheScalarKernel) {
  Random random(9);
  for (std::size_t count = 0; count < 100; ++count) {
    const auto changes = std::make_unique<std::uint8_t[]>(count * RecordBytes(2));
    std::vector<std::uint32_t> positions(count);
    std::vector<std::uint16_t> old_units(count);
    std::vector<std::uint16_t> new_units(count);
    const auto first = static_cast<std::uint32_t>(Below(random, 1 << 30));
    for (std::size_t k = 0; k < count; ++k) {
      const TileChange<std::uint16_t> change = {static_cast<std::uint32_t>(Below(random, 1 << 18)),
                                                static_cast<std::uint16_t>(random()),
                                                static_cast<std::uint16_t>(random())};
      StoreChange<std::uint16_t>(changes.get(), k, change);
      positions[k] = first + change.position;
      old_units[k] = change.old_unit;
      new_units[k] = change.new_unit;
    }
    const auto split_positions = std::make_unique<std::uint32_t[]>(count);
    const auto split_old = std::make_unique<std::uint16_t[]>(count);
    const auto split_new = std::make_unique<std::uint16_t[]>(count);
    GetParam()->split_u16(changes.get(), count, first, split_positions.get(),
                          reinterpret_cast<std::uint8_t*>(split_old.get()),
                          reinterpret_cast<std::uint8_t*>(split_new.get()));
    ASSERT_TRUE(std::equal(positions.begin(), positions.end(), split_positions.get())) << count;
    ASSERT_TRUE(std::equal(old_units.begin(), old_units.end(), split_old.get())) << count;
    ASSERT_TRUE(std::equal(new_units.begin(), new_units.end(), split_new.get())) << count;
  }
}

TEST(Kernels, AreChosenByName) {
  for (const Kernels* kernels : AllKernels()) EXPECT_EQ(KernelsNamed(kernels->name).value(), kernels);
  EXPECT_EQ(AllKernels().back(), ScalarKernels());
  const auto none = KernelsNamed("pentium");
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message(), ::testing::HasSubstr("scalar"));
}

TEST(Kernels, AreChosenByTheEnvironment) {
  const char* set = std::getenv("WEIGHTWIRE_ISA");
  const std::string before = set == nullptr ? "" : set;
  ::setenv("WEIGHTWIRE_ISA", "scalar", 1);
  EXPECT_EQ(ChooseKernels().value(), ScalarKernels());
  ::setenv("WEIGHTWIRE_ISA", "abacus", 1);
  EXPECT_FALSE(ChooseKernels().ok());
  ::setenv("WEIGHTWIRE_ISA", "", 1);
  EXPECT_EQ(ChooseKernels().value(), AllKernels().front());
  if (set != nullptr) ::setenv("WEIGHTWIRE_ISA", before.c_str(), 1);
}

}  // namespace
}  // namespace weightwire
