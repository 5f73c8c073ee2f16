// Many versions over each other: decoded without writing any of them, and folded into one change.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "codec/decode/staged_change.h"
#include "codec/decode/state_view.h"
#include "codec/decode/write_change.h"
#include "codec/digest/state.h"
#include "codec/format/units.h"
#include "codec/models.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

using Changes = std::vector<std::shared_ptr<const StagedChange>>;

// Long enough for several windows of a lane, several blocks of a fold, and an end within all of them.
constexpr std::size_t kUnits = 41'003;
constexpr std::size_t kVersions = 12;

template <typename Unit>
void StepUnits(Random& random, Bytes& bytes, std::uint64_t one_in) {
  for (std::size_t i = 0; i < bytes.size() / sizeof(Unit); ++i) {
    if (Below(random, one_in) != 0) continue;
    const auto unit = LoadUnit<Unit>(bytes.data(), i);
    StoreUnit<Unit>(bytes.data(), i, static_cast<Unit>((random() & 8) != 0 ? unit + 1 : unit - 1));
  }
}

void StepTensor(Random& random, int width, Bytes& bytes, std::uint64_t one_in) {
  WithUnit(width, [&]<typename Unit>() { StepUnits<Unit>(random, bytes, one_in); });
}

const std::vector<DType>& TypesOfAllWidths() {
  static const std::vector<DType> kTypes = {DType::kF8E4M3, DType::kBF16, DType::kF32, DType::kI64};
  return kTypes;
}

// One tensor of each width. Some units change in every version, some go there and back, and some versions change one
// tensor only.
std::vector<Model> StatesOf(Random& random, std::size_t versions, std::uint64_t one_in) {
  std::vector<OwnedTensor> tensors;
  for (const DType dtype : TypesOfAllWidths()) {
    const auto width = static_cast<std::size_t>(UnitBytes(dtype));
    Bytes bytes = width == 2 ? WeightLikeBf16(random, kUnits) : RandomBytes(random, kUnits * width);
    tensors.push_back({{"t" + std::to_string(width), dtype, {kUnits}}, std::move(bytes)});
  }
  std::vector<Model> states = {ModelOf(tensors)};
  for (std::size_t version = 1; version <= versions; ++version) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (version % 5 == 4 && i != version % tensors.size()) continue;
      const int width = UnitBytes(tensors[i].spec.dtype);
      StepTensor(random, width, tensors[i].bytes, one_in);
      // There in odd versions, back in even ones.
      for (std::size_t unit = 7; unit < kUnits; unit += 97)
        tensors[i].bytes[unit * static_cast<std::size_t>(width)] ^= 1;
    }
    states.push_back(ModelOf(tensors));
  }
  return states;
}

// Decodes all versions over each other. `fold_every` of them are folded at a time, unless it is 0.
Changes StageAll(const std::vector<Model>& states, CodingRequest coding, const Kernels& kernels,
                 std::size_t fold_every) {
  Changes changes;
  StateView view = ViewOf(states[0]);
  for (std::size_t version = 1; version < states.size(); ++version) {
    const Bytes delta = DeltaBetween(states[version - 1], states[version], coding);
    auto change = Stage(delta, view, kernels);
    EXPECT_TRUE(change.ok()) << change.error().message();
    changes.push_back(std::move(change).value());
    if (fold_every != 0 && version % fold_every == 0) {
      Changes last(changes.end() - static_cast<std::ptrdiff_t>(fold_every), changes.end());
      changes.resize(changes.size() - fold_every);
      changes.push_back(StagedChange::Fold(last, OneThread()));
    }
    view = ViewOf(states[0]);
    for (const auto& staged : changes) view = std::move(view).After(staged);
    EXPECT_EQ(view.digests(), DigestsOf(states[version]));
  }
  return changes;
}

// It holds the units that differ, with their old and new bits, and no others.
void ExpectLeadsFrom(const Model& before, const Model& after, const StagedChange& change) {
  for (std::size_t i = 0; i < after.tensors.size(); ++i) {
    const auto width = static_cast<std::size_t>(UnitBytes(after.layout->tensors()[i].dtype));
    std::uint64_t differ = 0;
    for (std::size_t at = 0; at < after.tensors[i].size(); at += width) {
      differ += std::memcmp(&before.tensors[i][at], &after.tensors[i][at], width) != 0 ? 1 : 0;
    }
    const StagedTensor* staged = change.Find(i);
    ASSERT_EQ(staged == nullptr ? 0 : staged->changed(), differ);
    if (staged == nullptr) continue;
    Bytes bytes = before.tensors[i];
    staged->Write(bytes);
    EXPECT_EQ(bytes, after.tensors[i]);
    staged->Undo(bytes);
    EXPECT_EQ(bytes, before.tensors[i]);
  }
  EXPECT_EQ(change.state_before(), StateDigest(*before.layout, DigestsOf(before)));
  EXPECT_EQ(change.state_after(), StateDigest(*after.layout, DigestsOf(after)));
}

TEST(StackedVersions, DecodeAlikeInEveryModeWithEveryKernel) {
  Random random(1);
  const std::vector<Model> states = StatesOf(random, 5, 40);
  for (const Kernels* kernels : AllKernels()) {
    for (const CodingRequest coding : {CodingRequest::kSmallest, CodingRequest::kConditioned, CodingRequest::kUniform,
                                       CodingRequest::kGaps, CodingRequest::kDense, CodingRequest::kWhole}) {
      SCOPED_TRACE(std::string(kernels->name) + ", coding " + std::to_string(static_cast<int>(coding)));
      const Changes changes = StageAll(states, coding, *kernels, 0);
      ExpectLeadsFrom(states.front(), states.back(), *StagedChange::Fold(changes, OneThread()));
    }
  }
}

TEST(StackedVersions, DecodeOverFoldedOnes) {
  Random random(2);
  for (const std::uint64_t one_in : {2, 70, 5000}) {
    SCOPED_TRACE(one_in);
    const std::vector<Model> states = StatesOf(random, kVersions, one_in);
    for (const std::size_t fold_every : {2, 5}) {
      const Changes changes = StageAll(states, CodingRequest::kSmallest, BestKernels(), fold_every);
      ExpectLeadsFrom(states.front(), states.back(), *StagedChange::Fold(changes, OneThread()));
    }
  }
}

TEST(StackedVersions, AreRefusedWhenATileIsDamaged) {
  Random random(3);
  const std::vector<Model> states = StatesOf(random, 2, 40);
  const Bytes first = DeltaBetween(states[0], states[1]);
  Bytes second = DeltaBetween(states[1], states[2]);
  const StateView view = ViewOf(states[0]).After(Stage(first, ViewOf(states[0])).value());
  for (int i = 0; i < 50; ++i) {
    Bytes damaged = second;
    damaged[damaged.size() / 4 + Below(random, damaged.size() * 3 / 4)] ^=
        static_cast<std::uint8_t>(1 + random() % 255);
    for (const Kernels* kernels : AllKernels()) {
      const auto change = Stage(damaged, view, *kernels);
      if (change.ok()) {
        EXPECT_EQ(change.value()->digests_after(), DigestsOf(states[2]));
      }
    }
  }
}

TEST(Fold, GivesTheSameByManyThreadsInManyStretches) {
  // More changes than a job takes.
  constexpr std::size_t kMany = 700'000;
  Random random(4);
  Model state = ModelOf({{{"t", DType::kBF16, {kMany}}, WeightLikeBf16(random, kMany)}});
  std::vector<Model> states = {state};
  Changes changes;
  for (int version = 0; version < 4; ++version) {
    // The last version changes one end only, so that stretches differ in how many versions they have.
    const std::size_t from = version == 3 ? 2 * (kMany - 1000) : 0;
    Bytes part(state.tensors[0].begin() + static_cast<std::ptrdiff_t>(from), state.tensors[0].end());
    StepTensor(random, 2, part, 4);
    std::copy(part.begin(), part.end(), state.tensors[0].begin() + static_cast<std::ptrdiff_t>(from));
    const Bytes delta = DeltaBetween(states.back(), state);
    changes.push_back(Stage(delta, ViewOf(states.back())).value());
    states.push_back(state);
  }
  ThreadPool pool(3);
  const auto by_many = StagedChange::Fold(changes, pool);
  ExpectLeadsFrom(states.front(), states.back(), *by_many);
  ExpectLeadsFrom(states.front(), states.back(), *StagedChange::Fold(changes, OneThread()));
  // The order of folding makes no difference.
  const auto first = StagedChange::Fold(std::span(changes).first(2), pool);
  const auto last = StagedChange::Fold(std::span(changes).last(2), pool);
  ExpectLeadsFrom(states.front(), states.back(), *StagedChange::Fold(Changes{first, last}, pool));
}

TEST(Fold, LeavesNothingOfChangesThatAreTakenBack) {
  Random random(5);
  const std::vector<Model> states = StatesOf(random, 1, 10);
  const auto there = Stage(DeltaBetween(states[0], states[1]), ViewOf(states[0])).value();
  const auto back = Stage(DeltaBetween(states[1], states[0]), ViewOf(states[1])).value();
  const auto folded = StagedChange::Fold(Changes{there, back}, OneThread());
  EXPECT_TRUE(folded->tensors().empty());
  EXPECT_EQ(folded->state_before(), folded->state_after());
}

TEST(WriteChange, WritesAndTakesBackInAllPlaces) {
  Random random(6);
  const std::vector<Model> states = StatesOf(random, 3, 3);
  const auto change = StagedChange::Fold(StageAll(states, CodingRequest::kSmallest, BestKernels(), 0), OneThread());
  std::vector<Bytes> one = states.front().tensors;
  std::vector<Bytes> two = states.front().tensors;
  TensorPlaces places;
  for (std::size_t i = 0; i < one.size(); ++i) places.push_back({one[i], two[i]});
  ThreadPool pool(3);
  EXPECT_FALSE(FindOtherBits(*change, places, pool).has_value());
  WriteChange(*change, places, pool);
  EXPECT_EQ(one, states.back().tensors);
  EXPECT_EQ(two, states.back().tensors);
  EXPECT_FALSE(FindOtherBits(*change, places, pool, /*taken_back=*/true).has_value());
  EXPECT_TRUE(FindOtherBits(*change, places, pool).has_value());
  TakeBackChange(*change, places, pool);
  EXPECT_EQ(one, states.front().tensors);
  EXPECT_EQ(two, states.front().tensors);
}

TEST(FindOtherBits, FindsAnyChangedUnitThatIsAltered) {
  Random random(7);
  const std::vector<Model> states = StatesOf(random, 1, 20);
  const auto change = Stage(DeltaBetween(states[0], states[1]), ViewOf(states[0])).value();
  std::vector<Bytes> bytes = states[0].tensors;
  TensorPlaces places;
  for (Bytes& tensor : bytes) places.push_back({tensor});
  for (const StagedTensor& tensor : change->tensors()) {
    const auto width = static_cast<std::size_t>(tensor.unit_bytes());
    std::size_t seen = 0;
    tensor.ForEachChanged(0, kUnits, [&](std::uint64_t unit, const std::uint8_t*, const std::uint8_t*) {
      if (seen++ % 101 != 0) return;
      std::uint8_t& byte = bytes[tensor.tensor()][unit * width + Below(random, width)];
      byte ^= 0x10;
      EXPECT_EQ(FindOtherBits(*change, places, OneThread()), tensor.tensor());
      byte ^= 0x10;
    });
  }
  EXPECT_FALSE(FindOtherBits(*change, places, OneThread()).has_value());
}

}  // namespace
}  // namespace weightwire
