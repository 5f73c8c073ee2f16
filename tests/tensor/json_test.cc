#include "tensor/json.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/limits.h"

namespace weightwire {
namespace {

using Kind = JsonEvent::Kind;

// The events as one short text: a letter each, with depth, number or text.
std::string Events(std::string_view json) {
  std::string out;
  const Status status = ReadJson(json, [&](JsonEvent& event) -> Status {
    constexpr std::string_view kLetters = "0b#~sk{}[]";
    out += kLetters[static_cast<std::size_t>(event.kind)] + std::to_string(event.depth);
    if (event.kind == Kind::kUnsigned) out += ":" + std::to_string(event.number);
    if (event.kind == Kind::kString || event.kind == Kind::kKey) out += ":" + event.text;
    out += ' ';
    return Ok();
  });
  return status.ok() ? out : status.error().message();
}

TEST(ReadJson, EventsCarryDepth) {
  EXPECT_EQ(Events(R"( {"a":[1,"x"],"b":{}} )"), "{0 k1:a [1 #2:1 s2:x ]1 k1:b {1 }1 }0 ");
}

TEST(ReadJson, OnlyWholeNumbersBelowTwoToThe64AreUnsigned) {
  EXPECT_EQ(Events("[18446744073709551615,18446744073709551616,-1,-0,1.0,1e2]"),
            "[0 #1:18446744073709551615 ~1 ~1 ~1 ~1 ~1 ]0 ");
  EXPECT_EQ(Events("[null,true]"), "[0 01 b1 ]0 ");
}

TEST(ReadJson, RefusesOtherThanOneValue) {
  EXPECT_EQ(Events(""), "not valid JSON at byte 1");
  EXPECT_EQ(Events("{} {}"), "not valid JSON at byte 4");
  EXPECT_EQ(Events("{\"a\":1,}"), "not valid JSON at byte 8");
  EXPECT_EQ(Events("[1e999]"), "not valid JSON at byte 6");
  EXPECT_EQ(Events("// comment\n{}"), "not valid JSON at byte 1");
}

TEST(ReadJson, RefusesANulAfterTheValue) {
  EXPECT_EQ(Events(std::string_view("{}\0 and more", 12)), "not valid JSON at byte 3");
}

TEST(ReadJson, NamesAreUtf8) {
  EXPECT_EQ(Events("\"\\u00e9\xC3\xA9\""), "s0:\xC3\xA9\xC3\xA9 ");
  EXPECT_EQ(Events("\"\xFF\""), "not valid JSON at byte 2");
  EXPECT_EQ(Events("\"\\ud800\""), "not valid JSON at byte 8");
}

TEST(ReadJson, HostileNestingIsRefusedEarly) {
  EXPECT_EQ(Events(std::string(10'000'000, '[')), "nested more than 16 deep");
  const std::string deepest = std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']');
  EXPECT_TRUE(Events(deepest).ends_with("]0 "));
}

TEST(ReadJson, StopsAtTheReceiversError) {
  int events = 0;
  const Status status = ReadJson("[1,2,3]", [&](JsonEvent& event) -> Status {
    ++events;
    if (event.kind == Kind::kUnsigned) return Error(ErrorCode::kMismatch, "enough");
    return Ok();
  });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kMismatch);
  EXPECT_EQ(events, 2);
}

TEST(AppendJsonString, EscapesOnlyWhatItMust) {
  std::string out;
  AppendJsonString(out, "a\"b\\c\n\x1F\x7F/é");
  EXPECT_EQ(out, "\"a\\\"b\\\\c\\u000a\\u001f\x7F/é\"");
}

RC_GTEST_PROP(JsonProperty, StringsReadBack, ()) {
  const std::string text = *rc::gen::container<std::string>(
      rc::gen::map(rc::gen::inRange(0, 0x80), [](int c) { return static_cast<char>(c); }));
  std::string json;
  AppendJsonString(json, text);
  RC_ASSERT(Events(json) == "s0:" + text + " ");
}

// A second opinion on what UTF-8 is, over byte sequences that are nearly right.
RC_GTEST_PROP(JsonProperty, Utf8AgreesWithTheParser, ()) {
  const auto bytes = *rc::gen::container<std::string>(
      rc::gen::map(rc::gen::element<int>(0x20, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0,
                                         0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF),
                   [](int byte) { return static_cast<char>(byte); }));
  RC_ASSERT(IsUtf8(bytes) == nlohmann::json::accept('"' + bytes + '"'));
}

TEST(Quoted, IsSafeToShow) {
  EXPECT_EQ(Quoted("a\x1B[31m"), "\"a\\u001b[31m\"");
  EXPECT_EQ(Quoted("\x7F\xC2\x9B\xC2\xB1"), "\"\\u007f\\u009b\xC2\xB1\"") << "the second set of control characters";
  const std::string cut = Quoted(std::string(199, 'x') + "éééé");
  EXPECT_EQ(cut, "\"" + std::string(199, 'x') + "\"…");
}

TEST(Printable, EscapesControlCharactersOnly) {
  EXPECT_EQ(Printable("model.layers.0 \"±1\" …"), "model.layers.0 \"±1\" …");
  EXPECT_EQ(Printable("a\nb\x1B[2J\x7F\xC2\x80"), "a\\u000ab\\u001b[2J\\u007f\\u0080");
  EXPECT_EQ(Printable("\xC2"), "\xC2") << "half a character";
}

}  // namespace
}  // namespace weightwire
