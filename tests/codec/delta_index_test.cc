#include "codec/format/delta_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "base/limits.h"

namespace weightwire {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::uint8_t>;

Bytes Written(const DeltaIndex& index) {
  Bytes bytes;
  ByteWriter writer(bytes);
  index.Write(writer);
  return bytes;
}

std::uint64_t PayloadOf(const DeltaIndex& index) {
  std::uint64_t bytes = 0;
  for (const IndexEntry& entry : index.entries) bytes += entry.PayloadBytes();
  return bytes;
}

Result<DeltaIndex> Read(const Bytes& bytes, std::uint64_t payload) {
  ByteReader reader(bytes);
  WW_TRY(DeltaIndex index, DeltaIndex::Read(reader, payload));
  WW_RETURN_IF_ERROR(reader.ExpectEnd());
  return index;
}

Sha256Digest HashOf(std::uint8_t seed) { return Sha256Of(Bytes{seed}); }
Digest DigestFrom(std::uint64_t seed) { return {{seed * 12345 % kDigestPrime, kDigestPrime - 1 - seed}}; }

IndexEntry SparseEntry(std::size_t tensor, std::vector<std::uint32_t> tiles) {
  IndexEntry entry;
  entry.tensor = tensor;
  entry.mode = EntryMode::kSparse;
  entry.scale = -3;
  entry.tile_log2 = 12;
  entry.changed = 77;
  entry.tile_bytes = std::move(tiles);
  entry.before = DigestFrom(1);
  entry.after = DigestFrom(2);
  return entry;
}

IndexEntry WholeEntry(std::size_t tensor, std::uint64_t size) {
  IndexEntry entry;
  entry.tensor = tensor;
  entry.whole_bytes = size;
  entry.after = DigestFrom(3);
  return entry;
}

// Everything an index can hold.
DeltaIndex FullIndex() {
  DeltaIndex index;
  index.layout_hash = HashOf(1);
  index.state = {HashOf(2), HashOf(3)};
  index.aliases = {{"head", "embed"}, {"tail", "embed"}};
  index.layout_change = LayoutChange{
      HashOf(4), {0, 3, 9}, {{"new", DType::kF8E8M0, {}}, {"other", DType::kF4, {2, 0, 4}}}, {{"alias", "new"}}};
  index.entries = {SparseEntry(0, {5, 0, 300, 17}), WholeEntry(4, 10), SparseEntry(4, {8, 8, 8}),
                   SparseEntry(6, {0, 9}), WholeEntry(70'000, 0)};
  index.entries[2].mode = EntryMode::kDense;
  index.entries[2].scale = 0;
  index.entries[2].box = Box{{1, 0}, {2, 1u << 20}};
  index.entries[3].mode = EntryMode::kGaps;
  index.entries[3].scale = 0;
  return index;
}

void ExpectSame(const DeltaIndex& a, const DeltaIndex& b) {
  EXPECT_EQ(a.layout_hash, b.layout_hash);
  EXPECT_EQ(a.aliases, b.aliases);
  ASSERT_EQ(a.state.has_value(), b.state.has_value());
  if (a.state.has_value()) {
    EXPECT_EQ(a.state->before, b.state->before);
    EXPECT_EQ(a.state->after, b.state->after);
  }
  ASSERT_EQ(a.layout_change.has_value(), b.layout_change.has_value());
  if (a.layout_change.has_value()) {
    EXPECT_EQ(a.layout_change->after_hash, b.layout_change->after_hash);
    EXPECT_EQ(a.layout_change->removed, b.layout_change->removed);
    EXPECT_EQ(a.layout_change->added, b.layout_change->added);
    EXPECT_EQ(a.layout_change->aliases, b.layout_change->aliases);
  }
  ASSERT_EQ(a.entries.size(), b.entries.size());
  for (std::size_t i = 0; i < a.entries.size(); ++i) {
    const IndexEntry& x = a.entries[i];
    const IndexEntry& y = b.entries[i];
    EXPECT_EQ(x.tensor, y.tensor);
    EXPECT_EQ(x.mode, y.mode);
    EXPECT_EQ(x.box, y.box);
    EXPECT_EQ(x.before, y.before);
    EXPECT_EQ(x.after, y.after);
    EXPECT_EQ(x.whole_bytes, y.whole_bytes);
    EXPECT_EQ(x.tile_bytes, y.tile_bytes);
    if (x.mode == EntryMode::kWhole) continue;
    EXPECT_EQ(x.table_set, y.table_set);
    EXPECT_EQ(x.scale, y.scale);
    EXPECT_EQ(x.tile_log2, y.tile_log2);
    EXPECT_EQ(x.changed, y.changed);
  }
}

TEST(DeltaIndex, ReadsBackWhatItWrites) {
  const DeltaIndex full = FullIndex();
  const auto again = Read(Written(full), PayloadOf(full));
  ASSERT_TRUE(again.ok()) << again.error().message();
  ExpectSame(again.value(), full);
  const auto nothing = Read(Written({}), 0);
  ASSERT_TRUE(nothing.ok());
  ExpectSame(nothing.value(), {});
}

TEST(DeltaIndex, ReadsBackTileLengthsOfEveryWidth) {
  std::mt19937_64 random(1);
  for (int width = 0; width <= 24; ++width) {
    for (const std::size_t count : {1, 2, 7, 8, 9, 63, 1000}) {
      DeltaIndex index;
      std::vector<std::uint32_t> tiles;
      const std::uint64_t least = width == 24 ? 0 : random() % 100 + (width == 0);
      for (std::size_t i = 0; i < count; ++i) {
        tiles.push_back(static_cast<std::uint32_t>(least + random() % (std::uint64_t{1} << width)));
      }
      if (tiles.size() > 1) tiles[1] = static_cast<std::uint32_t>(least + (std::uint64_t{1} << width) - 1);
      index.entries = {SparseEntry(0, tiles)};
      const auto again = Read(Written(index), PayloadOf(index));
      ASSERT_TRUE(again.ok()) << width << ' ' << count << ": " << again.error().message();
      ASSERT_EQ(again.value().entries[0].tile_bytes, tiles);
    }
  }
}

TEST(DeltaIndex, RefusesTruncation) {
  const DeltaIndex full = FullIndex();
  const Bytes bytes = Written(full);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const auto cut = Read(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)), PayloadOf(full));
    ASSERT_FALSE(cut.ok()) << length;
    EXPECT_EQ(cut.error().code(), ErrorCode::kCorrupt) << length << ": " << cut.error().message();
  }
}

TEST(DeltaIndex, ThePayloadMustBeUsedUpExactly) {
  const DeltaIndex full = FullIndex();
  for (const std::int64_t difference : {-1, 1, -100, 1'000'000}) {
    const auto read = Read(Written(full), PayloadOf(full) + static_cast<std::uint64_t>(difference));
    ASSERT_FALSE(read.ok()) << difference;
    EXPECT_EQ(read.error().code(), ErrorCode::kCorrupt);
  }
}

// An index written field by field, so that each can be wrong.
class RawIndex {
 public:
  RawIndex() : out_(bytes_) {}

  RawIndex& Varint(std::uint64_t value) { return out_.Varint(value), *this; }
  RawIndex& Byte(std::uint8_t value) { return out_.U8(value), *this; }
  RawIndex& Raw(const Bytes& bytes) { return out_.Bytes(bytes), *this; }
  RawIndex& Hash() { return Raw(Bytes(32, 5)); }
  RawIndex& Digest() { return Raw(Bytes(16, 1)); }
  RawIndex& Name(std::string_view name) {
    Varint(name.size());
    return Raw(Bytes(name.begin(), name.end()));
  }
  // Flags and what a plain part begins with, and one entry up to its mode.
  static RawIndex Entry(std::uint8_t mode) {
    RawIndex index;
    index.Varint(0).Hash().Varint(1).Varint(0).Byte(mode);
    return index;
  }
  // A sparse entry up to its tile lengths.
  static RawIndex Sparse() {
    RawIndex index = Entry(0);
    index.Varint(0).Byte(128).Byte(12).Varint(1);
    return index;
  }
  // A layout change up to the list of removed tensors.
  static RawIndex Change() {
    RawIndex index;
    index.Varint(2).Hash().Hash();
    return index;
  }

  RawIndex(const RawIndex& other) : bytes_(other.bytes_), out_(bytes_) {}
  RawIndex& operator=(const RawIndex&) = delete;

  [[nodiscard]] std::string Error(std::uint64_t payload, ErrorCode code = ErrorCode::kCorrupt) const {
    const auto index = Read(bytes_, payload);
    if (index.ok()) return "accepted";
    EXPECT_EQ(index.error().code(), code) << index.error().message();
    return index.error().message();
  }

 private:
  Bytes bytes_;
  ByteWriter out_;
};

TEST(DeltaIndex, RefusesUnknownFlagsAsUnsupported) {
  for (const std::uint64_t flags : {8u, 16u, 128u, 1u << 30}) {
    EXPECT_THAT(RawIndex().Varint(flags).Hash().Varint(0).Error(0, ErrorCode::kUnsupported), HasSubstr("newer"));
  }
  EXPECT_EQ(RawIndex().Varint(0).Hash().Varint(0).Error(0), "accepted");
}

TEST(DeltaIndex, RefusesOverlongVarints) {
  EXPECT_THAT(RawIndex().Raw({0x80, 0}).Hash().Varint(0).Error(0), HasSubstr("shortest"));
  EXPECT_THAT(RawIndex().Varint(0).Hash().Raw({0x80, 0x80, 0}).Error(0), HasSubstr("shortest"));
}

TEST(DeltaIndex, RefusesUnknownModes) {
  for (const int mode : {8, 12, 16, 64, 128, 255}) {
    EXPECT_THAT(RawIndex::Entry(static_cast<std::uint8_t>(mode)).Error(0), HasSubstr("mode")) << mode;
  }
}

TEST(DeltaIndex, RefusesMalformedEntries) {
  EXPECT_EQ(RawIndex::Entry(2).Varint(3).Digest().Digest().Error(3), "accepted");
  EXPECT_EQ(RawIndex::Sparse().Varint(1).Varint(4).Byte(0).Digest().Digest().Error(4), "accepted");
  EXPECT_EQ(RawIndex::Sparse().Varint(0).Digest().Digest().Error(0), "accepted") << "no tiles";

  EXPECT_THAT(RawIndex::Entry(2).Varint(4).Digest().Digest().Error(3), HasSubstr("longer than the payload"));
  EXPECT_THAT(RawIndex::Entry(2).Varint(~std::uint64_t{0}).Digest().Digest().Error(3), HasSubstr("payload"));
  EXPECT_THAT(RawIndex::Entry(0).Varint(kMaxTableSets + 1).Error(0, ErrorCode::kLimit), HasSubstr("table sets"));
  EXPECT_THAT(RawIndex::Entry(0).Varint(0).Byte(128).Byte(kMinTileLog2 - 1).Error(0), HasSubstr("tile size"));
  EXPECT_THAT(RawIndex::Entry(0).Varint(0).Byte(128).Byte(kMaxTileLog2 + 1).Error(0), HasSubstr("tile size"));
  EXPECT_THAT(RawIndex::Entry(1).Varint(0).Byte(128).Error(0), HasSubstr("tile size")) << "dense has no scale";
  EXPECT_THAT(RawIndex::Entry(3).Byte(kMaxTileLog2 + 1).Error(0), HasSubstr("tile size")) << "gaps mode has no tables";
  EXPECT_THAT(RawIndex::Entry(0).Varint(0).Byte(128).Byte(12).Varint(kMaxTensorBytes + 1).Error(0, ErrorCode::kLimit),
              HasSubstr("changes"));
  // A box of too many dimensions.
  EXPECT_THAT(RawIndex::Entry(6).Varint(kMaxRank + 1).Error(0, ErrorCode::kLimit), HasSubstr("dimensions"));
  // Digests not below the modulus.
  const Bytes modulus = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f};
  EXPECT_THAT(RawIndex::Entry(2).Varint(0).Raw(modulus).Raw(Bytes(8)).Digest().Error(0), HasSubstr("digest"));
  EXPECT_THAT(RawIndex::Entry(2).Varint(0).Digest().Raw(Bytes(8)).Raw(modulus).Error(0), HasSubstr("digest"));
}

TEST(DeltaIndex, RefusesMalformedTileLengths) {
  const auto sparse = [] { return RawIndex::Sparse(); };
  EXPECT_EQ(sparse().Varint(3).Varint(1).Byte(2).Byte(0b100100).Digest().Digest().Error(6), "accepted");
  EXPECT_THAT(sparse().Varint(3).Varint(1).Byte(2).Byte(0b1100100).Digest().Digest().Error(6), HasSubstr("stray bits"));
  EXPECT_THAT(sparse().Varint(1).Varint(0).Byte(25).Raw(Bytes(4)).Digest().Digest().Error(0), HasSubstr("impossible"));
  EXPECT_THAT(sparse().Varint(1).Varint(0).Byte(0).Digest().Digest().Error(0), HasSubstr("impossible"));
  EXPECT_THAT(sparse().Varint(kMaxTilesPerEntry + 1).Varint(0).Byte(1).Error(0, ErrorCode::kLimit),
              HasSubstr("67108864"));
  EXPECT_THAT(sparse().Varint(~std::uint64_t{0}).Varint(~std::uint64_t{0} >> 1).Byte(1).Error(0, ErrorCode::kLimit),
              HasSubstr("tile"));
  // More in all than there is payload, by the smallest length alone and with the bits.
  EXPECT_THAT(sparse().Varint(1u << 20).Varint(1).Byte(0).Digest().Digest().Error(1000), HasSubstr("impossible"));
  EXPECT_THAT(sparse().Varint(2).Varint(1).Byte(4).Byte(0xff).Digest().Digest().Error(20),
              HasSubstr("longer than the payload"));
  EXPECT_THAT(sparse().Varint(1).Varint(kMaxTileBytes + 1).Byte(0).Error(1u << 30, ErrorCode::kLimit),
              HasSubstr("bytes in a tile"));
  EXPECT_THAT(sparse().Varint(1).Varint(kMaxTileBytes).Byte(1).Byte(1).Error(1u << 30, ErrorCode::kLimit),
              HasSubstr("bytes in a tile"));
  // Their bits are cut off.
  EXPECT_FALSE(Read({}, 0).ok());
  EXPECT_NE(sparse().Varint(1u << 20).Varint(0).Byte(24).Byte(1).Error(1000), "accepted");
}

TEST(DeltaIndex, TensorsAndEntriesHaveLimits) {
  EXPECT_THAT(RawIndex().Varint(0).Hash().Varint(kMaxEntries + 1).Error(0, ErrorCode::kLimit), HasSubstr("entries"));
  EXPECT_THAT(RawIndex().Varint(0).Hash().Varint(1).Varint(kMaxTensors).Byte(2).Error(0, ErrorCode::kLimit),
              HasSubstr("tensors"));
  EXPECT_THAT(RawIndex().Varint(0).Hash().Varint(1).Varint(~std::uint64_t{0}).Byte(2).Error(0, ErrorCode::kLimit),
              HasSubstr("tensors"));
}

TEST(DeltaIndex, RefusesMalformedAliases) {
  const auto aliases = [](std::uint64_t count) { return RawIndex().Varint(4).Hash().Varint(count); };
  EXPECT_EQ(aliases(2).Name("a").Name("x").Name("b").Name("x").Varint(0).Error(0), "accepted");
  EXPECT_THAT(aliases(0).Varint(0).Error(0), HasSubstr("empty list"));
  EXPECT_THAT(aliases(2).Name("b").Name("x").Name("a").Name("x").Varint(0).Error(0), HasSubstr("order"));
  EXPECT_THAT(aliases(2).Name("a").Name("x").Name("a").Name("y").Varint(0).Error(0), HasSubstr("order"));
  EXPECT_THAT(aliases(kMaxTensors + 1).Error(0, ErrorCode::kLimit), HasSubstr("aliases"));
  EXPECT_THAT(aliases(1).Varint(kMaxNameBytes + 1).Error(0, ErrorCode::kLimit), HasSubstr("name"));
  EXPECT_THAT(aliases(1).Name("\xff").Name("x").Varint(0).Error(0), HasSubstr("UTF-8"));
  EXPECT_NE(aliases(1).Name("__metadata__").Name("x").Varint(0).Error(0), "accepted");
}

TEST(DeltaIndex, RefusesMalformedLayoutChanges) {
  const auto change = [] { return RawIndex::Change(); };
  EXPECT_EQ(change().Varint(2).Varint(0).Varint(5).Varint(0).Varint(0).Varint(0).Error(0), "accepted");
  EXPECT_THAT(change().Varint(2).Varint(3).Varint(0).Error(0), HasSubstr("removed twice"));
  EXPECT_THAT(change().Varint(kMaxTensors + 1).Error(0, ErrorCode::kLimit), HasSubstr("removed"));
  EXPECT_THAT(change().Varint(1).Varint(kMaxTensors + 1).Error(0, ErrorCode::kLimit), HasSubstr("tensors"));
  EXPECT_THAT(change().Varint(0).Varint(kMaxTensors + 1).Error(0, ErrorCode::kLimit), HasSubstr("added"));
  for (const std::uint8_t number : {0, 23, 255}) {
    EXPECT_THAT(change().Varint(0).Varint(1).Name("n").Byte(number).Varint(0).Error(0, ErrorCode::kUnsupported),
                HasSubstr("unknown type"));
  }
  EXPECT_THAT(change().Varint(0).Varint(1).Name("n").Byte(1).Varint(kMaxRank + 1).Error(0, ErrorCode::kLimit),
              HasSubstr("dimensions"));
  EXPECT_NE(change()
                .Varint(0)
                .Varint(1)
                .Name("n")
                .Byte(22)
                .Varint(2)
                .Varint(1ull << 60)
                .Varint(1ull << 60)
                .Error(0, ErrorCode::kLimit),
            "accepted");
  EXPECT_NE(change().Varint(0).Varint(1).Name("n").Byte(2).Varint(1).Varint(3).Error(0), "accepted")
      << "three elements of four bits";
}

Layout LayoutOf(std::vector<TensorSpec> specs, Aliases aliases = {}) {
  return Layout::Make(std::move(specs), std::move(aliases)).value();
}

TEST(LayoutChange, LeadsFromOneLayoutToTheOther) {
  const TensorSpec a{"a", DType::kBF16, {4}};
  const TensorSpec b{"b", DType::kBF16, {4}};
  const TensorSpec c{"c", DType::kBF16, {4}};
  const TensorSpec b_reshaped{"b", DType::kBF16, {2, 2}};
  const TensorSpec c_retyped{"c", DType::kF16, {4}};
  const std::vector<Layout> layouts = {LayoutOf({}),
                                       LayoutOf({a}),
                                       LayoutOf({a, b, c}),
                                       LayoutOf({a, b_reshaped, c}),
                                       LayoutOf({b, c_retyped}),
                                       LayoutOf({a, b, c}, {{"z", "a"}}),
                                       LayoutOf({a, b, c}, {{"z", "b"}}),
                                       LayoutOf({a, c}, {{"b", "a"}})};
  for (const Layout& before : layouts) {
    EXPECT_EQ(ApplyLayoutChange(before, std::nullopt).value(), before);
    for (const Layout& after : layouts) {
      const auto led = ApplyLayoutChange(before, CompareLayouts(before, after));
      ASSERT_TRUE(led.ok()) << led.error().message();
      EXPECT_EQ(led.value(), after);
    }
  }
  EXPECT_TRUE(CompareLayouts(layouts[2], layouts[3]).removed == std::vector<std::size_t>{1});
}

TEST(LayoutChange, RefusesWhatDoesNotFitTheBase) {
  const Layout before = LayoutOf({{"a", DType::kU8, {1}}, {"b", DType::kU8, {1}}});
  const auto code = [&](LayoutChange change) {
    const auto after = ApplyLayoutChange(before, change);
    return after.ok() ? std::optional<ErrorCode>() : after.error().code();
  };
  const Layout without_b = LayoutOf({{"a", DType::kU8, {1}}});
  EXPECT_EQ(code({without_b.hash(), {1}, {}, {}}), std::nullopt);
  EXPECT_EQ(code({before.hash(), {1}, {}, {}}), ErrorCode::kCorrupt) << "another hash than promised";
  EXPECT_EQ(code({without_b.hash(), {2}, {}, {}}), ErrorCode::kCorrupt) << "removes what is not there";
  EXPECT_EQ(code({without_b.hash(), {}, {{"a", DType::kU8, {2}}}, {}}), ErrorCode::kCorrupt) << "a name twice";
  EXPECT_EQ(code({without_b.hash(), {1}, {}, {{"x", "b"}}}), ErrorCode::kCorrupt) << "an alias of nothing";
}

}  // namespace
}  // namespace weightwire
