#include "codec/digest/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "codec/models.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

// spec/FORMAT.md, "Digest", word for word and one word at a time.
Digest SlowDigest(Bytes bytes) {
  constexpr std::uint64_t kP = (std::uint64_t{1} << 61) - 1;
  const auto s = [](std::uint64_t seed, std::uint64_t n) {
    std::uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  };
  const std::uint64_t seeds[2] = {0x7765696768740000, 0x7769726500000000};
  bytes.resize((bytes.size() + 3) / 4 * 4);
  Digest digest;
  for (std::size_t l = 0; l < 2; ++l) {
    unsigned __int128 sum = 0;
    for (std::uint64_t i = 0; i < bytes.size() / 4; ++i) {
      const std::uint64_t a = std::max<std::uint64_t>(1, s(seeds[l], i % 1024) >> 35);
      std::uint64_t b = s(seeds[l] + (std::uint64_t{1} << 32), i / 1024) >> 3;
      if (b == 0 || b == kP) b = 1;
      const std::uint64_t x = LoadU32(bytes.data() + 4 * i);
      const std::uint64_t ax = static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * x % kP);
      sum = (sum + static_cast<unsigned __int128>(b) * ax) % kP;
    }
    digest.sums[l] = static_cast<std::uint64_t>(sum);
  }
  return digest;
}

Digest DigestOfBytes(const Bytes& bytes) { return DigestOfRange(bytes, 0, BestKernels()); }

TEST(Digest, IsTheSumOfTheSpecification) {
  Random random(1);
  for (const std::size_t size :
       {0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 255, 4095, 4096, 4097, 8191, 8192, 10'000, 70'001}) {
    const Bytes noise = RandomBytes(random, size);
    const Bytes ones(size, 0xff);
    for (const Kernels* kernels : AllKernels()) {
      EXPECT_EQ(DigestOfRange(noise, 0, *kernels), SlowDigest(noise)) << size << ' ' << kernels->name;
      EXPECT_EQ(DigestOfRange(ones, 0, *kernels), SlowDigest(ones)) << size << ' ' << kernels->name;
    }
  }
  EXPECT_EQ(DigestOfBytes({}), Digest{});
  EXPECT_EQ(DigestOfBytes(Bytes(5000, 0)), Digest{});
}

TEST(Digest, AddsUpOverAnyRanges) {
  Random random(2);
  const Bytes bytes = RandomBytes(random, 20'000);
  const Digest whole = DigestOfBytes(bytes);
  for (int i = 0; i < 200; ++i) {
    Digest sum;
    std::size_t at = 0;
    while (at < bytes.size()) {
      const std::size_t size = std::min<std::size_t>(bytes.size() - at, 1 + Below(random, 9000));
      sum += DigestOfRange(std::span(bytes).subspan(at, size), at, *AllKernels()[i % AllKernels().size()]);
      at += size;
    }
    ASSERT_EQ(sum, whole);
  }
}

TEST(Digest, SubtractionUndoesAddition) {
  Random random(3);
  for (int i = 0; i < 1000; ++i) {
    const Digest a{{random() % kDigestPrime, random() % kDigestPrime}};
    const Digest b{{random() % kDigestPrime, i % 2 == 0 ? 0 : kDigestPrime - 1}};
    ASSERT_EQ((a + b) - b, a);
    ASSERT_EQ((a - b) + b, a);
    ASSERT_EQ(a - a, Digest{});
    for (const std::uint64_t sum : (a + b).sums) ASSERT_LT(sum, kDigestPrime);
    for (const std::uint64_t sum : (a - b).sums) ASSERT_LT(sum, kDigestPrime);
    ASSERT_EQ(Digest::FromBytes(a.ToBytes()), a);
  }
}

template <typename Unit>
class DigestOfChangesTest : public ::testing::Test {};
using UnitTypes = ::testing::Types<std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t>;
TYPED_TEST_SUITE(DigestOfChangesTest, UnitTypes);

TYPED_TEST(DigestOfChangesTest, IsTheDifferenceOfTheFullDigests) {
  Random random(4);
  constexpr std::size_t kUnits = 300'000 / sizeof(TypeParam);  // more blocks than are reduced together, twice over
  for (int i = 0; i < 30; ++i) {
    const Bytes before = RandomBytes(random, kUnits * sizeof(TypeParam));
    Bytes after = before;
    const Kernels& kernels = *AllKernels()[static_cast<std::size_t>(i) % AllKernels().size()];
    DigestOfChanges changes(kernels);
    // The same as a list, whose positions begin somewhere before the first change.
    std::vector<std::uint32_t> positions;
    Bytes old_units;
    Bytes new_units;
    const std::size_t first = Below(random, kUnits);
    const std::uint64_t one_in = 1 + Below(random, 50);
    for (std::size_t u = first; u < kUnits; ++u) {
      if (Below(random, one_in) != 0) continue;
      TypeParam old_unit;
      std::memcpy(&old_unit, before.data() + u * sizeof(old_unit), sizeof(old_unit));
      const TypeParam extremes[] = {0, static_cast<TypeParam>(~TypeParam{0}), static_cast<TypeParam>(random())};
      const TypeParam new_unit = extremes[Below(random, 3)];
      std::memcpy(after.data() + u * sizeof(new_unit), &new_unit, sizeof(new_unit));
      changes.Change<TypeParam>(u, old_unit, new_unit);
      positions.push_back(static_cast<std::uint32_t>(u - first));
      old_units.insert(old_units.end(), sizeof(old_unit), 0);
      new_units.insert(new_units.end(), sizeof(new_unit), 0);
      std::memcpy(old_units.data() + old_units.size() - sizeof(old_unit), &old_unit, sizeof(old_unit));
      std::memcpy(new_units.data() + new_units.size() - sizeof(new_unit), &new_unit, sizeof(new_unit));
    }
    DigestOfChanges list(kernels);
    list.Changes<TypeParam>(first, positions, old_units.data(), new_units.data());
    const Digest change = changes.Finish();
    ASSERT_EQ(DigestOfBytes(before) + change, DigestOfBytes(after));
    ASSERT_EQ(list.Finish(), change);
  }
}

// Lists whose positions are as far apart as 32 bits allow.
TYPED_TEST(DigestOfChangesTest, TakesPositionsThatAreFarApart) {
  const std::vector<std::uint32_t> positions = {0, 1, 5000, 0x7fffffff, 0x80000000, 0xfffffff0, 0xffffffff};
  Random random(6);
  const Bytes old_units = RandomBytes(random, positions.size() * sizeof(TypeParam));
  const Bytes new_units = RandomBytes(random, positions.size() * sizeof(TypeParam));
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{2047}, std::uint64_t{1} << 40}) {
    for (const Kernels* kernels : AllKernels()) {
      DigestOfChanges list(*kernels);
      list.Changes<TypeParam>(first, positions, old_units.data(), new_units.data());
      DigestOfChanges changes(*kernels);
      for (std::size_t k = 0; k < positions.size(); ++k) {
        changes.Change<TypeParam>(first + positions[k], LoadUnit<TypeParam>(old_units.data(), k),
                                  LoadUnit<TypeParam>(new_units.data(), k));
      }
      ASSERT_EQ(list.Finish(), changes.Finish()) << kernels->name;
    }
  }
}

// Vectors take a block's changes several at a time, and look for its end several at a time.
TYPED_TEST(DigestOfChangesTest, TakesAnyNumberOfChangesInABlock) {
  constexpr std::uint32_t kMost = 600;
  Random random(7);
  const Bytes old_units = RandomBytes(random, kMost * sizeof(TypeParam));
  const Bytes new_units = RandomBytes(random, kMost * sizeof(TypeParam));
  std::vector<std::uint32_t> positions(kMost);
  std::iota(positions.begin(), positions.end(), 0);
  for (std::uint32_t count = 1; count <= kMost; ++count) {
    // Some of them in the next block, or none.
    const std::uint64_t first = kDigestBlockBytes / sizeof(TypeParam) * 3 - Below(random, count + 1);
    for (const Kernels* kernels : AllKernels()) {
      DigestOfChanges list(*kernels);
      list.Changes<TypeParam>(first, std::span(positions).first(count), old_units.data(), new_units.data());
      DigestOfChanges changes(*kernels);
      for (std::uint32_t k = 0; k < count; ++k) {
        changes.Change<TypeParam>(first + k, LoadUnit<TypeParam>(old_units.data(), k),
                                  LoadUnit<TypeParam>(new_units.data(), k));
      }
      ASSERT_EQ(list.Finish(), changes.Finish()) << kernels->name << ", " << count << " changes";
    }
  }
}

TYPED_TEST(DigestOfChangesTest, DoesNotDependOnTheOrder) {
  DigestOfChanges up(BestKernels());
  DigestOfChanges down(BestKernels());
  for (std::uint64_t i = 0; i < 40; ++i) up.Change<TypeParam>(i * 1000, TypeParam(1), TypeParam(i));
  for (std::uint64_t i = 40; i-- > 0;) down.Change<TypeParam>(i * 1000, TypeParam(1), TypeParam(i));
  EXPECT_EQ(up.Finish(), down.Finish());
}

// What happens to weights by accident. Both sums must show each, at any position.
TEST(Digest, ChangesWithEveryAccident) {
  using Accident = std::function<void(Bytes&, Random&)>;
  const auto swap_units = [](Bytes& b, std::size_t i, std::size_t j, std::size_t width) {
    std::swap_ranges(b.begin() + static_cast<std::ptrdiff_t>(i * width),
                     b.begin() + static_cast<std::ptrdiff_t>((i + 1) * width),
                     b.begin() + static_cast<std::ptrdiff_t>(j * width));
  };
  const std::vector<std::pair<const char*, Accident>> accidents = {
      {"two values swapped",
       [&](Bytes& b, Random& r) { swap_units(b, Below(r, b.size() / 4), b.size() / 4 + Below(r, b.size() / 4), 2); }},
      {"neighbours swapped",
       [&](Bytes& b, Random& r) {
         const std::size_t i = Below(r, b.size() / 2 - 1);
         swap_units(b, i, i + 1, 2);
       }},
      {"a thousand reversed",
       [](Bytes& b, Random& r) {
         const auto from = b.begin() + static_cast<std::ptrdiff_t>(Below(r, b.size() - 2000));
         std::reverse(from, from + 2000);
       }},
      {"two thousand shifted",
       [](Bytes& b, Random& r) {
         const auto from = b.begin() + static_cast<std::ptrdiff_t>(Below(r, b.size() - 4002));
         std::rotate(from, from + 2, from + 4000);
       }},
      {"two signs flipped",
       [](Bytes& b, Random& r) {
         const std::size_t i = Below(r, b.size() / 4);
         const std::size_t j = b.size() / 4 + Below(r, b.size() / 4);
         b[2 * i + 1] ^= 0x80;
         b[2 * j + 1] ^= 0x80;
       }},
      {"two signs of neighbours flipped",
       [](Bytes& b, Random& r) {
         const std::size_t i = Below(r, b.size() / 2 - 1);
         b[2 * i + 1] ^= 0x80;
         b[2 * i + 3] ^= 0x80;
       }},
      {"two blocks exchanged",
       [](Bytes& b, Random& r) {
         const std::size_t i = Below(r, 4);
         std::swap_ranges(b.begin() + static_cast<std::ptrdiff_t>(i * kDigestBlockBytes),
                          b.begin() + static_cast<std::ptrdiff_t>((i + 1) * kDigestBlockBytes),
                          b.begin() + static_cast<std::ptrdiff_t>((i + 4) * kDigestBlockBytes));
       }},
      {"+0 becomes -0",
       [](Bytes& b, Random& r) {
         const std::size_t i = Below(r, b.size() / 2);
         b[2 * i + 1] ^= 0x80;
       }},
      {"two words moved by opposite amounts",
       [](Bytes& b, Random& r) {
         const std::size_t i = Below(r, b.size() / 8) * 4;
         const std::size_t j = b.size() / 2 + Below(r, b.size() / 8) * 4;
         StoreU32(b.data() + i, LoadU32(b.data() + i) + 1);
         StoreU32(b.data() + j, LoadU32(b.data() + j) - 1);
       }},
  };
  Random random(5);
  const Bytes bytes = RandomBytes(random, 40'960);
  const Digest digest = DigestOfBytes(bytes);
  for (const auto& [name, accident] : accidents) {
    for (int i = 0; i < 200; ++i) {
      Bytes other = bytes;
      accident(other, random);
      if (other == bytes) continue;
      const Digest seen = DigestOfBytes(other);
      ASSERT_NE(seen.sums[0], digest.sums[0]) << name;
      ASSERT_NE(seen.sums[1], digest.sums[1]) << name;
    }
  }
}

TEST(StateDigest, ChangesWhenTensorsAreExchanged) {
  Random random(6);
  const Bytes a = RandomBytes(random, 5000);
  const Bytes b = RandomBytes(random, 5000);
  const auto model = [](Bytes x, Bytes y) {
    return ModelOf({{{"x", DType::kU8, {5000}}, std::move(x)}, {{"y", DType::kU8, {5000}}, std::move(y)}});
  };
  const auto digest = [](const Model& m) { return StateDigest(*m.layout, DigestsOf(m)); };
  const Sha256Digest truth = digest(model(a, b));
  EXPECT_NE(digest(model(b, a)), truth);
  Bytes c = a;
  Bytes d = b;
  std::swap_ranges(c.begin(), c.begin() + 4096, d.begin());
  EXPECT_NE(digest(model(c, d)), truth) << "a block moved to the same position of another tensor";
  EXPECT_EQ(digest(model(a, b)), truth);
}

TEST(StateDigest, DependsOnTheLayoutWithoutAliases) {
  const Bytes bytes(8, 7);
  const auto digest = [](const Model& m) { return StateDigest(*m.layout, DigestsOf(m)); };
  const Model plain = ModelOf({{{"x", DType::kU8, {8}}, bytes}});
  EXPECT_EQ(digest(ModelOf({{{"x", DType::kU8, {8}}, bytes}}, {{"y", "x"}})), digest(plain));
  EXPECT_NE(digest(ModelOf({{{"y", DType::kU8, {8}}, bytes}})), digest(plain));
  EXPECT_NE(digest(ModelOf({{{"x", DType::kU8, {2, 4}}, bytes}})), digest(plain));
  EXPECT_NE(digest(ModelOf({{{"x", DType::kI8, {8}}, bytes}})), digest(plain));
}

TEST(DigestTensors, DoesNotDependOnThreads) {
  Random random(7);
  const Bytes large = RandomBytes(random, (9 << 20) + 3);
  const Bytes small = RandomBytes(random, 5);
  const std::vector<std::span<const std::uint8_t>> tensors = {large, {}, small};
  const auto one = DigestTensors(tensors, BestKernels(), OneThread());
  EXPECT_EQ(one[0], DigestOfBytes(large));
  EXPECT_EQ(one[1], Digest{});
  EXPECT_EQ(one[2], SlowDigest(small));
  ThreadPool pool(3);
  EXPECT_EQ(DigestTensors(tensors, BestKernels(), pool), one);
}

}  // namespace
}  // namespace weightwire
