// Streams of gaps mode: their bytes, what is refused, and every instruction set against the scalar kernel.
#include "codec/format/gap_tile.h"

#include <gtest/gtest.h>

#include "codec/encode/tile_encoder.h"
#include "codec/models.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

// A stream for bytes that go from one value to another.
struct ByteChange {
  std::uint32_t position;
  std::uint8_t from;
  std::uint8_t to;
};
Bytes StreamOf(const std::vector<ByteChange>& changes) {
  std::vector<std::uint32_t> positions;
  Bytes from;
  Bytes to;
  for (const ByteChange& change : changes) {
    positions.push_back(change.position);
    from.push_back(change.from);
    to.push_back(change.to);
  }
  Bytes stream;
  AppendGapStream({positions, from.data(), to.data()}, 1, stream);
  return stream;
}

TEST(GapTile, StreamsHaveTheBytesOfTheSpecification) {
  EXPECT_EQ(StreamOf({}), Bytes());
  EXPECT_EQ(StreamOf({{0, 5, 6}}), (Bytes{2, 0, 0}));
  EXPECT_EQ(StreamOf({{3, 5, 4}, {4, 9, 2}}), (Bytes{4, 0xd1, 3, 0}));
  // 254 is the last gap of one byte.
  EXPECT_EQ(StreamOf({{254, 0, 7}, {510, 0, 1}}), (Bytes{4, 0x0c, 254, 255, 0}));
  // Magnitudes from 8 on stand at the end.
  EXPECT_EQ(StreamOf({{0, 0, 8}, {1, 255, 0}, {2, 1, 0}}), (Bytes{6, 0xfe, 1, 0, 0, 0, 0, 0xf7, 1}));
}

TEST(GapTile, GapsAreWideWhereThatIsShorter) {
  // Two bytes either way: narrow.
  EXPECT_EQ(StreamOf({{255, 0, 1}}), (Bytes{2, 0, 255, 0}));
  EXPECT_EQ(StreamOf({{510, 0, 1}}), (Bytes{3, 0, 0xfe, 1}));
  EXPECT_EQ(StreamOf({{65'535, 0, 1}}), (Bytes{3, 0, 0xff, 0xff, 0, 0}));
}

TEST(GapTile, OpeningFindsTheFields) {
  const Bytes stream = {6, 0xfe, 1, 0, 0, 0, 0, 0xf7, 1};
  const auto opened = OpenGapStream(stream, 3);
  ASSERT_TRUE(opened.has_value());
  EXPECT_EQ(opened->changed, 3u);
  EXPECT_FALSE(opened->wide);
  EXPECT_EQ(opened->steps, stream.data() + 1);
  EXPECT_EQ(opened->rest.data(), stream.data() + 3);
  EXPECT_EQ(opened->rest.size(), 6u);
  EXPECT_EQ(OpenGapStream({}, 3)->changed, 0u);
}

TEST(GapTile, OpeningRefusesMalformedStreams) {
  const auto refused = [](Bytes stream) { return !OpenGapStream(stream, 4).has_value(); };
  EXPECT_FALSE(refused({8, 0, 0, 0, 0, 0, 0}));
  EXPECT_TRUE(refused({10, 0, 0, 0, 0, 0, 0, 0, 0}));  // five changes of four units
  EXPECT_TRUE(refused({0}));                           // none
  EXPECT_TRUE(refused({1}));
  EXPECT_TRUE(refused({0x82, 0, 0, 0}));  // not the shortest form
  EXPECT_TRUE(refused({0x82}));
  EXPECT_TRUE(refused({6, 0}));                 // codes cut off
  EXPECT_TRUE(refused({6, 0, 0x10, 0, 0, 0}));  // a code of nothing
  EXPECT_TRUE(refused({6, 0, 0, 0, 0}));        // too few gaps
  EXPECT_TRUE(refused({7, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_TRUE(refused({0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}));
}

// GapTiles of one buffer, as they lie in a tensor.
struct GapTiles {
  int width;
  Bytes base;
  Bytes fresh;
  std::vector<std::uint32_t> ends;
  std::vector<Bytes> streams;

  GapTiles(Random& random, int unit_bytes) : width(unit_bytes) {
    const auto size = static_cast<std::size_t>(width);
    const std::size_t count = 1 + Below(random, 6);
    TileEncoder encoder(*ScalarKernels());
    for (std::size_t t = 0; t < count; ++t) {
      const std::uint32_t begin = t == 0 ? 0 : ends.back();
      ends.push_back(begin + 1 + static_cast<std::uint32_t>(Below(random, Below(random, 8) == 0 ? 200'000 : 3000)));
      base.resize(ends.back() * size);
      // Sparse enough for wide gaps, or everything.
      const std::uint64_t one_in = 1 + Below(random, 1 + Below(random, Below(random, 3) == 0 ? 20'000 : 300));
      const std::uint64_t seldom = 1 + Below(random, 40);
      for (std::size_t u = begin; u < ends.back(); ++u) {
        for (std::size_t b = 0; b < size; ++b) base[u * size + b] = static_cast<std::uint8_t>(random());
      }
      fresh.resize(begin * size);
      fresh.insert(fresh.end(), base.begin() + static_cast<std::ptrdiff_t>(begin * size), base.end());
      for (std::size_t u = begin; u < ends.back(); ++u) {
        if (Below(random, one_in) != 0) continue;
        if (Below(random, seldom) != 0) {
          fresh[u * size] ^= static_cast<std::uint8_t>(1 + Below(random, 7));
        } else {
          for (std::size_t b = 0; b < size; ++b) fresh[u * size + b] = static_cast<std::uint8_t>(random());
        }
      }
      const TileInput input{base.data() + begin * size, fresh.data() + begin * size, ends.back() - begin};
      EXPECT_TRUE(encoder.Compare({&input, 1}, width, [](std::size_t) { return Ok(); }).ok());
      streams.emplace_back();
      AppendGapStream(encoder.changes(0), width, streams.back());
    }
  }

  struct Decoded {
    bool intact = false;
    std::vector<std::uint32_t> positions;
    Bytes new_units;
    Bytes old_units;
    friend bool operator==(const Decoded&, const Decoded&) = default;
  };

  // The tiles whose streams open.
  [[nodiscard]] std::vector<Decoded> Decode(const Kernels& kernels) const {
    std::vector<Decoded> decoded(streams.size());
    std::vector<GapTile> tiles;
    std::vector<std::size_t> numbers;
    for (std::size_t t = 0; t < streams.size(); ++t) {
      GapTile tile;
      tile.begin = t == 0 ? 0 : ends[t - 1];
      tile.end = ends[t];
      const auto opened = OpenGapStream(streams[t], tile.end - tile.begin);
      if (!opened.has_value()) continue;
      tile.stream = *opened;
      tile.base = base.data();
      // Exactly the room that is needed, so that the address sanitizer sees one more.
      decoded[t].positions.resize(tile.stream.changed);
      decoded[t].new_units.resize(tile.stream.changed * static_cast<std::size_t>(width));
      decoded[t].old_units = decoded[t].new_units;
      tile.positions = decoded[t].positions.data();
      tile.new_units = decoded[t].new_units.data();
      tile.old_units = decoded[t].old_units.data();
      tiles.push_back(tile);
      numbers.push_back(t);
    }
    // Every change of an intact tile is followed up once, tile by tile.
    std::vector<std::uint32_t> followed;
    const auto follow = [&](const GapTile& tile, std::uint32_t first, std::uint32_t count) {
      followed.insert(followed.end(), tile.positions + first, tile.positions + first + count);
    };
    const GapFollowUp follow_up(follow);
    for (GapTile& tile : tiles) tile.follow_up = &follow_up;
    kernels.decode_gaps(tiles, width);
    std::vector<std::uint32_t> expected;
    for (std::size_t k = 0; k < tiles.size(); ++k) {
      if (tiles[k].intact) {
        const std::vector<std::uint32_t>& positions = decoded[numbers[k]].positions;
        expected.insert(expected.end(), positions.begin(), positions.end());
      }
    }
    EXPECT_EQ(followed, expected);
    for (std::size_t k = 0; k < tiles.size(); ++k) {
      if (tiles[k].intact) {
        decoded[numbers[k]].intact = true;
      } else {
        decoded[numbers[k]] = {};
      }
    }
    return decoded;
  }
};

class GapKernelsTest : public ::testing::TestWithParam<const Kernels*> {};
INSTANTIATE_TEST_SUITE_P(Sets, GapKernelsTest, ::testing::ValuesIn(AllKernels()), [](const auto& test) {
  std::string name = test.param->name;
  std::erase(name, '-');
  return name;
});

TEST_P(GapKernelsTest, DecodeWhatTheEncoderWrote) {
  Random random(1);
  bool wide = false;
  for (int i = 0; i < Rounds(300); ++i) {
    const GapTiles tiles(random, kWidths[i % 4]);
    const auto width = static_cast<std::size_t>(tiles.width);
    const auto decoded = tiles.Decode(*GetParam());
    Bytes written = tiles.base;
    for (std::size_t t = 0; t < decoded.size(); ++t) {
      ASSERT_TRUE(decoded[t].intact) << t;
      wide = wide || (!tiles.streams[t].empty() && (tiles.streams[t][0] & 1) != 0);
      for (std::size_t k = 0; k < decoded[t].positions.size(); ++k) {
        std::uint8_t* at = written.data() + decoded[t].positions[k] * width;
        ASSERT_EQ(std::memcmp(at, decoded[t].old_units.data() + k * width, width), 0);
        std::memcpy(at, decoded[t].new_units.data() + k * width, width);
      }
    }
    ASSERT_TRUE(written == tiles.fresh) << i;
  }
  EXPECT_TRUE(wide);
}

TEST_P(GapKernelsTest, DecodeDamagedStreamsAsTheScalarKernel) {
  // Refused or not, the result must not depend on the instruction set, and a damaged tile must not disturb the others.
  Random random(2);
  int refused = 0;
  int accepted = 0;
  for (int i = 0; i < Rounds(1000); ++i) {
    GapTiles tiles(random, kWidths[i % 4]);
    const auto intact = tiles.Decode(*GetParam());
    std::vector<bool> damaged(tiles.streams.size(), false);
    for (std::size_t t = 0; t < tiles.streams.size(); ++t) {
      Bytes& stream = tiles.streams[t];
      if (stream.empty() || Below(random, 2) == 0) continue;
      damaged[t] = true;
      switch (Below(random, 6)) {
        case 0:
          stream.resize(Below(random, stream.size()));
          break;
        case 1:
          stream = RandomBytes(random, 1 + Below(random, 400));
          break;
        case 2:
          stream.push_back(static_cast<std::uint8_t>(random()));
          break;
        case 3:  // gaps that pass more than there is
          stream[Below(random, stream.size())] = 0xff;
          break;
        case 4:  // another count
          stream[0] = static_cast<std::uint8_t>((stream[0] & 0x80) | Below(random, 0x80));
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
      if (damaged[t]) ++(decoded[t].intact ? accepted : refused);
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(accepted, 0);  // a flipped bit in a step is a step
}

TEST_P(GapKernelsTest, RefuseStepsBeyondTheUnitAtAnyPosition) {
  // Enough changes for whole vectors and an end; one of them wraps.
  for (const int width : kWidths) {
    const auto size = static_cast<std::size_t>(width);
    constexpr std::uint32_t kCount = 150;
    for (std::uint32_t bad = 0; bad < kCount; ++bad) {
      for (const bool down : {false, true}) {
        Bytes stream;
        ByteWriter(stream).Varint(2 * kCount);
        stream.resize(stream.size() + kCount / 2, 0x00);
        // Every second one down, from the middle; the bad one from the end it steps over.
        for (std::size_t k = 0; k < kCount / 2; ++k) stream[2 + k] = 0x10;
        stream.resize(stream.size() + kCount);
        const std::uint32_t unit = bad / 2 * 2 + (down ? 1 : 0);
        Bytes base(kCount * size, 0x40);
        const auto decode = [&] {
          std::vector<std::uint32_t> positions(kCount);
          Bytes new_units(base.size());
          Bytes old_units(base.size());
          GapTile tile;
          tile.stream = OpenGapStream(stream, kCount).value();
          tile.base = base.data();
          tile.end = kCount;
          tile.positions = positions.data();
          tile.new_units = new_units.data();
          tile.old_units = old_units.data();
          GetParam()->decode_gaps({&tile, 1}, width);
          return tile.intact;
        };
        EXPECT_TRUE(decode());
        std::fill_n(base.begin() + static_cast<std::ptrdiff_t>(unit * size), size, down ? 0x00 : 0xff);
        EXPECT_FALSE(decode()) << unit << " of width " << width;
        std::fill_n(base.begin() + static_cast<std::ptrdiff_t>(unit * size), size, down ? 0xff : 0x00);
        EXPECT_TRUE(decode()) << unit << " of width " << width;
      }
    }
  }
}

}  // namespace
}  // namespace weightwire
