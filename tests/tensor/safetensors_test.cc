#include "tensor/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>

#include "base/bytes.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "support/owned_tensor.h"
#include "support/random_tensors.h"
#include "support/safetensors_file.h"
#include "support/temporary_directory.h"

namespace weightwire {
namespace {

using ::testing::HasSubstr;
using ::weightwire::testing::ReadAll;
using ::weightwire::testing::TemporaryDirectory;
using Buffer = std::vector<std::uint8_t>;

// A file of this header, with its true length in front, and that many bytes of data.
Buffer FileOf(std::string_view header, std::size_t data_bytes) {
  Buffer file;
  ByteWriter writer(file);
  writer.U64(header.size());
  writer.Bytes({reinterpret_cast<const std::uint8_t*>(header.data()), header.size()});
  for (std::size_t i = 0; i < data_bytes; ++i) file.push_back(static_cast<std::uint8_t>(i));
  return file;
}

std::string ParseError(const Buffer& file) {
  const auto view = SafetensorsView::Parse(file);
  return view.ok() ? "accepted" : view.error().message();
}

TEST(SafetensorsView, ReadsTensorsInOrderOfTheirData) {
  const Buffer file = FileOf(R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},)"
                             R"("__metadata__":{"format":"pt"},)"
                             R"("a":{"data_offsets":[0,4],"shape":[],"dtype":"F32"}}    )",
                             7);
  const auto view = SafetensorsView::Parse(file);
  ASSERT_TRUE(view.ok()) << view.error().message();
  ASSERT_EQ(view.value().tensors().size(), 2U);
  EXPECT_EQ(view.value().tensors()[0].spec, (TensorSpec{"a", DType::kF32, {}}));
  EXPECT_EQ(view.value().tensors()[1].spec, (TensorSpec{"b", DType::kU8, {3}}));
  EXPECT_THAT(view.value().tensors()[1].bytes, ::testing::ElementsAre(4, 5, 6));
  EXPECT_EQ(view.value().metadata(), (Metadata{{"format", "pt"}}));
  EXPECT_EQ(view.value().Find("b"), &view.value().tensors()[1]);
  EXPECT_EQ(view.value().Find("c"), nullptr);
}

TEST(SafetensorsView, AcceptsWhatTheFormatAllows) {
  EXPECT_EQ(ParseError(FileOf("{}", 0)), "accepted");
  EXPECT_EQ(ParseError(FileOf("{} \n\t\r ", 0)), "accepted");
  EXPECT_EQ(ParseError(FileOf(R"({"__metadata__":null})", 0)), "accepted");
  EXPECT_EQ(ParseError(FileOf(R"({"__metadata__":{}})", 0)), "accepted");
  EXPECT_EQ(ParseError(FileOf(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1)), "accepted");
  // Empty tensors lie anywhere between others, several at one place.
  EXPECT_EQ(ParseError(FileOf(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                              R"("e":{"dtype":"F64","shape":[0],"data_offsets":[0,0]},)"
                              R"("f":{"dtype":"F64","shape":[5,0],"data_offsets":[2,2]},)"
                              R"("y":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                              3)),
            "accepted");
}

TEST(SafetensorsView, ReadsDataOfAnyAlignment) {
  const Buffer file = FileOf(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("b":{"dtype":"F64","shape":[1],"data_offsets":[1,9]}})",
                             9);
  const auto view = SafetensorsView::Parse(file);
  ASSERT_TRUE(view.ok());
  EXPECT_THAT(view.value().Find("b")->bytes, ::testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

struct BadHeader {
  const char* defect;
  const char* header;
  std::size_t data_bytes;
  const char* message;
};

class BadHeaderTest : public ::testing::TestWithParam<BadHeader> {};

INSTANTIATE_TEST_SUITE_P(
    Defects, BadHeaderTest,
    ::testing::Values(
        BadHeader{"Empty", "", 0, "does not begin with '{'"},
        BadHeader{"BeginsWithSpace", " {}", 0, "does not begin with '{'"},
        BadHeader{"IsAList", "[]", 0, "does not begin with '{'"},
        BadHeader{"ByteOrderMark", "\xEF\xBB\xBF{}", 0, "does not begin with '{'"},
        BadHeader{"NotJson", "{\"a\"", 0, "not valid JSON"}, BadHeader{"TrailingText", "{} x", 0, "not valid JSON"},
        BadHeader{"NotUtf8", "{\"\xFF\":{}}", 0, "not valid JSON"},
        BadHeader{"EntryIsANumber", R"({"a":1})", 0, "entry \"a\" is not an object"},
        BadHeader{"EntryIsAList", R"({"a":[]})", 0, "entry \"a\" is not an object"},
        BadHeader{"EntryIsNull", R"({"a":null})", 0, "entry \"a\" is not an object"},
        BadHeader{"NoDType", R"({"a":{"shape":[],"data_offsets":[0,1]}})", 1, "it has no dtype"},
        BadHeader{"NoShape", R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "it has no shape"},
        BadHeader{"NoOffsets", R"({"a":{"dtype":"U8","shape":[]}})", 1, "it has no data_offsets"},
        // The second must not inherit from the first.
        BadHeader{"NoDTypeInTheSecond",
                  R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"b":{"shape":[],"data_offsets":[1,2]}})", 2,
                  "tensor \"b\": it has no dtype"},
        BadHeader{"UnknownField", R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"extra":1}})", 1,
                  "unknown field \"extra\""},
        BadHeader{"FieldTwice", R"({"a":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1,
                  "it has \"dtype\" twice"},
        BadHeader{
            "TensorTwice",
            R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[],"data_offsets":[1,2]}})",
            2, "tensor \"a\" twice"},
        BadHeader{"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0, "\"__metadata__\" twice"},
        BadHeader{"MetadataKeyTwice", R"({"__metadata__":{"a":"1","a":"2"}})", 0, "the metadata has \"a\" twice"},
        BadHeader{"MetadataNumber", R"({"__metadata__":{"a":1}})", 0, "the metadata's \"a\" is not a string"},
        BadHeader{"MetadataNested", R"({"__metadata__":{"a":{"b":"c"}}})", 0, "the metadata's \"a\" is not a string"},
        BadHeader{"MetadataIsAString", R"({"__metadata__":"a"})", 0, "entry \"__metadata__\" is not an object"},
        BadHeader{"UnknownDType", R"({"a":{"dtype":"F128","shape":[],"data_offsets":[0,16]}})", 16,
                  "unknown dtype \"F128\""},
        BadHeader{"DTypeIsANumber", R"({"a":{"dtype":8,"shape":[],"data_offsets":[0,1]}})", 1, "dtype is not a string"},
        BadHeader{"DTypeIsAList", R"({"a":{"dtype":["U8"],"shape":[],"data_offsets":[0,1]}})", 1,
                  "dtype is not a string"},
        BadHeader{"ShapeIsANumber", R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, "lists of numbers"},
        BadHeader{"ShapeIsAnObject", R"({"a":{"dtype":"U8","shape":{},"data_offsets":[0,1]}})", 1, "lists of numbers"},
        BadHeader{"ShapeNegative", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "whole numbers"},
        BadHeader{"ShapeFraction", R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, "whole numbers"},
        BadHeader{"ShapeNested", R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1, "whole numbers"},
        BadHeader{"ShapeOverflows", R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
                  "2^64"},
        BadHeader{"SizeOverflows", R"({"a":{"dtype":"U64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0,
                  "the limit of"},
        BadHeader{"TooManyDimensions",
                  R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],)"
                  R"("data_offsets":[0,1]}})",
                  1, "more than 32 dimensions"},
        BadHeader{"OneOffset", R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0]}})", 1, "are not two numbers"},
        BadHeader{"ThreeOffsets", R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1,2]}})", 1,
                  "are not two numbers"},
        BadHeader{"OffsetsReversed", R"({"a":{"dtype":"U8","shape":[],"data_offsets":[1,0]}})", 1, "hole"},
        BadHeader{"EndBeforeBegin",
                  R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                  R"("b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                  R"("c":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})",
                  1, "data_offsets are [1, 0]"},
        BadHeader{"HoleAtTheStart", R"({"a":{"dtype":"U8","shape":[],"data_offsets":[1,2]}})", 2, "leaves a hole"},
        BadHeader{"HoleBetween",
                  R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
                  R"("b":{"dtype":"U8","shape":[],"data_offsets":[2,3]}})",
                  3, "tensor \"b\": its data begins at 2, which leaves a hole"},
        BadHeader{"Overlap",
                  R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                  R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                  3, "leaves an overlap"},
        BadHeader{"SameDataTwice",
                  R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                  R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                  2, "overlap"},
        BadHeader{"SizeTooSmall", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "takes 8 bytes"},
        BadHeader{"SizeTooLarge", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 8, "takes 4 bytes"},
        BadHeader{"PackedNotWholeBytes", R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2,
                  "whole number of bytes"},
        BadHeader{"DataCutOff", R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", 2, "cut off"},
        BadHeader{"DataTooLong", R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", 4, "too long"},
        BadHeader{"DataWithoutTensors", "{}", 1, "too long"}),
    [](const auto& info) { return info.param.defect; });

TEST_P(BadHeaderTest, IsRefused) {
  EXPECT_THAT(ParseError(FileOf(GetParam().header, GetParam().data_bytes)), HasSubstr(GetParam().message));
}

TEST(SafetensorsView, RefusesAFileWithoutItsWholeHeader) {
  EXPECT_THAT(ParseError({}), HasSubstr("too few"));
  EXPECT_THAT(ParseError(Buffer(7)), HasSubstr("too few"));
  Buffer file = FileOf("{}", 0);
  file.pop_back();
  EXPECT_THAT(ParseError(file), HasSubstr("only 1 follow"));
}

TEST(SafetensorsView, RefusesAHeaderAboveTheLimitBeforeParsingIt) {
  Buffer file(16);
  for (const std::uint64_t length : {kMaxHeaderBytes + 1, ~std::uint64_t{0}, ~std::uint64_t{0} - 7}) {
    StoreU64(file.data(), length);
    const auto view = SafetensorsView::Parse(file);
    ASSERT_FALSE(view.ok());
    EXPECT_EQ(view.error().code(), ErrorCode::kCorrupt) << "a file of another kind, not one that is too large";
  }
}

TEST(SafetensorsView, RefusesANulInTheHeader) {
  EXPECT_THAT(ParseError(FileOf(std::string_view("{}\0\0", 4), 0)), HasSubstr("not valid JSON"));
}

TEST(SafetensorsView, RefusesANameAboveTheLimit) {
  const std::string tensor = R"(":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})";
  EXPECT_EQ(ParseError(FileOf("{\"" + std::string(kMaxNameBytes, 'n') + tensor, 1)), "accepted");
  EXPECT_THAT(ParseError(FileOf("{\"" + std::string(kMaxNameBytes + 1, 'n') + tensor, 1)),
              HasSubstr("4097 bytes long"));
}

TEST(SafetensorsHeader, EqualsTheHeaderOfThePythonPackage) {
  std::vector<TensorSpec> specs = {{"b", DType::kBF16, {2}}, {"a", DType::kBF16, {}}, {"c", DType::kF32, {1, 1}}};
  SortForFile(specs);
  const Buffer header = SafetensorsHeader(specs, {{"format", "pt"}}).value();
  const std::string expected =
      R"({"__metadata__":{"format":"pt"},"c":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},)"
      R"("a":{"dtype":"BF16","shape":[],"data_offsets":[4,6]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[6,10]}})";
  const std::string text(header.begin() + 8, header.end());
  EXPECT_EQ(text.substr(0, expected.size()), expected);
  EXPECT_EQ(text.substr(expected.size()), std::string(text.size() - expected.size(), ' '));
  EXPECT_EQ(header.size() % 8, 0U);
  EXPECT_LT(text.size() - expected.size(), 8U);
  EXPECT_EQ(LoadU64(header.data()), text.size());
}

TEST(SafetensorsHeader, RefusesWhatCouldNotBeReadBack) {
  EXPECT_FALSE(SafetensorsHeader(std::vector<TensorSpec>{{"__metadata__", DType::kU8, {}}}, {}).ok());
  EXPECT_FALSE(SafetensorsHeader(std::vector<TensorSpec>{{"\xC3", DType::kU8, {}}}, {}).ok());
  const auto too_long = SafetensorsHeader({}, {{"k", std::string(kMaxHeaderBytes, 'x')}});
  ASSERT_FALSE(too_long.ok());
  EXPECT_EQ(too_long.error().code(), ErrorCode::kLimit);
}

RC_GTEST_PROP(SafetensorsProperty, ReadsBackWhatItWrites, (const Metadata& raw_metadata)) {
  Metadata metadata;
  for (const auto& [key, value] : raw_metadata) {
    metadata[ToHex({reinterpret_cast<const std::uint8_t*>(key.data()), key.size()})] = *testing::RandomName();
  }
  const auto tensors = *testing::RandomTensors();
  std::vector<TensorView> views;
  for (const OwnedTensor& tensor : tensors) views.push_back({tensor.spec, tensor.bytes});
  const auto file = testing::WriteSafetensors(views, metadata);
  RC_ASSERT(file.ok());
  const auto read = SafetensorsView::Parse(file.value());
  RC_ASSERT(read.ok());
  RC_ASSERT(read.value().metadata() == metadata);
  RC_ASSERT(read.value().tensors().size() == tensors.size());
  for (const OwnedTensor& tensor : tensors) {
    const TensorView* found = read.value().Find(tensor.spec.name);
    RC_ASSERT(found != nullptr);
    RC_ASSERT(found->spec == tensor.spec);
    RC_ASSERT(Buffer(found->bytes.begin(), found->bytes.end()) == tensor.bytes);
  }
  // Cut anywhere, it is not a file any more.
  const std::size_t cut = *rc::gen::inRange<std::size_t>(0, file.value().size());
  RC_ASSERT(!SafetensorsView::Parse(std::span(file.value()).first(cut)).ok());
}

TEST(SafetensorsWriter, WritesTheSameFileInPortions) {
  const TemporaryDirectory directory;
  const Buffer data = {1, 2, 3, 4, 5, 6};
  const std::vector<TensorSpec> specs = {{"b", DType::kU8, {2}}, {"a", DType::kI16, {2}}};
  const std::vector<TensorView> views = {{specs[0], std::span(data).first(2)}, {specs[1], std::span(data).subspan(2)}};
  auto writer = SafetensorsWriter::Create(directory / "f", specs, {{"k", "v"}});
  ASSERT_TRUE(writer.ok());
  for (std::size_t i = 0; i < data.size(); i += 3) {
    ASSERT_TRUE(writer.value().Append(std::span(data).subspan(i, 3)).ok());
    EXPECT_EQ(writer.value().position(), i + 3);
  }
  EXPECT_THAT(writer.value().Append(std::span(data).first(1)).error().message(), HasSubstr("more data than"));
  ASSERT_TRUE(writer.value().Finish().ok());
  const Buffer expected = testing::WriteSafetensors(views, {{"k", "v"}}).value();
  EXPECT_EQ(ReadAll(directory / "f"), std::string(expected.begin(), expected.end()));
}

TEST(SafetensorsWriter, MissingDataIsAnError) {
  const TemporaryDirectory directory;
  auto writer = SafetensorsWriter::Create(directory / "f", std::vector<TensorSpec>{{"a", DType::kU8, {2}}}, {});
  ASSERT_TRUE(writer.value().Append(Buffer{1}).ok());
  EXPECT_THAT(writer.value().Finish().error().message(), HasSubstr("1 of 2 bytes of tensor data are missing"));
}

TEST(SafetensorsWriter, RefusesAnExistingFile) {
  const TemporaryDirectory directory;
  testing::WriteAll(directory / "f", "old");
  EXPECT_FALSE(SafetensorsWriter::Create(directory / "f", {}, {}).ok());
  EXPECT_EQ(ReadAll(directory / "f"), "old");
}

// A sparse file: more than 2^32 elements, and a tensor behind the 4 GiB line.
TEST(SafetensorsView, TensorsAboveTwoToThe32Elements) {
  const TemporaryDirectory directory;
  constexpr std::uint64_t kElements = (std::uint64_t{1} << 32) + 5;
  const std::vector<TensorSpec> specs = {{"big", DType::kI8, {kElements}}, {"last", DType::kU8, {2}}};
  const Buffer header = SafetensorsHeader(specs, {}).value();
  {
    const auto file = File::Create(directory / "f");
    ASSERT_TRUE(file.value().WriteAt(0, header).ok());
    ASSERT_TRUE(file.value().WriteAt(header.size() + kElements - 1, Buffer{7, 8, 9}).ok());
  }
  const auto map = MappedFile::Open(directory / "f");
  ASSERT_TRUE(map.ok());
  const auto view = SafetensorsView::Parse(map.value().bytes());
  ASSERT_TRUE(view.ok()) << view.error().message();
  EXPECT_EQ(view.value().Find("big")->bytes.size(), kElements);
  EXPECT_EQ(view.value().Find("big")->bytes.back(), 7);
  EXPECT_THAT(view.value().Find("last")->bytes, ::testing::ElementsAre(8, 9));
}

}  // namespace
}  // namespace weightwire
