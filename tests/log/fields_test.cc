#include "log/fields.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/limits.h"
#include "log/histories.h"
#include "log/limits.h"

namespace weightwire {
namespace {

using testing::ExpectError;
using testing::Succeeds;

Result<JsonValue> Parse(std::string_view text) { return ParseFields(text, 1 << 20, "test"); }

// An object with one more key.
JsonValue With(std::string_view more) {
  auto parsed = Parse(R"({"format":"test",)" + std::string(more) + "}");
  EXPECT_TRUE(Succeeds(parsed)) << more;
  return std::move(parsed).value();
}

TEST(Fields, AnyWhiteSpaceAndOrderAndUnknownKeys) {
  const auto parsed =
      Parse("\n{ \"later\" : {\"deep\":[1,-2.5,{\"x\":null}]},\t\"b\":\"7\" , \"format\":\"test\"}\r\n");
  ASSERT_TRUE(Succeeds(parsed));
  EXPECT_EQ(parsed.value().Number("b").value(), 7U);
}

TEST(Fields, MustBeOneObjectOfTheFormat) {
  ExpectError(Parse(""), ErrorCode::kCorrupt);
  ExpectError(Parse("[]"), ErrorCode::kCorrupt, "not an object");
  ExpectError(Parse("null"), ErrorCode::kCorrupt, "not an object");
  ExpectError(Parse("{}"), ErrorCode::kCorrupt, "\"format\"");
  ExpectError(Parse(R"({"format":1})"), ErrorCode::kCorrupt, "\"format\"");
  ExpectError(Parse(R"({"format":"other"})"), ErrorCode::kCorrupt, "\"other\"");
  ExpectError(Parse(R"({"format":"test"}{})"), ErrorCode::kCorrupt);
  ExpectError(Parse(R"({"format":"test")"), ErrorCode::kCorrupt);
}

TEST(Fields, RefusesDuplicateKeys) {
  ExpectError(Parse(R"({"format":"test","a":1,"a":1})"), ErrorCode::kCorrupt, "\"a\" twice");
  ExpectError(Parse(R"({"format":"test","format":"test"})"), ErrorCode::kCorrupt, "twice");
  ExpectError(Parse(R"({"format":"test","a":{"b":1,"\u0062":2}})"), ErrorCode::kCorrupt, "\"b\" twice");
  ExpectError(Parse(R"({"format":"test","a":[{"":1,"":2}]})"), ErrorCode::kCorrupt, "twice");
}

TEST(Fields, Limits) {
  const std::string text = R"({"format":"test"})";
  EXPECT_TRUE(Succeeds(ParseFields(text, text.size(), "test")));
  ExpectError(ParseFields(text, text.size() - 1, "test"), ErrorCode::kLimit);
  ExpectError(Parse(R"({"format":"test","a":)" + std::string(100, '[') + std::string(100, ']') + "}"),
              ErrorCode::kLimit);
  const JsonValue three = With(R"("a":["x","y","z"])");
  EXPECT_EQ(three.Texts("a", 3).value(), (std::vector<std::string>{"x", "y", "z"}));
  ExpectError(three.Texts("a", 2), ErrorCode::kLimit, "more than the limit of 2");
  ExpectError(three.List("a", 2), ErrorCode::kLimit);
}

TEST(Fields, LimitsTheNumberOfValues) {
  std::string text = R"({"format":"test","a":[)";
  for (std::uint64_t i = 0; i < kMaxJsonValues; ++i) text += "0,";
  text += "0]}";
  ExpectError(ParseFields(text, text.size(), "test"), ErrorCode::kLimit, "values");
}

TEST(Fields, NumbersAreDecimalStringsOnly) {
  EXPECT_EQ(With(R"("n":"0")").Number("n").value(), 0U);
  EXPECT_EQ(With(R"("n":"18446744073709551615")").Number("n").value(), ~std::uint64_t{0});
  for (const char* bad : {R"("")", R"("00")", R"("01")", R"("-1")", R"("+1")", R"("1.0")", R"("1e3")", R"(" 1")",
                          R"("1 ")", R"("0x1")", R"("18446744073709551616")", R"("99999999999999999999")",
                          R"("100000000000000000000")", "1", "1.5", "null", "true", "[]", "{}"}) {
    const JsonValue object = With(std::string("\"n\":") + bad);
    ExpectError(object.Number("n"), ErrorCode::kCorrupt, "\"n\"");
    if (std::string_view(bad) != "null") ExpectError(object.NumberOrNull("n"), ErrorCode::kCorrupt, "\"n\"");
  }
  EXPECT_EQ(With(R"("n":null)").NumberOrNull("n").value(), std::nullopt);
  EXPECT_EQ(With(R"("n":"5")").NumberOrNull("n").value(), 5U);
}

TEST(Fields, SmallNumbersArePlainJsonNumbers) {
  EXPECT_EQ(With(R"("n":60)").SmallNumber("n").value(), 60U);
  for (const char* bad : {R"("60")", "-1", "1.0", "18446744073709551616", "null", "false"}) {
    ExpectError(With(std::string("\"n\":") + bad).SmallNumber("n"), ErrorCode::kCorrupt, "\"n\"");
  }
}

TEST(Fields, EveryGetterNamesAKeyThatIsMissingOrOfAnotherType) {
  for (const std::string value : {"", "1", "1.5", "\"text\"", "null", "true", "[]", "{}"}) {
    SCOPED_TRACE(value);
    const JsonValue object = With(value.empty() ? R"("other":1)" : "\"k\":" + value);
    const auto expect = [&](const auto& result, bool fits) {
      if (fits) {
        EXPECT_TRUE(Succeeds(result));
      } else {
        ExpectError(result, ErrorCode::kCorrupt, "\"k\"");
      }
    };
    expect(object.Get("k"), !value.empty());
    expect(object.Text("k"), value == "\"text\"");
    expect(object.Boolean("k"), value == "true");
    expect(object.SmallNumber("k"), value == "1");
    expect(object.Number("k"), false);
    expect(object.NumberOrNull("k"), value == "null");
    expect(object.Hash("k"), false);
    expect(object.HashOrNull("k"), value == "null");
    expect(object.AnId("k"), false);
    expect(object.Time("k"), false);
    expect(object.Object("k"), value == "{}");
    expect(object.ObjectOrNull("k"), value == "{}" || value == "null");
    expect(object.List("k", 10), value == "[]");
    expect(object.Texts("k", 10), value == "[]");
  }
  ExpectError(With(R"("k":["a",1])").Texts("k", 10), ErrorCode::kCorrupt);
  EXPECT_EQ(With(R"("k":null)").ObjectOrNull("k").value(), nullptr);
}

TEST(Fields, HashesAndIdsHaveOneSpelling) {
  const std::string hash(64, 'a');
  EXPECT_TRUE(Succeeds(With("\"k\":\"" + hash + "\"").Hash("k")));
  ExpectError(With("\"k\":\"" + std::string(64, 'A') + "\"").Hash("k"), ErrorCode::kCorrupt);
  ExpectError(With("\"k\":\"" + hash.substr(1) + "\"").Hash("k"), ErrorCode::kCorrupt);
  ExpectError(With("\"k\":\"" + hash.substr(1) + "\"").HashOrNull("k"), ErrorCode::kCorrupt);
  EXPECT_TRUE(Succeeds(With("\"k\":\"" + hash.substr(32) + "\"").AnId("k")));
  ExpectError(With("\"k\":\"" + hash.substr(31) + "\"").AnId("k"), ErrorCode::kCorrupt);
}

TEST(Fields, AcceptsTimesWithAndWithoutAFraction) {
  EXPECT_EQ(TimeText(WallTime()), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(TimeText(WallTime(std::chrono::milliseconds(1'794'729'600'042))), "2026-11-15T08:00:00.042Z");
  EXPECT_EQ(TimeText(WallTime(std::chrono::milliseconds(951'827'696'999))), "2000-02-29T12:34:56.999Z");
  for (const char* good : {"2026-11-15T08:00:00Z", "2026-11-15T08:00:00.5Z", "2026-11-15T08:00:00.123456789Z"}) {
    EXPECT_EQ(With(std::string("\"k\":\"") + good + "\"").Time("k").value(), good);
  }
  for (const char* bad : {"", "2026-11-15T08:00:00", "2026-11-15 08:00:00Z", "2026-11-15T08:00:00.Z",
                          "2026-11-15T08:00:00.1234567890Z", "2026-11-15T08:00:00.5", "2026-11-15T08:00:00,5Z",
                          "2026-11-15T08:00:00.5aZ", "2026-11-15T08:00:0aZ", "2026-11-15T08:00:00Z "}) {
    ExpectError(With(std::string("\"k\":\"") + bad + "\"").Time("k"), ErrorCode::kCorrupt);
  }
}

TEST(FieldsWriter, WritesInOrderWithoutWhiteSpace) {
  FieldsWriter inner;
  inner.Number("n", 18446744073709551615U);
  FieldsWriter writer;
  writer.Text("format", "te\"st").Boolean("t", true).Boolean("f", false).SmallNumber("s", 3);
  writer.Number("n", std::optional<std::uint64_t>()).Null("z").Hash("h", std::optional<Sha256Digest>());
  writer.AnId("i", Id{}).Object("o", inner).Objects("l", {inner, FieldsWriter()}).Texts("x", {"a", "b\n"});
  writer.Objects("e", {}).Texts("g", {});
  EXPECT_EQ(writer.Finish(), R"({"format":"te\"st","t":true,"f":false,"s":3,"n":null,"z":null,"h":null,)"
                             R"("i":"00000000000000000000000000000000","o":{"n":"18446744073709551615"},)"
                             R"("l":[{"n":"18446744073709551615"},{}],"x":["a","b\u000a"],"e":[],"g":[]})");
}

RC_GTEST_PROP(FieldsProperty, ReadsBackWhatItWrites, (std::uint64_t number, bool flag, const std::string& raw)) {
  std::string text = raw;
  for (char& c : text) c = static_cast<char>(static_cast<unsigned char>(c) & 0x7f);
  FieldsWriter writer;
  writer.Text("format", "test").Number("n", number).Boolean("b", flag).Text("t", text).Texts("l", {text, "", text});
  const auto parsed = Parse(writer.Finish());
  RC_ASSERT(parsed.ok());
  RC_ASSERT(parsed.value().Number("n").value() == number);
  RC_ASSERT(parsed.value().Boolean("b").value() == flag);
  RC_ASSERT(parsed.value().Text("t").value() == text);
  RC_ASSERT(parsed.value().Texts("l", 3).value() == (std::vector<std::string>{text, "", text}));
}

}  // namespace
}  // namespace weightwire
