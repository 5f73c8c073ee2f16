// Golden files that must be refused for what is wrong in a stream of gaps mode (vectors.h).
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "codec/models.h"
#include "codec/open_file.h"
#include "codec/vector_parts.h"

namespace weightwire::testing {

// Each is right but for its one defect: a reader that does not look for it would find the promised digest.
class BadGapVectorMaker {
 public:
  std::vector<BadVector> Make() {
    // A step of one up at unit 0 is 02 00 00: one change, code 0, gap 0. Base: all units are 100.
    Good();
    Bad("gaps_without_changes", {{2, 0, 0}, {0}, {}}, {{0, 101}});
    Bad("gaps_head_overlong", {{0x82, 0, 0, 0}, {}, {}}, {{0, 101}});
    Bad("gaps_head_cut_off", {{2, 0, 0}, {0x82}, {}}, {{0, 101}});
    Bad("gaps_of_more_changes_than_units", {{}, {}, Crowded(89)}, Successive(512, 89, 101));
    Bad("gaps_with_a_code_too_many", {{2, 0x30, 0}, {}, {}}, {{0, 101}});
    Bad("gaps_cut_off", {{4, 0, 0}, {}, {}}, {{0, 101}});
    Bad("gaps_cut_off_in_the_codes", {{10, 0, 0}, {}, {}}, {{0, 101}});
    Bad("gaps_wide_cut_in_half", {{5, 0, 0, 0, 0}, {}, {}}, {{0, 101}, {1, 101}});
    Bad("gaps_with_a_byte_left", {{2, 0, 0, 0}, {}, {}}, {{0, 101}});
    Bad("gaps_with_a_longest_gap_left", {{2, 0, 0, 255}, {}, {}}, {{0, 101}});
    Bad("gaps_beyond_the_tile", {{2, 0, 255, 1}, {}, {}}, {{256, 101}});
    Bad("gaps_beyond_the_tile_wide", {{3, 0, 0, 1}, {}, {}}, {{256, 101}});
    Bad("gaps_beyond_the_last_tile", {{}, {}, {4, 0, 0, 87}}, {{512, 101}, {600, 101}});
    Bad("gaps_never_ending", {{2, 0, 255, 255, 255, 255, 255, 255}, {}, {}}, {{0, 101}});
    Bad("gaps_magnitude_missing", {{2, 14, 0}, {}, {}}, {{0, 108}});
    Bad("gaps_magnitude_overlong", {{2, 14, 0, 0x81, 0}, {}, {}}, {{0, 109}});
    Bad("gaps_magnitude_cut_off", {{2, 14, 0, 0x81}, {}, {}}, {{0, 109}});
    Bad("gaps_magnitude_beyond_the_unit", {{2, 14, 0, 0x80, 2}, {}, {}}, {{0, 108}});
    Bad("gaps_magnitude_that_changes_nothing", {{2, 14, 0, 0xf8, 1}, {}, {}}, {{0, 100}});
    Bad("gaps_step_above_the_largest", {{2, 14, 0, 0x94, 1}, {}, {}}, {{0, 0}});
    Bad("gaps_step_below_zero", {{2, 15, 0, 93}, {}, {}}, {{0, 255}});
    Bad("gaps_stream_missing", {{}, {2, 0, 0}, {}}, {{0, 101}, {256, 101}});
    Bad("gaps_count_too_high", {{2, 0, 0}, {}, {}}, {{0, 101}}, +1);
    Bad("gaps_count_too_low", {{4, 0, 0, 0}, {}, {}}, {{0, 101}, {1, 101}}, -1);
    // 2^64 - 1 and 8 more are 7.
    WideUnits("gaps_magnitude_beyond_64_bits", {2, 14, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
              107);
    return std::move(vectors_);
  }

 private:
  static constexpr std::size_t kUnits = 600;

  static Model Base() {
    Bytes wide(4 * 8);
    for (std::size_t i = 0; i < 4; ++i) StoreU64(&wide[8 * i], 100);
    return ModelOf({{{"bytes", DType::kU8, {kUnits}}, Bytes(kUnits, 100)}, {{"longs", DType::kU64, {4}}, wide}});
  }

  using Changes = std::vector<std::pair<std::size_t, std::uint8_t>>;
  // A stream in which `count` units in a row go up by one.
  static Bytes Crowded(std::size_t count) {
    Bytes stream;
    ByteWriter(stream).Varint(2 * count);
    stream.resize(stream.size() + (count + 1) / 2 + count);
    return stream;
  }
  static Changes Successive(std::size_t first, std::size_t count, std::uint8_t to) {
    Changes changes;
    for (std::size_t k = 0; k < count; ++k) changes.emplace_back(first + k, to);
    return changes;
  }

  static Bytes Delta(const Model& after, std::size_t tensor, const std::vector<Bytes>& streams, std::uint64_t changed) {
    const Model before = Base();
    FileContents contents = ContentsOf(DeltaBetween(before, after, CodingRequest::kWhole));
    IndexEntry entry;
    entry.mode = EntryMode::kGaps;
    entry.tensor = tensor;
    entry.tile_log2 = 8;
    entry.changed = changed;
    entry.before = DigestsOf(before)[tensor];
    entry.after = DigestsOf(after)[tensor];
    contents.payload.clear();
    for (const Bytes& stream : streams) {
      entry.tile_bytes.push_back(static_cast<std::uint32_t>(stream.size()));
      contents.payload.insert(contents.payload.end(), stream.begin(), stream.end());
    }
    contents.index.entries = {entry};
    return FileOf(contents);
  }

  // Streams of the tiles of "bytes", and what one who does not look closely takes them for.
  void Bad(std::string name, const std::vector<Bytes>& streams, const Changes& changes, int miscounted = 0) {
    Model after = Base();
    for (const auto& [unit, value] : changes) {
      if (unit < kUnits) after["bytes"][unit] = value;
    }
    const std::uint64_t changed = changes.size() + static_cast<std::uint64_t>(std::int64_t{miscounted});
    vectors_.push_back({std::move(name), CheckpointOf(Base()), Delta(after, 0, streams, changed), "damaged"});
  }
  void WideUnits(std::string name, const Bytes& stream, std::uint64_t value) {
    Model after = Base();
    StoreU64(&after["longs"][8], value);
    vectors_.push_back({std::move(name), CheckpointOf(Base()), Delta(after, 1, {stream}, 1), "damaged"});
  }
  // The same made well is accepted, or the others would prove nothing.
  static void Good() {
    Model after = Base();
    after["bytes"][0] = 101;
    WW_CHECK(MustApply(Delta(after, 0, {{2, 0, 0}, {}, {}}, 1), Base()) == after);
    WW_CHECK(MustApply(Delta(after, 0, {{3, 0, 0, 0}, {}, {}}, 1), Base()) == after);
    after = Base();
    after["bytes"][0] = 109;
    after["bytes"][256 + 255] = 94;
    WW_CHECK(MustApply(Delta(after, 0, {{2, 14, 0, 1}, {2, 11, 255, 0}, {}}, 2), Base()) == after);
    after = Base();
    after["longs"][8] = 107;
    WW_CHECK(MustApply(Delta(after, 1, {{2, 12, 1}}, 1), Base()) == after);
  }

  std::vector<BadVector> vectors_;
};

inline std::vector<BadVector> BadGapVectors() { return BadGapVectorMaker().Make(); }

}  // namespace weightwire::testing
