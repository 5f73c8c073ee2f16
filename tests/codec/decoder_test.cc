#include "codec/decode/decoder.h"

#include <gtest/gtest.h>

#include "codec/models.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

TEST(StageDelta, ChangesInClustersOverflowNoTile) {
  // A few whole rows of an embedding change: tiles have room for four times the average, and these have more.
  Random random(1);
  constexpr std::size_t kRow = 1024;
  constexpr std::size_t kRows = 2600;  // more than one group of such tiles
  const Model before = ModelOf({{{"embed", DType::kBF16, {kRows, kRow}}, WeightLikeBf16(random, kRows * kRow)}});
  Model after = before;
  for (std::size_t row = 0; row < kRows; ++row) {
    if (Below(random, 150) != 0) continue;
    for (std::size_t unit = row * kRow; unit < (row + 3) * kRow && unit < kRows * kRow; ++unit) {
      after.tensors[0][2 * unit] ^= 1;
    }
  }
  for (const CodingRequest coding : {CodingRequest::kConditioned, CodingRequest::kUniform, CodingRequest::kGaps}) {
    const Bytes file = DeltaBetween(before, after, coding);
    for (const Kernels* kernels : {&BestKernels(), ScalarKernels()}) {
      EXPECT_EQ(MustApply(file, before, *kernels), after);
    }
  }
}

TEST(StageDelta, EverythingChangesInAllButAFewTiles) {
  Random random(2);
  const Model before = ModelOf({{{"t", DType::kBF16, {3'000'000}}, WeightLikeBf16(random, 3'000'000)}});
  Model after = before;
  for (std::size_t unit = 1'000'000; unit < 2'600'000; ++unit) after.tensors[0][2 * unit] ^= 1;
  for (const CodingRequest coding : {CodingRequest::kConditioned, CodingRequest::kUniform, CodingRequest::kGaps}) {
    EXPECT_EQ(MustApply(DeltaBetween(before, after, coding), before), after);
  }
}

TEST(StageDelta, StagesChangesInOneBlockOfMemory) {
  Random random(4);
  constexpr std::size_t kUnits = 4'500'000;  // several jobs
  const Model before = ModelOf({{{"a", DType::kBF16, {kUnits}}, WeightLikeBf16(random, kUnits)},
                                {{"b", DType::kU8, {1000}}, RandomBytes(random, 1000)}});
  Model after = before;
  for (std::size_t unit = 0; unit < kUnits; unit += 1 + Below(random, 20)) after.tensors[0][2 * unit] ^= 1;
  after.tensors[1][500] ^= 1;
  for (const CodingRequest coding : {CodingRequest::kConditioned, CodingRequest::kUniform, CodingRequest::kGaps}) {
    const auto change = Stage(DeltaBetween(before, after, coding), ViewOf(before));
    ASSERT_TRUE(change.ok());
    const auto pool = change.value()->tensors()[0].chunks()[0].offsets.get_allocator().pool();
    ASSERT_NE(pool, nullptr);
    for (const StagedTensor& tensor : change.value()->tensors()) {
      for (const StagedChunk& chunk : tensor.chunks()) {
        EXPECT_TRUE(pool->Holds(chunk.offsets.data()));
        EXPECT_TRUE(pool->Holds(chunk.old_units.data()));
        EXPECT_TRUE(pool->Holds(chunk.new_units.data()));
      }
    }
    EXPECT_EQ(Written(before, *change.value()), after);
  }
}

TEST(StageDelta, ABoxSeenThroughStagedChangesIsDigestedInRanges) {
  // A box of more than a million units over a tensor that an earlier change touches.
  Random random(3);
  const Model first = ModelOf({{{"t", DType::kU8, {3, 1'500'000}}, RandomBytes(random, 4'500'000)}});
  Model second = first;
  for (std::size_t at = 0; at < second.tensors[0].size(); at += 1000) second.tensors[0][at] ^= 1;
  Model third = second;
  for (std::size_t at = 0; at < 3'000'000; at += 777) third.tensors[0][at] ^= 2;
  const StateView view = ViewOf(first);
  const auto change = Stage(DeltaBetween(first, second), view);
  ASSERT_TRUE(change.ok());
  const StateView later = view.After(change.value());

  EncodeRequest request;
  request.layout_before = request.layout_after = first.layout.get();
  EncodeEntry entry;
  entry.box = Box{{0, 0}, {2, 1'500'000}};
  entry.old_bytes = std::span(second.tensors[0]).first(3'000'000);
  entry.new_bytes = std::span(third.tensors[0]).first(3'000'000);
  entry.before = DigestOfRange(entry.old_bytes, 0, BestKernels());
  request.entries = {entry};
  const auto part = Stage(MustEncode(request).file, later);
  ASSERT_TRUE(part.ok()) << part.error().message();
  EXPECT_EQ(part.value()->digests_after(), DigestsOf(third));
  EXPECT_EQ(Written(second, *part.value()), third);
}

}  // namespace
}  // namespace weightwire
