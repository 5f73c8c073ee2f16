#include "codec/encode/mode_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "codec/encode/class_rules.h"
#include "codec/format/delta_file.h"
#include "codec/models.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;
using ::testing::HasSubstr;

constexpr std::size_t kUnits = 4096;

// Entries of bf16 of which half the units change, each by a magnitude that its neighbours do not have: tables of its
// own pay for every one of them.
std::vector<SampledEntry> EntriesThatWantTheirOwn(std::size_t count) {
  std::mt19937_64 random(1);
  const ClassRule rule = CandidateClassRules(DType::kBF16)[0];
  std::vector<SampledEntry> entries;
  for (std::size_t i = 0; i < count; ++i) {
    Bytes old_units;
    Bytes new_units;
    ByteWriter old_writer(old_units);
    ByteWriter new_writer(new_units);
    for (std::size_t unit = 0; unit < kUnits; ++unit) {
      const auto old_unit = static_cast<std::uint16_t>(0x3c80 + random() % 128);
      const auto step = static_cast<std::uint16_t>(random() % 2 << i % 12);
      for (const auto& [writer, bits] : {std::pair(&old_writer, old_unit), {&new_writer, old_unit + step}}) {
        writer->U8(static_cast<std::uint8_t>(bits));
        writer->U8(static_cast<std::uint8_t>(bits >> 8));
      }
    }
    entries.push_back(
        {rule, TakeSample(old_units.data(), {new_units.data(), false}, kUnits, 2, rule, 1, BestKernels())});
  }
  return entries;
}

struct Chosen {
  std::vector<Coding> codings;
  std::vector<TableSet> sets;

  [[nodiscard]] std::size_t Count(EntryMode mode) const {
    return static_cast<std::size_t>(
        std::count_if(codings.begin(), codings.end(), [&](const Coding& coding) { return coding.mode == mode; }));
  }
  // Each coding's set is there and is of its mode.
  void ExpectSound() const {
    for (const Coding& coding : codings) {
      if (!HasTables(coding.mode)) continue;
      ASSERT_LT(coding.table_set, sets.size());
      EXPECT_EQ(sets[coding.table_set].dense, coding.mode == EntryMode::kDense);
    }
  }
};

Chosen Choose(const std::vector<SampledEntry>& entries, CodingRequest request, std::size_t max_sets) {
  Chosen chosen;
  ThreadPool pool(2);
  chosen.codings = ChooseCodings(entries, request, max_sets, chosen.sets, pool);
  chosen.ExpectSound();
  return chosen;
}

TEST(ChooseCodings, GivesEntriesTheirOwnSetsUpToTheLimit) {
  const auto entries = EntriesThatWantTheirOwn(40);
  const Chosen freely = Choose(entries, CodingRequest::kSmallest, 1000);
  ASSERT_GE(freely.sets.size(), 40u);
  for (std::size_t max_sets = 0; max_sets <= 50; ++max_sets) {
    const Chosen chosen = Choose(entries, CodingRequest::kSmallest, max_sets);
    EXPECT_LE(chosen.sets.size(), max_sets);
    EXPECT_EQ(chosen.codings.size(), entries.size());
    if (max_sets >= 4) {
      EXPECT_EQ(chosen.Count(EntryMode::kGaps) + chosen.Count(EntryMode::kWhole), 0u) << "there is a set to share";
      std::set<std::size_t> used;
      for (const Coding& coding : chosen.codings) used.insert(coding.table_set);
      EXPECT_GE(used.size(), std::min<std::size_t>(40, max_sets - 3)) << "of " << max_sets;
    }
  }
  const Chosen none = Choose(entries, CodingRequest::kSmallest, 0);
  EXPECT_EQ(none.Count(EntryMode::kGaps) + none.Count(EntryMode::kWhole), entries.size());
}

TEST(ChooseCodings, KeepsToTheLimitOfSetsInEveryMode) {
  const auto entries = EntriesThatWantTheirOwn(20);
  for (const CodingRequest request : {CodingRequest::kConditioned, CodingRequest::kUniform, CodingRequest::kDense,
                                      CodingRequest::kWhole, CodingRequest::kSmallest}) {
    for (const std::size_t max_sets : {0, 1, 2, 5}) {
      EXPECT_LE(Choose(entries, request, max_sets).sets.size(), max_sets);
    }
  }
}

TEST(AssembleDeltaFile, RefusesWhatReadersWouldRefuse) {
  DeltaFileContents contents;
  contents.sets.resize(kMaxTableSets);
  EXPECT_TRUE(AssembleDeltaFile(contents).ok());
  contents.sets.emplace_back();
  const auto sets = AssembleDeltaFile(contents);
  ASSERT_FALSE(sets.ok());
  EXPECT_EQ(sets.error().code(), ErrorCode::kLimit);
  EXPECT_THAT(sets.error().message(), HasSubstr("more than 65536 table sets"));

  contents.sets.clear();
  contents.index.entries.resize(kMaxBoxesPerTensor);
  contents.index.entries.emplace_back().tensor = 1;
  EXPECT_TRUE(AssembleDeltaFile(contents).ok());
  contents.index.entries.back().tensor = 0;
  const auto boxes = AssembleDeltaFile(contents);
  ASSERT_FALSE(boxes.ok());
  EXPECT_EQ(boxes.error().code(), ErrorCode::kLimit);
  EXPECT_THAT(boxes.error().message(), HasSubstr("boxes of one tensor"));
}

}  // namespace
}  // namespace weightwire
