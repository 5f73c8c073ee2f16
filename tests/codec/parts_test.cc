// A delta in parts, as ranks write it: each brings its own boxes, and only together they make the change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "codec/decode/decoder.h"
#include "codec/digest/state.h"
#include "codec/models.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;
using ::testing::HasSubstr;

// Rows [first, first + count) of the only tensor of two models, as one rank would encode them.
Bytes PartOfRows(const Model& before, const Model& after, std::size_t first, std::size_t count) {
  const TensorSpec& spec = before.layout->tensors()[0];
  const std::size_t row_bytes = before.tensors[0].size() / spec.shape[0];
  EncodeRequest request;
  request.layout_before = before.layout.get();
  request.layout_after = after.layout.get();
  EncodeEntry entry;
  entry.box = Box{{first, 0}, {count, spec.shape[1]}};
  entry.old_bytes = std::span(before.tensors[0]).subspan(first * row_bytes, count * row_bytes);
  entry.new_bytes = std::span(after.tensors[0]).subspan(first * row_bytes, count * row_bytes);
  entry.before = DigestOfRange(entry.old_bytes, first * row_bytes, BestKernels());
  request.entries = {entry};
  auto delta = EncodeDelta(request, BestKernels(), OneThread());
  WW_CHECK(delta.ok());
  return std::move(delta).value().file;
}

Result<std::shared_ptr<const StagedChange>> StageAll(const std::vector<Bytes>& files, const Model& base,
                                                     const std::optional<StateDigests>& promised = std::nullopt) {
  std::vector<DeltaFile> parts;
  for (const Bytes& file : files) {
    auto part = DeltaFile::Parse(file);
    WW_CHECK(part.ok());
    parts.push_back(std::move(part).value());
  }
  return StageParts(parts, promised, ViewOf(base), BestKernels(), OneThread());
}

struct Rows {
  Model before;
  Model after;
};

Rows ChangedRows() {
  Random random(11);
  Rows rows{ModelOf({{{"w", DType::kBF16, {8, 4096}}, WeightLikeBf16(random, 8 * 4096)}}), {}};
  rows.after = rows.before;
  for (std::size_t unit = 0; unit < std::size_t{8} * 4096; unit += 1 + Below(random, 90)) {
    rows.after.tensors[0][2 * unit] ^= 1;
  }
  return rows;
}

TEST(StageParts, PartsOfRanksMakeTheWholeChange) {
  const Rows rows = ChangedRows();
  const StateDigests promised{StateDigest(*rows.before.layout, DigestsOf(rows.before)),
                              StateDigest(*rows.after.layout, DigestsOf(rows.after))};
  // In any order, and of uneven size.
  const auto change = StageAll({PartOfRows(rows.before, rows.after, 3, 5), PartOfRows(rows.before, rows.after, 0, 3)},
                               rows.before, promised);
  ASSERT_TRUE(change.ok()) << change.error().message();
  Bytes written = rows.before.tensors[0];
  change.value()->Find(0)->Write(written);
  EXPECT_EQ(written, rows.after.tensors[0]);
  EXPECT_EQ(change.value()->state_after(), promised.after);
}

TEST(StageParts, RefusesADeltaWithAMissingPart) {
  const Rows rows = ChangedRows();
  const StateDigests promised{StateDigest(*rows.before.layout, DigestsOf(rows.before)),
                              StateDigest(*rows.after.layout, DigestsOf(rows.after))};
  const auto change = StageAll({PartOfRows(rows.before, rows.after, 0, 3)}, rows.before, promised);
  ASSERT_FALSE(change.ok());
  EXPECT_EQ(change.error().code(), ErrorCode::kCorrupt);
}

TEST(StageParts, RefusesOverlappingParts) {
  const Rows rows = ChangedRows();
  const auto change =
      StageAll({PartOfRows(rows.before, rows.after, 0, 5), PartOfRows(rows.before, rows.after, 4, 4)}, rows.before);
  ASSERT_FALSE(change.ok());
  EXPECT_EQ(change.error().code(), ErrorCode::kCorrupt);
}

TEST(StageParts, RefusesAWholeDeltaAmongParts) {
  const Rows rows = ChangedRows();
  const auto change =
      StageAll({PartOfRows(rows.before, rows.after, 0, 3), DeltaBetween(rows.before, rows.after)}, rows.before);
  ASSERT_FALSE(change.ok());
  EXPECT_EQ(change.error().code(), ErrorCode::kCorrupt);
}

// Two new tensors, each in a part of its own: either part alone promises what it does not bring.
TEST(StageParts, NewTensorsMayComeInDifferentParts) {
  const Model before = ModelOf({{{"kept", DType::kU8, {4}}, {1, 2, 3, 4}}});
  const Model after = ModelOf(
      {{{"a", DType::kU8, {2}}, {5, 6}}, {{"b", DType::kU8, {2}}, {7, 8}}, {{"kept", DType::kU8, {4}}, {1, 2, 3, 4}}});
  const auto part_with = [&](std::size_t tensor) {
    EncodeRequest request;
    request.layout_before = before.layout.get();
    request.layout_after = after.layout.get();
    EncodeEntry entry;
    entry.tensor = tensor;
    entry.has_old = false;
    entry.new_bytes = after.tensors[tensor];
    request.entries = {entry};
    auto delta = EncodeDelta(request, BestKernels(), OneThread());
    WW_CHECK(delta.ok());
    return std::move(delta).value().file;
  };
  const auto alone = StageAll({part_with(0)}, before);
  ASSERT_FALSE(alone.ok());
  EXPECT_EQ(alone.error().code(), ErrorCode::kUnsupported) << "there is nothing wrong with it";
  EXPECT_THAT(alone.error().message(), HasSubstr("cannot be applied alone"));
  const auto missing = StageAll({part_with(0), part_with(0)}, before);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::kCorrupt);
  const auto together = StageAll({part_with(0), part_with(1)}, before);
  ASSERT_TRUE(together.ok()) << together.error().message();
  EXPECT_EQ(together.value()->digests_after(), DigestsOf(after));
}

// A tensor of single-byte rows, and a part with a box for each of [first, first + count), all of them changed.
struct ManyRows {
  explicit ManyRows(std::uint64_t count)
      : before(ModelOf({{{"w", DType::kU8, {count, 1}}, Bytes(count, 1)}})), after(before) {
    after.tensors[0].assign(count, 2);
  }

  [[nodiscard]] Result<EncodedDelta> Part(std::size_t first, std::size_t count) const {
    EncodeRequest request;
    request.layout_before = before.layout.get();
    request.layout_after = after.layout.get();
    request.coding = CodingRequest::kWhole;
    for (std::size_t row = first; row < first + count; ++row) {
      EncodeEntry entry;
      entry.box = Box{{row, 0}, {1, 1}};
      entry.old_bytes = std::span(before.tensors[0]).subspan(row, 1);
      entry.new_bytes = std::span(after.tensors[0]).subspan(row, 1);
      entry.before = DigestOfRange(entry.old_bytes, row, BestKernels());
      request.entries.push_back(std::move(entry));
    }
    return EncodeDelta(request, BestKernels(), OneThread());
  }

  Model before;
  Model after;
};

TEST(StageParts, ATensorMayHaveAsManyBoxesAsADeltaHasParts) {
  const ManyRows rows(kMaxBoxesPerTensor + 1);
  const auto part = rows.Part(0, kMaxBoxesPerTensor);
  ASSERT_TRUE(part.ok()) << part.error().message();
  const auto change = StageAll({part.value().file}, rows.before);
  ASSERT_TRUE(change.ok()) << change.error().message();
  EXPECT_EQ(change.value()->Find(0)->changed(), kMaxBoxesPerTensor);

  const auto one_more = rows.Part(kMaxBoxesPerTensor, 1);
  ASSERT_TRUE(one_more.ok());
  const auto above = StageAll({part.value().file, one_more.value().file}, rows.before);
  ASSERT_FALSE(above.ok());
  EXPECT_EQ(above.error().code(), ErrorCode::kLimit);
  EXPECT_THAT(above.error().message(), HasSubstr("16385 boxes of \"w\", above the limit of 16384"));
  const auto in_one = rows.Part(0, kMaxBoxesPerTensor + 1);
  ASSERT_FALSE(in_one.ok());
  EXPECT_EQ(in_one.error().code(), ErrorCode::kLimit);
}

}  // namespace
}  // namespace weightwire
