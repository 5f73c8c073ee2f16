// Corruption tests: each kind of damage that made other systems hold wrong weights silently (the failure list of the
// design notes). The decoder must refuse each before it writes anything.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "codec/models.h"
#include "codec/open_file.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

// A small model of every kind of coding, and a step of it: conditioned and gaps, dense, whole, a new tensor.
class CorruptionTest : public ::testing::Test {
 protected:
  CorruptionTest() : random_(1) {
    Bytes scales(4 * 3000);
    for (std::size_t i = 0; i < 3000; ++i) {
      StoreU32(scales.data() + 4 * i, 0x3c000000 + static_cast<std::uint32_t>(Below(random_, 1 << 20)));
    }
    before_ = ModelOf({{{"a.weight", DType::kBF16, {100, 120}}, WeightLikeBf16(random_, 12'000)},
                       {{"b.weight", DType::kBF16, {100, 120}}, WeightLikeBf16(random_, 12'000)},
                       {{"c.scale", DType::kF32, {3000}}, scales},
                       {{"d.table", DType::kU8, {2000}}, RandomBytes(random_, 2000)},
                       {{"e.untouched", DType::kBF16, {5000}}, WeightLikeBf16(random_, 5000)}});
    after_ = before_;
    StepBf16(random_, after_["a.weight"], 60);
    StepBf16(random_, after_["b.weight"], 200);
    for (std::size_t i = 0; i < 3000; ++i) {
      std::uint8_t* scale = after_["c.scale"].data() + 4 * i;
      StoreU32(scale, LoadU32(scale) + static_cast<std::uint32_t>(Below(random_, 9)) - 4);
    }
    after_["d.table"] = RandomBytes(random_, 2000);
    file_ = DeltaBetween(before_, after_);
  }

  // The refusal's code; a failure if there is none.
  ErrorCode Refused(std::span<const std::uint8_t> file, const Model& base) {
    const Model untouched = base;
    const auto change = Stage(file, ViewOf(base));
    EXPECT_EQ(base, untouched);
    if (change.ok()) {
      ADD_FAILURE() << "accepted";
      return ErrorCode::kIo;
    }
    return change.error().code();
  }

  // A file that is well sealed and leads to `wrong`, but promises the digests of the truth.
  Bytes Forged(const Model& wrong, CodingRequest coding = CodingRequest::kSmallest) {
    FileContents contents = ContentsOf(DeltaBetween(before_, wrong, coding));
    const std::vector<Digest> digests = DigestsOf(after_);
    for (IndexEntry& entry : contents.index.entries) entry.after = digests[entry.tensor];
    contents.index.state->after = StateDigest(*after_.layout, digests);
    return FileOf(contents);
  }

  // Forged files of every mode that lead to the true state with an accident in it.
  void ExpectSeen(const std::function<void(Model&)>& accident) {
    Model wrong = after_;
    accident(wrong);
    ASSERT_NE(wrong, after_) << "the accident changes something";
    for (const CodingRequest coding : {CodingRequest::kSmallest, CodingRequest::kConditioned, CodingRequest::kUniform,
                                       CodingRequest::kGaps, CodingRequest::kDense, CodingRequest::kWhole}) {
      EXPECT_EQ(Refused(Forged(wrong, coding), before_), ErrorCode::kCorrupt);
    }
    EXPECT_EQ(MustApply(Forged(after_), before_), after_) << "the forger's own work is not at fault";
  }

  Random random_;
  Model before_;
  Model after_;
  Bytes file_;
};

TEST_F(CorruptionTest, AcceptsTheUndamagedFile) {
  EXPECT_EQ(MustApply(file_, before_), after_);
  std::vector<std::string> modes;
  for (const EntryReport& report : MustEncode(WholeRequest(before_, after_)).reports) modes.emplace_back(report.mode);
  EXPECT_EQ(modes[2], "dense");
  EXPECT_EQ(modes[3], "whole");
  EXPECT_EQ(modes[4], "unchanged");
}

TEST_F(CorruptionTest, RefusesAnotherBaseOfTheSameLayout) {
  Model other = before_;
  for (Bytes& tensor : other.tensors) tensor = RandomBytes(random_, tensor.size());
  EXPECT_EQ(Refused(file_, other), ErrorCode::kMismatch);
  // The state two steps further on.
  other = after_;
  StepBf16(random_, other["a.weight"], 50);
  EXPECT_EQ(Refused(file_, other), ErrorCode::kMismatch);
}

TEST_F(CorruptionTest, RefusesAnotherLayout) {
  EXPECT_EQ(Refused(file_, ModelOf({})), ErrorCode::kMismatch);
  EXPECT_EQ(Refused(file_, ModelOf({{{"a.weight", DType::kBF16, {120, 100}}, before_["a.weight"]}})),
            ErrorCode::kMismatch);
}

TEST_F(CorruptionTest, FindsAWrongByteInAnUnchangedTensor) {
  Model other = before_;
  other["e.untouched"][1234] ^= 1;
  EXPECT_EQ(Refused(file_, other), ErrorCode::kMismatch);
}

TEST_F(CorruptionTest, FindsAWrongByteInAChangedTensor) {
  for (const char* name : {"a.weight", "b.weight", "c.scale", "d.table"}) {
    Model other = before_;
    other[name][777] ^= 0x80;
    EXPECT_EQ(Refused(file_, other), ErrorCode::kMismatch) << name;
  }
}

TEST_F(CorruptionTest, APartChecksItsOwnTensorsOnly) {
  // Without state digests the file vouches for what it touches: a wrong byte there is still found.
  EncodeRequest request = WholeRequest(before_, after_);
  request.digests_before.reset();
  const Bytes part = MustEncode(request).file;
  EXPECT_EQ(MustApply(part, before_), after_);
  Model other = before_;
  other["b.weight"][2 * 11'999] ^= 1;
  EXPECT_EQ(Refused(part, other), ErrorCode::kMismatch);
}

TEST_F(CorruptionTest, FindsBitFlips) {
  const StateView base = ViewOf(before_);
  for (int i = 0; i < 4000; ++i) {
    Bytes flipped = file_;
    for (std::uint64_t flips = 1 + Below(random_, 3); flips > 0; --flips) {
      flipped[Below(random_, flipped.size())] ^= static_cast<std::uint8_t>(1u << Below(random_, 8));
    }
    if (flipped == file_) continue;
    ASSERT_FALSE(Stage(flipped, base).ok()) << i;
  }
}

TEST_F(CorruptionTest, FindsTruncation) {
  const StateView base = ViewOf(before_);
  for (int i = 0; i < 2000; ++i) {
    const std::size_t length = i < 600 ? static_cast<std::size_t>(i) : Below(random_, file_.size());
    ASSERT_FALSE(Stage(std::span(file_).first(length), base).ok()) << length;
  }
  Bytes longer = file_;
  longer.push_back(0);
  ASSERT_FALSE(Stage(longer, base).ok());
}

TEST_F(CorruptionTest, FindsBitFlipsUnderAFreshHash) {
  // Somebody between us computed the hash again. What is behind it must hold alone: refused, or the true state. (A bit
  // in which nothing depends, such as a white space of the header, may change without harm.)
  const StateView base = ViewOf(before_);
  int refused = 0;
  int same = 0;
  for (const CodingRequest coding : {CodingRequest::kSmallest, CodingRequest::kGaps, CodingRequest::kDense}) {
    const Bytes file = DeltaBetween(before_, after_, coding);
    for (int i = 0; i < Rounds(1500); ++i) {
      Bytes flipped = file;
      const std::size_t header = HashOffset(file);
      // Half of them in the index and the tables, where the structure is.
      const std::size_t span =
          Below(random_, 2) == 0 ? file.size() - header : std::min<std::size_t>(900, file.size() - header);
      for (std::uint64_t flips = 1 + Below(random_, 2); flips > 0; --flips) {
        flipped[header + Below(random_, span)] ^= static_cast<std::uint8_t>(1u << Below(random_, 8));
      }
      Reseal(flipped);
      const auto change = Stage(flipped, base);
      if (!change.ok()) {
        ++refused;
        continue;
      }
      ASSERT_EQ(Written(before_, *change.value()), after_) << "wrong weights got through";
      ++same;
    }
  }
  EXPECT_GT(refused, Rounds(3500));
  RecordProperty("harmless", same);
}

TEST_F(CorruptionTest, FindsMovedStreamsUnderAFreshHash) {
  // Bytes of the payload swapped, doubled, dropped and zeroed, with lengths kept.
  const StateView base = ViewOf(before_);
  const OpenFile good = Open(file_);
  for (int i = 0; i < Rounds(1000); ++i) {
    OpenFile bad = good;
    const std::size_t size = 1 + Below(random_, 64);
    const std::size_t from = Below(random_, bad.payload.size() - size);
    const std::size_t to = Below(random_, bad.payload.size() - size);
    const auto at = [&](std::size_t offset) { return bad.payload.begin() + static_cast<std::ptrdiff_t>(offset); };
    switch (Below(random_, 3)) {
      case 0:
        std::copy_n(Bytes(at(from), at(from + size)).begin(), size, at(to));
        break;
      case 1:
        std::fill_n(at(to), size, std::uint8_t{0});
        break;
      default:
        std::reverse(at(to), at(to + size));
    }
    if (bad.payload == good.payload) continue;
    const auto change = Stage(Seal(bad), base);
    ASSERT_TRUE(!change.ok() || Written(before_, *change.value()) == after_);
  }
}

TEST_F(CorruptionTest, DecodesAGoodFileAfterABadOne) {
  // No state is kept that a bad file could spoil: the same view takes the good one.
  const StateView base = ViewOf(before_);
  Bytes bad = file_;
  bad[bad.size() - 5] ^= 1;
  EXPECT_FALSE(Stage(bad, base).ok());
  Reseal(bad);
  EXPECT_FALSE(Stage(bad, base).ok());
  const auto change = Stage(file_, base);
  ASSERT_TRUE(change.ok());
  EXPECT_EQ(Written(before_, *change.value()), after_);
}

TEST_F(CorruptionTest, RefusesTheSameDeltaTwice) {
  EXPECT_EQ(Refused(file_, after_), ErrorCode::kMismatch);
  // Through a view as well.
  const StateView view = ViewOf(before_);
  const auto change = Stage(file_, view);
  const StateView later = view.After(change.value());
  EXPECT_EQ(Stage(file_, later).error().code(), ErrorCode::kMismatch);
}

TEST_F(CorruptionTest, FindsTwoSwappedValues) {
  ExpectSeen([](Model& m) {
    Bytes& b = m["a.weight"];
    std::size_t i = 0;
    while (LoadU16(&b[2 * i]) == LoadU16(&b[2 * i + 9000])) ++i;
    std::swap_ranges(b.begin() + static_cast<std::ptrdiff_t>(2 * i), b.begin() + static_cast<std::ptrdiff_t>(2 * i + 2),
                     b.begin() + static_cast<std::ptrdiff_t>(2 * i + 9000));
  });
}

TEST_F(CorruptionTest, FindsAThousandReversedValues) {
  ExpectSeen([](Model& m) {
    auto* units = reinterpret_cast<std::uint16_t*>(m["a.weight"].data());
    std::reverse(units + 3000, units + 4000);
  });
}

TEST_F(CorruptionTest, FindsTwoThousandShiftedValues) {
  ExpectSeen([](Model& m) {
    auto* units = reinterpret_cast<std::uint16_t*>(m["b.weight"].data());
    std::rotate(units + 3000, units + 3001, units + 5000);
  });
}

TEST_F(CorruptionTest, FindsTwoFlippedSigns) {
  ExpectSeen([](Model& m) {
    m["a.weight"][2 * 100 + 1] ^= 0x80;
    m["a.weight"][2 * 7000 + 1] ^= 0x80;
  });
  ExpectSeen([](Model& m) {
    m["c.scale"][4 * 100 + 3] ^= 0x80;
    m["c.scale"][4 * 101 + 3] ^= 0x80;
  });
}

TEST_F(CorruptionTest, FindsBlocksExchangedBetweenTiles) {
  ExpectSeen([](Model& m) {
    Bytes& b = m["a.weight"];
    std::swap_ranges(b.begin(), b.begin() + 4096, b.begin() + 8192);
  });
}

TEST_F(CorruptionTest, FindsBlocksExchangedBetweenTensors) {
  ExpectSeen(
      [](Model& m) { std::swap_ranges(m["a.weight"].begin(), m["a.weight"].begin() + 8192, m["b.weight"].begin()); });
  ExpectSeen([](Model& m) { std::swap(m["a.weight"], m["b.weight"]); });
}

TEST_F(CorruptionTest, FindsEntriesExchangedBetweenTensors) {
  // The file itself with two of its entries under each other's names.
  FileContents contents = ContentsOf(file_);
  auto& entries = contents.index.entries;
  ASSERT_EQ(entries[0].tensor, 0u);
  ASSERT_EQ(entries[1].tensor, 1u);
  const std::size_t first = entries[0].PayloadBytes();
  const std::size_t second = entries[1].PayloadBytes();
  std::rotate(contents.payload.begin(), contents.payload.begin() + static_cast<std::ptrdiff_t>(first),
              contents.payload.begin() + static_cast<std::ptrdiff_t>(first + second));
  std::swap(entries[0], entries[1]);
  std::swap(entries[0].tensor, entries[1].tensor);
  EXPECT_NE(Refused(FileOf(contents), before_), ErrorCode::kIo);
  // And with the digests left where they were: the base fits, the result does not.
  std::swap(entries[0].before, entries[1].before);
  std::swap(entries[0].after, entries[1].after);
  EXPECT_EQ(Refused(FileOf(contents), before_), ErrorCode::kCorrupt);
}

TEST_F(CorruptionTest, FindsZeroThatBecameMinusZero) {
  before_["a.weight"][2 * 50] = before_["a.weight"][2 * 50 + 1] = 0;
  after_["a.weight"][2 * 50] = 0;
  after_["a.weight"][2 * 50 + 1] = 0x80;
  EXPECT_EQ(MustApply(DeltaBetween(before_, after_), before_), after_);
  ExpectSeen([](Model& m) { m["a.weight"][2 * 50 + 1] = 0; });
}

TEST_F(CorruptionTest, FindsAWeightThatBecameNaN) {
  for (const std::uint16_t nan : {0x7fc0, 0x7f81, 0xffff, 0xffc0, 0x7fff}) {
    Model after = after_;
    StoreU16(&after["a.weight"][2 * 70], nan);
    EXPECT_EQ(MustApply(DeltaBetween(before_, after), before_), after);
    // And one NaN becomes another.
    Model later = after;
    StoreU16(&later["a.weight"][2 * 70], static_cast<std::uint16_t>(nan ^ 1));
    EXPECT_EQ(MustApply(DeltaBetween(after, later), after), later);
  }
}

TEST_F(CorruptionTest, FindsWrongCounts) {
  for (const std::int64_t off : {-1, 1, 100'000}) {
    FileContents contents = ContentsOf(file_);
    contents.index.entries[0].changed += static_cast<std::uint64_t>(off);
    EXPECT_EQ(Refused(FileOf(contents), before_), ErrorCode::kCorrupt) << off;
  }
}

TEST_F(CorruptionTest, FindsWrongDigestsInTheIndex) {
  for (std::size_t e = 0; e < ContentsOf(file_).index.entries.size(); ++e) {
    FileContents contents = ContentsOf(file_);
    contents.index.entries[e].after.sums[1] ^= 1;
    EXPECT_EQ(Refused(FileOf(contents), before_), ErrorCode::kCorrupt) << e;
    contents = ContentsOf(file_);
    contents.index.entries[e].before.sums[0] ^= 1;
    EXPECT_EQ(Refused(FileOf(contents), before_), ErrorCode::kMismatch) << e;
  }
  FileContents contents = ContentsOf(file_);
  contents.index.state->after[0] ^= 1;
  EXPECT_EQ(Refused(FileOf(contents), before_), ErrorCode::kCorrupt);
  contents = ContentsOf(file_);
  contents.index.state->before[31] ^= 1;
  EXPECT_EQ(Refused(FileOf(contents), before_), ErrorCode::kMismatch);
}

TEST_F(CorruptionTest, FindsAMissingEntry) {
  // The state digest after knows of it.
  FileContents contents = ContentsOf(file_);
  const std::size_t size = contents.index.entries.back().PayloadBytes();
  contents.index.entries.pop_back();
  contents.payload.resize(contents.payload.size() - size);
  EXPECT_EQ(Refused(FileOf(contents), before_), ErrorCode::kCorrupt);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(CorruptionBeyondFourGiB, ChangesNearTheEndArriveWhereTheyBelong) {
  static constexpr std::uint64_t kUnits = (std::uint64_t{1} << 32) + 12'345;
  const std::vector<std::uint64_t> offsets = {
      3, (std::uint64_t{1} << 31) + 1, (std::uint64_t{1} << 32) - 1, std::uint64_t{1} << 32, kUnits - 2, kUnits - 1};
  // Memory that nobody has written to costs nothing and reads as zeros.
  const auto make = [&](std::uint8_t value) {
    void* memory = ::mmap(nullptr, kUnits, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    ::madvise(memory, kUnits, MADV_HUGEPAGE);
    auto* bytes = static_cast<std::uint8_t*>(memory);
    for (const std::uint64_t offset : offsets) bytes[offset] = static_cast<std::uint8_t>(value + (offset & 3));
    return std::unique_ptr<std::uint8_t, void (*)(std::uint8_t*)>(bytes, [](std::uint8_t* p) { ::munmap(p, kUnits); });
  };
  const auto old_memory = make(1);
  const auto new_memory = make(9);
  const std::span<const std::uint8_t> old_bytes(old_memory.get(), kUnits);
  const std::span<const std::uint8_t> new_bytes(new_memory.get(), kUnits);

  const auto layout = std::make_shared<const Layout>(Layout::Make({{"big", DType::kU8, {kUnits}}}, {}).value());
  ThreadPool pool(2);
  const Digest before = DigestTensors(std::vector{old_bytes}, BestKernels(), pool)[0];
  EncodeRequest request;
  request.layout_before = request.layout_after = layout.get();
  request.entries.resize(1);
  request.entries[0].old_bytes = old_bytes;
  request.entries[0].new_bytes = new_bytes;
  request.entries[0].before = before;
  request.digests_before = {before};
  const EncodedDelta delta = MustEncode(request, BestKernels(), pool);
  EXPECT_EQ(delta.reports[0].changed, offsets.size());
  EXPECT_LT(delta.file.size(), 40'000u);

  const StateView base(layout, {old_bytes}, {before});
  const auto change = Stage(delta.file, base, BestKernels(), pool);
  ASSERT_TRUE(change.ok()) << change.error().message();
  std::vector<std::uint64_t> found;
  change.value()->tensors()[0].ForEachChanged(
      0, kUnits, [&](std::uint64_t unit, const std::uint8_t* new_unit, const std::uint8_t* old_unit) {
        found.push_back(unit);
        EXPECT_EQ(*new_unit, new_bytes[unit]);
        EXPECT_EQ(*old_unit, old_bytes[unit]);
      });
  EXPECT_EQ(found, offsets);
}
#endif

}  // namespace
}  // namespace weightwire
