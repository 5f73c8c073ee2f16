#include "tensor/shard_index.h"

#include <gtest/gtest.h>

namespace weightwire {
namespace {

TEST(ShardIndex, IgnoresEverythingButTheWeightMap) {
  const auto map = ParseShardIndex(
      R"({"metadata":{"total_size":9.5e3,"nested":[[{"weight_map":{"x":1}}]]},"weight_map":{"a":"1.safetensors"},"z":null})");
  ASSERT_TRUE(map.ok()) << map.error().message();
  EXPECT_EQ(map.value(), (WeightMap{{"a", "1.safetensors"}}));
}

TEST(ShardIndex, WritesAsTransformersDoes) {
  const WeightMap map = {{"b", "2.safetensors"}, {"a", "1.safetensors"}};
  const std::string text = ShardIndexText(map, 12);
  EXPECT_EQ(text,
            "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n"
            "  \"weight_map\": {\n    \"a\": \"1.safetensors\",\n    \"b\": \"2.safetensors\"\n  }\n}\n");
  EXPECT_EQ(ParseShardIndex(text).value(), map);
}

struct BadIndex {
  const char* defect;
  const char* json;
  const char* message;
};

class BadIndexTest : public ::testing::TestWithParam<BadIndex> {};
INSTANTIATE_TEST_SUITE_P(
    Defects, BadIndexTest,
    ::testing::Values(BadIndex{"Empty", "", "not valid JSON at byte 1"},
                      BadIndex{"IsAList", "[]", "it is not an object"},
                      BadIndex{"NoWeightMap", R"({"metadata":{}})", "it has no \"weight_map\""},
                      BadIndex{"WeightMapIsAList", R"({"weight_map":[]})", "its \"weight_map\" is not an object"},
                      BadIndex{"WeightMapTwice", R"({"weight_map":{},"weight_map":{}})", "it has \"weight_map\" twice"},
                      BadIndex{"TensorTwice", R"({"weight_map":{"a":"x","a":"x"}})", "it has tensor \"a\" twice"},
                      BadIndex{"FileIsANumber", R"({"weight_map":{"a":1}})", "the file of \"a\" is not a string"},
                      BadIndex{"FileIsAnObject", R"({"weight_map":{"a":{}}})", "the file of \"a\" is not a string"},
                      BadIndex{"ParentDirectory", R"({"weight_map":{"a":".."}})",
                               "the file of \"a\" is \"..\", which is not a plain file name"},
                      BadIndex{"LeavesTheDirectory", R"({"weight_map":{"a":"../x.safetensors"}})",
                               "the file of \"a\" is \"../x.safetensors\", which is not a plain file name"},
                      BadIndex{"AbsolutePath", R"({"weight_map":{"a":"/x"}})",
                               "the file of \"a\" is \"/x\", which is not a plain file name"},
                      BadIndex{"NulInTheName", R"({"weight_map":{"a":"x\u0000"}})",
                               "the file of \"a\" is \"x\\u0000\", which is not a plain file name"},
                      BadIndex{"EmptyFileName", R"({"weight_map":{"a":""}})",
                               "the file of \"a\" is \"\", which is not a plain file name"}),
    [](const auto& info) { return info.param.defect; });

TEST_P(BadIndexTest, IsRefused) {
  const auto map = ParseShardIndex(GetParam().json);
  ASSERT_FALSE(map.ok());
  EXPECT_EQ(map.error().message(), GetParam().message);
}

}  // namespace
}  // namespace weightwire
