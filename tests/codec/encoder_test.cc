#include "codec/encode/encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codec/models.h"
#include "codec/open_file.h"
#include "support/owned_tensor.h"
#include "support/safetensors_file.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;
using ::testing::HasSubstr;

OwnedTensor Bf16(const std::string& name, Random& random, std::uint64_t units) {
  return {{name, DType::kBF16, {units}}, WeightLikeBf16(random, units)};
}

TEST(EncodeDelta, OfEqualStatesIsTiny) {
  Random random(1);
  const Model model = ModelOf({Bf16("a", random, 100'000), Bf16("b", random, 50), {{"s", DType::kF32, {}}, Bytes(4)}});
  const EncodedDelta delta = MustEncode(WholeRequest(model, model));
  EXPECT_LE(delta.file.size(), 400u);
  EXPECT_EQ(MustApply(delta.file, model), model);
  const auto change = Stage(delta.file, ViewOf(model));
  EXPECT_TRUE(change.value()->tensors().empty());
  EXPECT_EQ(change.value()->state_before(), change.value()->state_after());
}

TEST(EncodeDelta, OfNoTensorsIsAValidFile) {
  const Model nothing = ModelOf({});
  EXPECT_EQ(MustApply(DeltaBetween(nothing, nothing), nothing), nothing);
  const Model something = ModelOf({{{"a", DType::kU8, {3}}, {1, 2, 3}}});
  EXPECT_EQ(MustApply(DeltaBetween(nothing, something), nothing), something);
  EXPECT_EQ(MustApply(DeltaBetween(something, nothing), something), nothing);
}

TEST(EncodeDelta, ThreeTensorsOfThreeHundredCostLittleMoreThanTheThree) {
  Random random(2);
  std::vector<OwnedTensor> all;
  for (int i = 0; i < 300; ++i) all.push_back(Bf16("layer." + std::to_string(1000 + i), random, 20'000));
  const Model before = ModelOf(all);
  Model after = before;
  const std::size_t touched[] = {7, 100, 290};
  for (const std::size_t i : touched) StepBf16(random, after.tensors[i], 500);
  std::vector<OwnedTensor> three_before;
  std::vector<OwnedTensor> three_after;
  for (const std::size_t i : touched) {
    three_before.push_back({before.layout->tensors()[i], before.tensors[i]});
    three_after.push_back({before.layout->tensors()[i], after.tensors[i]});
  }
  const EncodedDelta all_delta = MustEncode(WholeRequest(before, after));
  const std::size_t of_three = DeltaBetween(ModelOf(three_before), ModelOf(three_after)).size();
  EXPECT_LE(all_delta.file.size(), of_three + 64);
  std::uint64_t changed = 0;
  for (const EntryReport& report : all_delta.reports) changed += report.changed;
  EXPECT_LE(all_delta.file.size(), 700 + 2 * changed) << changed << " units changed";
  EXPECT_EQ(MustApply(all_delta.file, before), after);
}

TEST(EncodeDelta, UsesTheRequestedMode) {
  Random random(3);
  const Model before = ModelOf({Bf16("a", random, 30'000)});
  Model after = before;
  StepBf16(random, after.tensors[0], 50);
  const auto mode = [&](CodingRequest coding) {
    return std::string(MustEncode(WholeRequest(before, after, coding)).reports[0].mode);
  };
  EXPECT_EQ(mode(CodingRequest::kConditioned), "conditioned");
  EXPECT_EQ(mode(CodingRequest::kUniform), "uniform");
  EXPECT_EQ(mode(CodingRequest::kGaps), "gaps");
  EXPECT_EQ(mode(CodingRequest::kDense), "dense");
  EXPECT_EQ(mode(CodingRequest::kWhole), "whole");
}

TEST(EncodeDelta, ChoosesTheSmallestModeByDefault) {
  Random random(4);
  const auto smallest = [&](const Model& before, const Model& after) {
    const std::size_t best = DeltaBetween(before, after).size();
    for (const CodingRequest coding : {CodingRequest::kConditioned, CodingRequest::kUniform, CodingRequest::kGaps,
                                       CodingRequest::kDense, CodingRequest::kWhole}) {
      EXPECT_LE(best, DeltaBetween(before, after, coding).size() * 101 / 100 + 16);
    }
    return std::string(MustEncode(WholeRequest(before, after)).reports[0].mode);
  };
  // Small numbers change more often than large ones.
  const Model weights = ModelOf({Bf16("a", random, 300'000)});
  Model stepped = weights;
  for (std::size_t i = 0; i < 300'000; ++i) {
    const std::uint16_t bits = LoadU16(stepped.tensors[0].data() + 2 * i);
    const std::uint64_t one_in = std::uint64_t{2} << (((bits >> 7) & 255) - 110);
    if (Below(random, one_in) == 0) StoreU16(stepped.tensors[0].data() + 2 * i, bits ^ 1);
  }
  EXPECT_EQ(smallest(weights, stepped), "conditioned");
  // Everything changes a little.
  const Model scales = ModelOf({{{"s", DType::kF32, {5000}}, Bytes(20'000, 0x3f)}});
  Model moved = scales;
  for (std::size_t i = 0; i < 5000; ++i) {
    StoreU32(moved.tensors[0].data() + 4 * i, 0x3f3f3f3f + static_cast<std::uint32_t>(Below(random, 7)) - 3);
  }
  EXPECT_EQ(smallest(scales, moved), "dense");
  // Noise over noise.
  const Model noise = ModelOf({{{"n", DType::kU8, {40'000}}, RandomBytes(random, 40'000)}});
  const Model other = ModelOf({{{"n", DType::kU8, {40'000}}, RandomBytes(random, 40'000)}});
  EXPECT_EQ(smallest(noise, other), "whole");
}

TEST(EncodeDelta, ZeroBecomesMinusZero) {
  const Model before = ModelOf({{{"z", DType::kF32, {1000}}, Bytes(4000, 0)}});
  Model after = before;
  after.tensors[0][4 * 500 + 3] = 0x80;
  for (const CodingRequest coding : {CodingRequest::kSmallest, CodingRequest::kGaps, CodingRequest::kDense}) {
    const EncodedDelta delta = MustEncode(WholeRequest(before, after, coding));
    EXPECT_EQ(delta.reports[0].changed, 1u);
    EXPECT_EQ(delta.reports[0].single_steps, 1u);
    EXPECT_EQ(MustApply(delta.file, before), after);
  }
}

TEST(EncodeDelta, EncodesTensorsOfDifferentUnitWidths) {
  // One thread codes tensors of all widths in turn, with the same scratch memory: narrow ones first, then wide ones.
  Random random(9);
  std::vector<OwnedTensor> tensors;
  const DType dtypes[] = {DType::kU8, DType::kI64, DType::kBF16, DType::kF32, DType::kF4, DType::kF64};
  for (std::size_t t = 0; t < 6; ++t) {
    TensorSpec spec{std::string(1, static_cast<char>('a' + t)), dtypes[t], {4000}};
    tensors.push_back({spec, RandomBytes(random, CheckedByteSize(spec).value())});
  }
  const Model before = ModelOf(tensors);
  Model after = before;
  for (Bytes& tensor : after.tensors) {
    for (std::uint8_t& byte : tensor) byte ^= static_cast<std::uint8_t>(random() & 1);
  }
  for (const CodingRequest coding : {CodingRequest::kSmallest, CodingRequest::kConditioned, CodingRequest::kUniform,
                                     CodingRequest::kGaps, CodingRequest::kDense, CodingRequest::kWhole}) {
    EXPECT_EQ(MustApply(DeltaBetween(before, after, coding), before), after);
  }
}

TEST(EncodeDelta, RecordsTheAliasesOfTheBase) {
  Random random(5);
  const OwnedTensor tensor = Bf16("embed", random, 100);
  const Model before = ModelOf({tensor}, {{"lm_head", "embed"}});
  Model after = before;
  StepBf16(random, after.tensors[0], 5);
  const Bytes file = DeltaBetween(before, after);
  EXPECT_EQ(MustApply(file, before), after);
  // A checkpoint that knows nothing of the tie, and one that holds both names.
  const auto delta = DeltaFile::Parse(file);
  ASSERT_TRUE(delta.ok());
  const Layout plain = Layout::Make({tensor.spec}, {}).value();
  EXPECT_EQ(LayoutForDelta(delta.value(), plain).value(), *before.layout);
  const Layout both = Layout::Make({tensor.spec, {"lm_head", DType::kBF16, {100}}}, {}).value();
  EXPECT_EQ(LayoutForDelta(delta.value(), both).value(), *before.layout);
  const Layout other = Layout::Make({{"embed", DType::kBF16, {101}}}, {}).value();
  EXPECT_EQ(LayoutForDelta(delta.value(), other).error().code(), ErrorCode::kMismatch);
}

TEST(LayoutForDelta, TheDeltaDecidesWhichNameOfATieIsKept) {
  Random random(5);
  const OwnedTensor tensor = Bf16("embed", random, 100);
  const auto named = [&](const char* name) { return TensorSpec{name, tensor.spec.dtype, tensor.spec.shape}; };
  const auto layout_of = [](std::vector<TensorSpec> tensors, Aliases aliases = {}) {
    return Layout::Make(std::move(tensors), std::move(aliases)).value();
  };
  const auto seen = [&](const Model& model, const Layout& checkpoint) {
    const Bytes file = DeltaBetween(model, model);
    const auto delta = DeltaFile::Parse(file);
    WW_CHECK(delta.ok());
    return LayoutForDelta(delta.value(), checkpoint);
  };
  const Model tied = ModelOf({tensor}, {{"head", "embed"}, {"tail", "embed"}});
  const Layout other = layout_of({named("head")}, {{"embed", "head"}});
  EXPECT_EQ(seen(tied, other).value(), *tied.layout);
  const Layout third = layout_of({named("tail")}, {{"embed", "tail"}, {"head", "tail"}, {"more", "tail"}});
  EXPECT_EQ(seen(tied, third).value(), *tied.layout) << "and one more name that it does not know";
  EXPECT_FALSE(seen(tied, layout_of({named("head")})).ok()) << "nobody says that this is embed";
  // A delta that knows of no tie, and one for which both names are tensors of their own.
  const Layout recorded = layout_of({named("embed")}, {{"head", "embed"}});
  const Model plain = ModelOf({tensor});
  EXPECT_EQ(seen(plain, recorded).value(), *plain.layout);
  const Model apart = ModelOf({tensor, {named("head"), tensor.bytes}});
  EXPECT_EQ(seen(apart, recorded).value(), *apart.layout);
}

TEST(EncodeDelta, RefusesRequestsThatContradictThemselves) {
  Random random(6);
  const Model model = ModelOf({Bf16("a", random, 100), Bf16("b", random, 100)});
  const auto error = [&](const EncodeRequest& request) {
    const auto delta = EncodeDelta(request, BestKernels(), OneThread());
    if (delta.ok()) return std::string("accepted");
    EXPECT_EQ(delta.error().code(), ErrorCode::kInvalidArgument) << delta.error().message();
    return delta.error().message();
  };
  const EncodeRequest good = WholeRequest(model, model);
  EXPECT_EQ(error(good), "accepted");
  EncodeRequest bad = good;
  bad.entries[1].tensor = 2;
  EXPECT_THAT(error(bad), HasSubstr("names no tensor"));
  bad = good;
  std::swap(bad.entries[0], bad.entries[1]);
  EXPECT_THAT(error(bad), HasSubstr("order"));
  bad = good;
  bad.entries[0].new_bytes = bad.entries[0].new_bytes.first(198);
  EXPECT_THAT(error(bad), HasSubstr("size"));
  bad = good;
  bad.entries[0].old_bytes = bad.entries[0].old_bytes.first(198);
  EXPECT_THAT(error(bad), HasSubstr("size"));
  bad = good;
  bad.entries[0].box = Box{{1}, {100}};
  EXPECT_THAT(error(bad), HasSubstr("outside"));
  bad = good;
  bad.digests_before->pop_back();
  EXPECT_THAT(error(bad), HasSubstr("digest"));
}

TEST(EncodeDelta, ARefusedRequestLeavesTheBaseCopyAlone) {
  Random random(7);
  const Model before = ModelOf({Bf16("a", random, 100), Bf16("b", random, 100)});
  Model after = before;
  StepBf16(random, after.tensors[0], 3);
  Model copy = before;
  EncodeRequest request = WholeRequest(copy, after);
  for (std::size_t i = 0; i < 2; ++i) request.entries[i].update = copy.tensors[i].data();
  request.digests_before->pop_back();
  EXPECT_FALSE(EncodeDelta(request, BestKernels(), OneThread()).ok());
  EXPECT_EQ(copy, before);
}

TEST(DeltaFile, IsASafetensorsFileOfThreeByteStrings) {
  Random random(8);
  const Model before = ModelOf({Bf16("a", random, 5000)});
  Model after = before;
  StepBf16(random, after.tensors[0], 50);
  const Bytes file = DeltaBetween(before, after);
  const auto view = SafetensorsView::Parse(file);
  ASSERT_TRUE(view.ok());
  ASSERT_EQ(view.value().tensors().size(), 3u);
  EXPECT_EQ(view.value().metadata(), (Metadata{{"format", "weightwire-delta"}, {"version", "1"}}));
  EXPECT_EQ(Seal(Open(file)), file) << "taken apart and put together it is the same";
  EXPECT_EQ(FileOf(ContentsOf(file)), file);
}

TEST(DeltaFile, OtherFilesAreNotDeltas) {
  const auto code = [](const Bytes& file) { return DeltaFile::Parse(file).error().code(); };
  EXPECT_EQ(code({}), ErrorCode::kCorrupt);
  EXPECT_EQ(code(Bytes(100, 'x')), ErrorCode::kCorrupt);
  const Bytes byte = {1};
  const auto checkpoint =
      testing::WriteSafetensors(std::vector<TensorView>{{{"a", DType::kU8, {1}}, byte}}, {{"format", "pt"}});
  EXPECT_EQ(code(checkpoint.value()), ErrorCode::kUnsupported);
  OpenFile newer = Open(DeltaBetween(ModelOf({}), ModelOf({})));
  EXPECT_TRUE(DeltaFile::Parse(Seal(newer)).ok());
  newer.metadata["version"] = "2";
  EXPECT_EQ(code(Seal(newer)), ErrorCode::kUnsupported);
  newer.metadata = {{"format", kDeltaFormatName}, {"version", "1"}, {"note", "x"}};
  EXPECT_EQ(code(Seal(newer)), ErrorCode::kCorrupt) << "nothing else has a place there";
}

}  // namespace
}  // namespace weightwire
