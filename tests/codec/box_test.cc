#include "codec/format/box.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <random>

namespace weightwire {
namespace {

struct Case {
  TensorSpec spec;
  Box box;
};

// A tensor of a few dimensions and a box in it. Of packed types the last dimension is in whole bytes.
rc::Gen<Case> RandomCase() {
  return rc::gen::exec([] {
    Case c;
    c.spec.name = "t";
    c.spec.dtype = *rc::gen::element(DType::kU8, DType::kBF16, DType::kF32, DType::kI64, DType::kF4, DType::kF6E2M3);
    const int rank = *rc::gen::inRange(IsPacked(c.spec.dtype) ? 1 : 0, 5);
    const std::uint64_t grain = c.spec.dtype == DType::kF4 ? 2 : c.spec.dtype == DType::kF6E2M3 ? 4 : 1;
    for (int d = 0; d < rank; ++d) {
      const std::uint64_t scale = d + 1 == rank ? grain : 1;
      const auto extent = *rc::gen::inRange<std::uint64_t>(1, 6);
      const auto start = *rc::gen::inRange<std::uint64_t>(0, 4);
      const auto after = *rc::gen::inRange<std::uint64_t>(0, 4);
      c.box.start.push_back(start * scale);
      c.box.extent.push_back(extent * scale);
      c.spec.shape.push_back((start + extent + after) * scale);
    }
    return c;
  });
}

// The tensor's units of a box, by counting through all its elements.
std::vector<std::uint64_t> UnitsByBruteForce(const TensorSpec& spec, const Box& box) {
  std::vector<std::uint64_t> units;
  const std::uint64_t elements = ElementCount(spec.shape).value();
  const auto bits = static_cast<std::uint64_t>(BitsPer(spec.dtype));
  for (std::uint64_t e = 0; e < elements; ++e) {
    std::uint64_t rest = e;
    bool inside = true;
    for (std::size_t d = spec.shape.size(); d-- > 0; rest /= spec.shape[d]) {
      const std::uint64_t at = rest % spec.shape[d];
      inside = inside && at >= box.start[d] && at - box.start[d] < box.extent[d];
    }
    if (!inside) continue;
    const std::uint64_t unit = e * bits / 8 / static_cast<std::uint64_t>(UnitBytes(spec.dtype));
    const std::uint64_t last = ((e + 1) * bits - 1) / 8 / static_cast<std::uint64_t>(UnitBytes(spec.dtype));
    for (std::uint64_t u = unit; u <= last; ++u) {
      if (units.empty() || units.back() != u) units.push_back(u);
    }
  }
  return units;
}

RC_GTEST_PROP(BoxMap, GoesThroughTheUnitsOfTheBoxInOrder, ()) {
  const Case c = *RandomCase();
  const auto map = BoxMap::Of(c.spec, c.box);
  RC_ASSERT(map.ok());
  const std::vector<std::uint64_t> truth = UnitsByBruteForce(c.spec, c.box);
  RC_ASSERT(map.value().unit_count() == truth.size());
  RC_ASSERT(map.value().unit_bytes() == UnitBytes(c.spec.dtype));
  RC_ASSERT(map.value().is_whole_tensor() == (c.box.extent == c.spec.shape));
  const auto begin = *rc::gen::inRange<std::uint64_t>(0, truth.size() + 1);
  const auto count = *rc::gen::inRange<std::uint64_t>(0, truth.size() - begin + 1);
  std::uint64_t next = begin;
  std::uint64_t stretches = 0;
  map.value().ForEachStretch(begin, count, [&](std::uint64_t at, std::uint64_t unit, std::uint64_t size) {
    RC_ASSERT(at == next);
    RC_ASSERT(size > 0u);
    for (std::uint64_t k = 0; k < size; ++k) RC_ASSERT(truth[at + k] == unit + k);
    next += size;
    ++stretches;
  });
  RC_ASSERT(next == begin + count);
  if (map.value().is_contiguous()) RC_ASSERT(stretches <= 1u);
}

RC_GTEST_PROP(Overlap, IsACommonElement, ()) {
  const Case a = *RandomCase();
  Box b = a.box;
  for (std::size_t d = 0; d < b.start.size(); ++d) {
    b.start[d] = *rc::gen::inRange<std::uint64_t>(0, a.spec.shape[d]);
    b.extent[d] = *rc::gen::inRange<std::uint64_t>(1, a.spec.shape[d] - b.start[d] + 1);
  }
  bool common = true;
  for (std::size_t d = 0; d < b.start.size(); ++d) {
    bool here = false;
    for (std::uint64_t i = 0; i < a.spec.shape[d]; ++i) {
      here = here || (i >= a.box.start[d] && i < a.box.start[d] + a.box.extent[d] && i >= b.start[d] &&
                      i < b.start[d] + b.extent[d]);
    }
    common = common && here;
  }
  RC_ASSERT(Overlap(a.box, b) == common);
  RC_ASSERT(Overlap(b, a.box) == common);
}

bool Fits(const TensorSpec& spec, Box box) { return BoxMap::Of(spec, box).ok(); }

TEST(BoxMap, RefusesBoxesThatDoNotFit) {
  const TensorSpec spec{"t", DType::kBF16, {4, 6}};
  EXPECT_TRUE(Fits(spec, {{0, 0}, {4, 6}}));
  EXPECT_TRUE(Fits(spec, {{3, 5}, {1, 1}}));
  EXPECT_FALSE(Fits(spec, {{0}, {4}})) << "too few dimensions";
  EXPECT_FALSE(Fits(spec, {{0, 0, 0}, {4, 6, 1}})) << "too many";
  EXPECT_FALSE(Fits(spec, {{0, 0}, {4}}));
  EXPECT_FALSE(Fits(spec, {{0, 0}, {0, 6}})) << "empty";
  EXPECT_FALSE(Fits(spec, {{0, 0}, {5, 6}})) << "outside";
  EXPECT_FALSE(Fits(spec, {{1, 0}, {4, 6}}));
  EXPECT_FALSE(Fits(spec, {{4, 0}, {1, 1}}));
  EXPECT_FALSE(Fits(spec, {{~std::uint64_t{0}, 0}, {1, 1}}));
  EXPECT_FALSE(Fits(spec, {{~std::uint64_t{0}, 0}, {2, 1}})) << "the sum overflows";
  EXPECT_FALSE(Fits(spec, {{1, 0}, {~std::uint64_t{0}, 1}}));
  EXPECT_FALSE(Fits({"e", DType::kF32, {0, 3}}, {{0, 0}, {0, 3}})) << "an empty tensor has no boxes";
  EXPECT_TRUE(Fits({"s", DType::kF32, {}}, {{}, {}})) << "the box of a scalar is the scalar";
}

TEST(BoxMap, RefusesBoxesThatSplitBytesOfPackedTypes) {
  const TensorSpec four{"t", DType::kF4, {2, 8}};
  EXPECT_TRUE(Fits(four, {{0, 2}, {2, 4}}));
  EXPECT_FALSE(Fits(four, {{0, 1}, {2, 4}}));
  EXPECT_FALSE(Fits(four, {{0, 2}, {2, 3}}));
  const TensorSpec six{"t", DType::kF6E3M2, {3, 8}};
  EXPECT_TRUE(Fits(six, {{1, 4}, {1, 4}}));
  EXPECT_FALSE(Fits(six, {{1, 2}, {1, 4}}));
  // Whole bytes as a whole, but not in each row.
  const TensorSpec ragged{"t", DType::kF4, {2, 3}};
  EXPECT_TRUE(Fits(ragged, {{0, 0}, {2, 3}}));
  EXPECT_FALSE(Fits(ragged, {{0, 0}, {1, 2}}));
}

TEST(BoxMap, TheWholeTensorIsOneStretch) {
  const BoxMap map(TensorSpec{"t", DType::kF32, {3, 4, 5}});
  EXPECT_TRUE(map.is_whole_tensor());
  EXPECT_TRUE(map.is_contiguous());
  EXPECT_EQ(map.unit_count(), 60u);
  EXPECT_EQ(map.StretchStart(0), 0u);
  EXPECT_EQ(BoxMap(TensorSpec{"e", DType::kF32, {3, 0}}).unit_count(), 0u);
  EXPECT_EQ(BoxMap(TensorSpec{"s", DType::kF32, {}}).unit_count(), 1u);
  EXPECT_EQ(BoxMap(TensorSpec{"p", DType::kF6E2M3, {2, 4}}).unit_count(), 6u);
}

TEST(BoxMap, RowsAreContiguousAndColumnsAreNot) {
  const TensorSpec spec{"t", DType::kBF16, {100, 64}};
  const auto rows = BoxMap::Of(spec, {{10, 0}, {20, 64}}).value();
  EXPECT_TRUE(rows.is_contiguous());
  EXPECT_EQ(rows.StretchStart(0), 640u);
  const auto columns = BoxMap::Of(spec, {{0, 32}, {100, 32}}).value();
  EXPECT_FALSE(columns.is_contiguous());
  EXPECT_EQ(columns.stretch_count(), 100u);
  EXPECT_EQ(columns.StretchStart(99), 99u * 64 + 32);
}

TEST(BoxMap, CountsBeyondFourGiga) {
  const TensorSpec spec{"t", DType::kU8, {1u << 20, 1u << 14}};
  const auto map = BoxMap::Of(spec, {{1, 1}, {(1u << 20) - 1, (1u << 14) - 1}}).value();
  EXPECT_EQ(map.unit_count(), std::uint64_t{(1u << 20) - 1} * ((1u << 14) - 1));
  EXPECT_EQ(map.StretchStart((1u << 20) - 2), std::uint64_t{(1u << 20) - 1} * (1u << 14) + 1);
}

bool Meet(const std::vector<Box>& boxes) {
  std::vector<const Box*> all;
  for (const Box& box : boxes) all.push_back(&box);
  return AnyOverlap(all);
}

TEST(AnyOverlap, AgreesWithEveryPair) {
  std::mt19937_64 random(4);
  int met = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::size_t rank = 1 + random() % 4;
    std::vector<Box> boxes(random() % 8);
    for (Box& box : boxes) {
      for (std::size_t d = 0; d < rank; ++d) {
        box.start.push_back(random() % 8);
        box.extent.push_back(1 + random() % 3);
      }
    }
    bool any = false;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) any = any || Overlap(boxes[i], boxes[j]);
    }
    ASSERT_EQ(Meet(boxes), any) << round;
    met += any ? 1 : 0;
  }
  EXPECT_GT(met, 100);
  EXPECT_LT(met, 1900);
}

TEST(AnyOverlap, TwoBoxesOfAScalarOverlap) {
  EXPECT_FALSE(Meet({}));
  EXPECT_FALSE(Meet({{{}, {}}}));
  EXPECT_TRUE(Meet({{{}, {}}, {{}, {}}}));
}

TEST(AnyOverlap, IsFoundAmongTheMaximumNumberOfBoxes) {
  std::vector<Box> grid;
  for (std::uint64_t row = 0; row < 128; ++row) {
    for (std::uint64_t column = 0; column < 128; ++column) grid.push_back({{10 * row, 0, 7 * column}, {10, 5, 7}});
  }
  EXPECT_FALSE(Meet(grid));
  grid[77 * 128 + 3].extent[2] = 8;
  EXPECT_TRUE(Meet(grid));
}

}  // namespace
}  // namespace weightwire
