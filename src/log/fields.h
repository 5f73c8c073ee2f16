// The JSON of a run's objects (spec/PROTOCOL.md, "JSON"): read with distrust, written in one way only.
//
// Reading: ParseFields takes one JSON object from outside, within limits; the getters say which key is missing or of
// another type. Unknown keys are kept out of the way: nobody asks for them. Writing: FieldsWriter writes keys in the
// order they are given, without white space.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/sha256.h"
#include "log/id.h"

namespace weightwire {

// A JSON value. Immutable once parsed.
class JsonValue {
 public:
  enum class Kind : std::uint8_t { kNull, kBoolean, kUnsigned, kOtherNumber, kString, kList, kObject };

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] bool is_null() const { return kind_ == Kind::kNull; }

  // Of an object; every error is kCorrupt and names the key. A value that may be null has a getter that says so.
  [[nodiscard]] Result<const JsonValue*> Get(const std::string& key) const;
  [[nodiscard]] Result<std::string> Text(const std::string& key) const;
  [[nodiscard]] Result<bool> Boolean(const std::string& key) const;
  // A plain JSON number.
  [[nodiscard]] Result<std::uint64_t> SmallNumber(const std::string& key) const;
  // A decimal string: the only form for numbers that may exceed 2^53.
  [[nodiscard]] Result<std::uint64_t> Number(const std::string& key) const;
  [[nodiscard]] Result<std::optional<std::uint64_t>> NumberOrNull(const std::string& key) const;
  [[nodiscard]] Result<Sha256Digest> Hash(const std::string& key) const;
  [[nodiscard]] Result<std::optional<Sha256Digest>> HashOrNull(const std::string& key) const;
  [[nodiscard]] Result<Id> AnId(const std::string& key) const;
  // A UTC time in RFC 3339, with or without a fraction of a second, as TimeText writes it. Readers only show it.
  [[nodiscard]] Result<std::string> Time(const std::string& key) const;
  [[nodiscard]] Result<const JsonValue*> Object(const std::string& key) const;
  [[nodiscard]] Result<const JsonValue*> ObjectOrNull(const std::string& key) const;  // nullptr for null
  [[nodiscard]] Result<const std::vector<JsonValue>*> List(const std::string& key, std::uint64_t limit) const;
  [[nodiscard]] Result<std::vector<std::string>> Texts(const std::string& key, std::uint64_t limit) const;

  // The text of this value itself, for members of lists.
  [[nodiscard]] Result<std::string> AsText() const;
  [[nodiscard]] Status ExpectObject() const;

 private:
  friend class JsonBuilder;

  Kind kind_ = Kind::kNull;
  bool boolean_ = false;
  std::uint64_t number_ = 0;
  std::string text_;
  std::vector<JsonValue> list_;
  std::map<std::string, JsonValue> object_;
};

// One JSON object and nothing else; kLimit above max_bytes, kCorrupt otherwise. Its "format" must be `format`.
Result<JsonValue> ParseFields(std::string_view text, std::uint64_t max_bytes, std::string_view format);

// Writes an object, key by key. Nested objects and lists are written by functions.
class FieldsWriter {
 public:
  FieldsWriter() : text_("{") {}

  FieldsWriter& Text(std::string_view key, std::string_view value);
  FieldsWriter& Boolean(std::string_view key, bool value);
  FieldsWriter& SmallNumber(std::string_view key, std::uint64_t value);
  FieldsWriter& Number(std::string_view key, std::uint64_t value);
  FieldsWriter& Number(std::string_view key, const std::optional<std::uint64_t>& value);
  FieldsWriter& Hash(std::string_view key, const Sha256Digest& value);
  FieldsWriter& Hash(std::string_view key, const std::optional<Sha256Digest>& value);
  FieldsWriter& AnId(std::string_view key, const Id& value);
  FieldsWriter& Null(std::string_view key);
  FieldsWriter& Object(std::string_view key, const FieldsWriter& value);
  FieldsWriter& Objects(std::string_view key, const std::vector<FieldsWriter>& values);
  FieldsWriter& Texts(std::string_view key, const std::vector<std::string>& values);

  [[nodiscard]] std::string Finish() const { return text_ + "}"; }

 private:
  void Key(std::string_view key);

  std::string text_;
};

// "2026-11-15T08:00:00.000Z".
[[nodiscard]] std::string TimeText(WallTime time);

}  // namespace weightwire
