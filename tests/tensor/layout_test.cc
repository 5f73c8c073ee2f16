#include "tensor/layout.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "base/limits.h"
#include "support/random_tensors.h"

namespace weightwire {
namespace {

std::string MakeError(std::vector<TensorSpec> tensors, Aliases aliases = {}) {
  const auto layout = Layout::Make(std::move(tensors), std::move(aliases));
  return layout.ok() ? "accepted" : layout.error().message();
}

TEST(Layout, CanonicalTextAndHashArePinned) {
  const auto layout = Layout::Make(
      {{"w\n\"é", DType::kBF16, {2, 3}}, {"b", DType::kF32, {}}, {"B", DType::kF4, {0, 7}}}, {{"tied", "b"}});
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout.value().CanonicalJson(),
            R"({"aliases":{"tied":"b"},"tensors":[["B","F4",[0,7]],["b","F32",[]],["w\u000a\"é","BF16",[2,3]]]})");
  EXPECT_EQ(ToHex(layout.value().hash()), "2c943023d444132e0056771ccfcfd08fe28709e66259a957af65e8786c284e79");
  EXPECT_EQ(Layout().CanonicalJson(), R"({"aliases":{},"tensors":[]})");
  EXPECT_EQ(Layout(), Layout::Make({}, {}).value());
}

TEST(Layout, SortsNamesByBytes) {
  // Signed comparison would put é (0xC3…) before a.
  const auto layout = Layout::Make({{"é", DType::kU8, {}}, {"a", DType::kU8, {}}, {"Z", DType::kU8, {}}}, {}).value();
  EXPECT_EQ(layout.tensors()[0].name, "Z");
  EXPECT_EQ(layout.tensors()[1].name, "a");
  EXPECT_EQ(layout.tensors()[2].name, "é");
}

TEST(Layout, FindsNamesAndCounts) {
  const auto layout =
      Layout::Make({{"f4", DType::kF4, {4, 2}}, {"c", DType::kC64, {3}}, {"empty", DType::kF32, {0}}}, {{"d", "f4"}})
          .value();
  EXPECT_EQ(layout.Find("f4"), 2U);
  EXPECT_EQ(layout.Find("d"), std::nullopt);
  EXPECT_EQ(layout.Resolve("d"), 2U);
  EXPECT_EQ(layout.Resolve("c"), 0U);
  EXPECT_EQ(layout.Resolve("nothing"), std::nullopt);
  EXPECT_EQ(layout.element_count(2), 8U);
  EXPECT_EQ(layout.byte_size(2), 4U);
  EXPECT_EQ(layout.unit_count(2), 4U);
  EXPECT_EQ(layout.unit_count(0), 3U);
  EXPECT_EQ(layout.element_count(1), 0U);
  EXPECT_EQ(layout.total_bytes(), 28U);
}

TEST(Layout, RefusesWhatBreaksItsRules) {
  EXPECT_EQ(MakeError({{"a", DType::kU8, {}}, {"a", DType::kU8, {}}}), "the model has tensor \"a\" twice");
  EXPECT_EQ(MakeError({{"a", DType::kU8, {}}}, {{"a", "a"}}), "\"a\" is both a tensor and an alias");
  EXPECT_EQ(MakeError({{"a", DType::kU8, {}}}, {{"b", "c"}}),
            "the alias \"b\" stands for \"c\", which is not a tensor");
  EXPECT_EQ(MakeError({{"a", DType::kU8, {}}}, {{"b", "c"}, {"c", "a"}}),
            "the alias \"b\" stands for \"c\", which is not a tensor");
  EXPECT_EQ(MakeError({{"\xFF", DType::kU8, {}}}), "a tensor name is not valid UTF-8");
  EXPECT_EQ(MakeError({{"__metadata__", DType::kU8, {}}}),
            "a tensor cannot be named \"__metadata__\": the format reserves it");
  EXPECT_EQ(MakeError({{"a", DType::kU8, std::vector<std::uint64_t>(33, 1)}}),
            "tensor \"a\" has 33 dimensions; the limit is 32");
  EXPECT_EQ(MakeError({{"a", DType::kF4, {1}}}), "tensor \"a\": 1 elements of F4 do not fill a whole number of bytes");
  EXPECT_NE(MakeError({{std::string(kMaxNameBytes + 1, 'x'), DType::kU8, {}}}).find("the limit is 4096"),
            std::string::npos);
}

TEST(Layout, AnyDifferenceMakesADifferentLayout) {
  const auto base = Layout::Make({{"a", DType::kU8, {2, 3}}, {"b", DType::kU8, {}}}, {}).value();
  EXPECT_EQ(base, Layout::Make({{"b", DType::kU8, {}}, {"a", DType::kU8, {2, 3}}}, {}).value());
  EXPECT_NE(base, Layout::Make({{"a", DType::kU8, {3, 2}}, {"b", DType::kU8, {}}}, {}).value());
  EXPECT_NE(base, Layout::Make({{"a", DType::kI8, {2, 3}}, {"b", DType::kU8, {}}}, {}).value());
  EXPECT_NE(base, Layout::Make({{"a", DType::kU8, {2, 3}}, {"c", DType::kU8, {}}}, {}).value());
  EXPECT_NE(base, Layout::Make({{"a", DType::kU8, {2, 3}}, {"b", DType::kU8, {}}}, {{"c", "a"}}).value());
}

RC_GTEST_PROP(LayoutProperty, ParsesWhatItWrites, ()) {
  const auto specs = *testing::RandomSpecs();
  Aliases aliases;
  if (!specs.empty()) aliases.emplace("an alias no tensor has as its name", specs.front().name);
  const auto layout = Layout::Make(specs, aliases);
  RC_ASSERT(layout.ok());
  const auto parsed = Layout::Parse(layout.value().CanonicalJson());
  RC_ASSERT(parsed.ok());
  RC_ASSERT(parsed.value() == layout.value());
  RC_ASSERT(parsed.value().tensors() == layout.value().tensors());
  RC_ASSERT(parsed.value().aliases() == aliases);
}

struct BadText {
  const char* defect;
  const char* json;
};

class BadLayoutTest : public ::testing::TestWithParam<BadText> {};
INSTANTIATE_TEST_SUITE_P(
    Defects, BadLayoutTest,
    ::testing::Values(BadText{"Empty", ""}, BadText{"NotAnObject", "[]"}, BadText{"Number", "1"},
                      BadText{"NoAliases", R"({"tensors":[]})"}, BadText{"NoTensors", R"({"aliases":{}})"},
                      BadText{"WhiteSpace", R"({"aliases":{}, "tensors":[]})"},
                      BadText{"TrailingNewline", "{\"aliases\":{},\"tensors\":[]}\n"},
                      BadText{"KeysSwapped", R"({"tensors":[],"aliases":{}})"},
                      BadText{"UnknownKey", R"({"aliases":{},"more":[],"tensors":[]})"},
                      BadText{"TensorsNotSorted", R"({"aliases":{},"tensors":[["b","U8",[]],["a","U8",[]]]})"},
                      BadText{"TensorTwice", R"({"aliases":{},"tensors":[["a","U8",[]],["a","U8",[]]]})"},
                      BadText{"AliasTwice", R"({"aliases":{"b":"a","b":"a"},"tensors":[["a","U8",[]]]})"},
                      BadText{"AliasToNothing", R"({"aliases":{"b":"c"},"tensors":[["a","U8",[]]]})"},
                      BadText{"AliasIsAList", R"({"aliases":{"b":["a"]},"tensors":[["a","U8",[]]]})"},
                      BadText{"AliasesAreAList", R"({"aliases":[["a","U8",[]]],"tensors":[]})"},
                      BadText{"EscapeNotCanonical", R"({"aliases":{},"tensors":[["a\n","U8",[]]]})"},
                      BadText{"UnknownDType", R"({"aliases":{},"tensors":[["a","U9",[]]]})"},
                      BadText{"NoShape", R"({"aliases":{},"tensors":[["a","U8"]]})"},
                      BadText{"TwoShapes", R"({"aliases":{},"tensors":[["a","U8",[],[]]]})"},
                      BadText{"ShapeNested", R"({"aliases":{},"tensors":[["a","U8",[[1]]]]})"},
                      BadText{"ShapeNegative", R"({"aliases":{},"tensors":[["a","U8",[-1]]]})"},
                      BadText{"ShapeIsAString", R"({"aliases":{},"tensors":[["a","U8","1"]]})"},
                      BadText{"ShapeHasLeadingZero", R"({"aliases":{},"tensors":[["a","U8",[01]]]})"},
                      BadText{"TensorsAreAnObject", R"({"aliases":{},"tensors":{"a":[]}})"}),
    [](const auto& info) { return info.param.defect; });

TEST_P(BadLayoutTest, IsRefused) {
  const auto layout = Layout::Parse(GetParam().json);
  ASSERT_FALSE(layout.ok());
  EXPECT_TRUE(layout.error().message().starts_with("the layout is damaged: ")) << layout.error().message();
}

}  // namespace
}  // namespace weightwire
