#include "log/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "log/limits.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

// Decimal digits without leading zeros, below 2^64.
std::optional<std::uint64_t> ParseNumber(std::string_view text) {
  constexpr std::size_t kMaxDigits = 20;
  if (text.empty() || text.size() > kMaxDigits || (text.size() > 1 && text[0] == '0')) return std::nullopt;
  std::uint64_t number = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    if (__builtin_mul_overflow(number, 10, &number)) return std::nullopt;
    if (__builtin_add_overflow(number, static_cast<std::uint64_t>(c - '0'), &number)) return std::nullopt;
  }
  return number;
}

bool IsTime(std::string_view text) {
  constexpr std::string_view kForm = "0000-00-00T00:00:00";
  constexpr std::size_t kMaxFractionDigits = 9;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.size() <= kForm.size() || text.back() != 'Z') return false;
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    if (kForm[i] == '0' ? !is_digit(text[i]) : text[i] != kForm[i]) return false;
  }
  const std::string_view fraction = text.substr(kForm.size(), text.size() - kForm.size() - 1);
  if (fraction.empty()) return true;
  const std::string_view digits = fraction.substr(1);
  return fraction.front() == '.' && !digits.empty() && digits.size() <= kMaxFractionDigits &&
         std::ranges::all_of(digits, is_digit);
}

}  // namespace

// Puts a tree together from the reader's events.
class JsonBuilder {
 public:
  Status On(JsonEvent& event) {
    using Event = JsonEvent::Kind;
    switch (event.kind) {
      case Event::kKey:
        key_ = std::move(event.text);
        return Ok();
      case Event::kEndObject:
      case Event::kEndArray:
        open_.pop_back();
        return Ok();
      default:
        break;
    }
    if (++values_ > kMaxJsonValues) {
      return Error(ErrorCode::kLimit, fmt::format("it has more than {} values", kMaxJsonValues));
    }
    JsonValue value;
    switch (event.kind) {
      case Event::kNull:
        value.kind_ = JsonValue::Kind::kNull;
        break;
      case Event::kBoolean:
        value.kind_ = JsonValue::Kind::kBoolean;
        value.boolean_ = event.number != 0;
        break;
      case Event::kUnsigned:
        value.kind_ = JsonValue::Kind::kUnsigned;
        value.number_ = event.number;
        break;
      case Event::kString:
        value.kind_ = JsonValue::Kind::kString;
        value.text_ = std::move(event.text);
        break;
      case Event::kStartObject:
        value.kind_ = JsonValue::Kind::kObject;
        break;
      case Event::kStartArray:
        value.kind_ = JsonValue::Kind::kList;
        break;
      default:
        value.kind_ = JsonValue::Kind::kOtherNumber;
        break;
    }
    const bool opens = event.kind == Event::kStartObject || event.kind == Event::kStartArray;
    WW_TRY(JsonValue * place, AddValue(std::move(value)));
    if (opens) open_.push_back(place);
    return Ok();
  }

  JsonValue root;

 private:
  // A value's own place does not move while it is open: only its members come and go.
  Result<JsonValue*> AddValue(JsonValue value) {
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    JsonValue& parent = *open_.back();
    if (parent.kind_ == JsonValue::Kind::kList) {
      parent.list_.push_back(std::move(value));
      return &parent.list_.back();
    }
    const auto [at, fresh] = parent.object_.emplace(key_, std::move(value));
    if (!fresh) return Corrupt(fmt::format("it has {} twice", Quoted(key_)));
    return &at->second;
  }

  std::vector<JsonValue*> open_;
  std::string key_;
  std::uint64_t values_ = 0;
};

Result<JsonValue> ParseFields(std::string_view text, std::uint64_t max_bytes, std::string_view format) {
  if (text.size() > max_bytes) {
    return Error(ErrorCode::kLimit, fmt::format("{} bytes are above the limit of {}", text.size(), max_bytes));
  }
  JsonBuilder builder;
  WW_RETURN_IF_ERROR(ReadJson(text, [&](JsonEvent& event) { return builder.On(event); }));
  WW_RETURN_IF_ERROR(builder.root.ExpectObject());
  WW_TRY(const std::string is, builder.root.Text("format"));
  if (is != format) return Corrupt(fmt::format("its format is {}, not \"{}\"", Quoted(is), format));
  return std::move(builder.root);
}

Status JsonValue::ExpectObject() const {
  if (kind_ != Kind::kObject) return Corrupt("it is not an object");
  return Ok();
}

Result<const JsonValue*> JsonValue::Get(const std::string& key) const {
  const auto at = object_.find(key);
  if (at == object_.end()) return Corrupt(fmt::format("it has no \"{}\"", key));
  return &at->second;
}

Result<std::string> JsonValue::AsText() const {
  if (kind_ != Kind::kString) return Corrupt("a member of a list is not a string");
  return text_;
}

Result<std::string> JsonValue::Text(const std::string& key) const {
  WW_TRY(const JsonValue* value, Get(key));
  if (value->kind_ != Kind::kString) return Corrupt(fmt::format("its \"{}\" is not a string", key));
  return value->text_;
}

Result<bool> JsonValue::Boolean(const std::string& key) const {
  WW_TRY(const JsonValue* value, Get(key));
  if (value->kind_ != Kind::kBoolean) return Corrupt(fmt::format("its \"{}\" is neither true nor false", key));
  return value->boolean_;
}

Result<std::uint64_t> JsonValue::SmallNumber(const std::string& key) const {
  WW_TRY(const JsonValue* value, Get(key));
  if (value->kind_ != Kind::kUnsigned) return Corrupt(fmt::format("its \"{}\" is not a whole number", key));
  return value->number_;
}

Result<std::uint64_t> JsonValue::Number(const std::string& key) const {
  WW_TRY(const std::string text, Text(key));
  const auto number = ParseNumber(text);
  if (!number.has_value()) return Corrupt(fmt::format("its \"{}\" is no number in decimal digits", key));
  return *number;
}

Result<std::optional<std::uint64_t>> JsonValue::NumberOrNull(const std::string& key) const {
  WW_TRY(const JsonValue* value, Get(key));
  if (value->is_null()) return std::optional<std::uint64_t>();
  WW_TRY(const std::uint64_t number, Number(key));
  return std::optional(number);
}

Result<Sha256Digest> JsonValue::Hash(const std::string& key) const {
  WW_TRY(const std::string text, Text(key));
  const auto hash = Sha256FromHex(text);
  if (!hash.has_value()) return Corrupt(fmt::format("its \"{}\" is no SHA-256 in lower-case hex digits", key));
  return *hash;
}

Result<std::optional<Sha256Digest>> JsonValue::HashOrNull(const std::string& key) const {
  WW_TRY(const JsonValue* value, Get(key));
  if (value->is_null()) return std::optional<Sha256Digest>();
  WW_TRY(const Sha256Digest hash, Hash(key));
  return std::optional(hash);
}

Result<Id> JsonValue::AnId(const std::string& key) const {
  WW_TRY(const std::string text, Text(key));
  const auto id = IdFromHex(text);
  if (!id.has_value()) return Corrupt(fmt::format("its \"{}\" is no id of 32 lower-case hex digits", key));
  return *id;
}

Result<std::string> JsonValue::Time(const std::string& key) const {
  WW_TRY(std::string text, Text(key));
  if (!IsTime(text)) return Corrupt(fmt::format("its \"{}\" is no time such as 2026-11-15T08:00:00Z", key));
  return text;
}

Result<const JsonValue*> JsonValue::Object(const std::string& key) const {
  WW_TRY(const JsonValue* value, Get(key));
  if (value->kind_ != Kind::kObject) return Corrupt(fmt::format("its \"{}\" is not an object", key));
  return value;
}

Result<const JsonValue*> JsonValue::ObjectOrNull(const std::string& key) const {
  WW_TRY(const JsonValue* value, Get(key));
  if (value->is_null()) return static_cast<const JsonValue*>(nullptr);
  return Object(key);
}

Result<const std::vector<JsonValue>*> JsonValue::List(const std::string& key, std::uint64_t limit) const {
  WW_TRY(const JsonValue* value, Get(key));
  if (value->kind_ != Kind::kList) return Corrupt(fmt::format("its \"{}\" is not a list", key));
  if (value->list_.size() > limit) {
    return Error(ErrorCode::kLimit,
                 fmt::format("its \"{}\" has {} members, more than the limit of {}", key, value->list_.size(), limit));
  }
  return &value->list_;
}

Result<std::vector<std::string>> JsonValue::Texts(const std::string& key, std::uint64_t limit) const {
  WW_TRY(const auto* list, List(key, limit));
  std::vector<std::string> texts;
  for (const JsonValue& value : *list) {
    WW_TRY(std::string text, value.AsText());
    texts.push_back(std::move(text));
  }
  return texts;
}

void FieldsWriter::Key(std::string_view key) {
  if (text_.size() > 1) text_ += ',';
  AppendJsonString(text_, key);
  text_ += ':';
}

FieldsWriter& FieldsWriter::Text(std::string_view key, std::string_view value) {
  Key(key);
  AppendJsonString(text_, value);
  return *this;
}

FieldsWriter& FieldsWriter::Boolean(std::string_view key, bool value) {
  Key(key);
  text_ += value ? "true" : "false";
  return *this;
}

FieldsWriter& FieldsWriter::SmallNumber(std::string_view key, std::uint64_t value) {
  Key(key);
  text_ += std::to_string(value);
  return *this;
}

FieldsWriter& FieldsWriter::Number(std::string_view key, std::uint64_t value) {
  return Text(key, std::to_string(value));
}

FieldsWriter& FieldsWriter::Number(std::string_view key, const std::optional<std::uint64_t>& value) {
  return value.has_value() ? Number(key, *value) : Null(key);
}

FieldsWriter& FieldsWriter::Hash(std::string_view key, const Sha256Digest& value) {
  return Text(key, ToHex(std::span<const std::uint8_t>(value)));
}

FieldsWriter& FieldsWriter::Hash(std::string_view key, const std::optional<Sha256Digest>& value) {
  return value.has_value() ? Hash(key, *value) : Null(key);
}

FieldsWriter& FieldsWriter::AnId(std::string_view key, const Id& value) { return Text(key, ToHex(value)); }

FieldsWriter& FieldsWriter::Null(std::string_view key) {
  Key(key);
  text_ += "null";
  return *this;
}

FieldsWriter& FieldsWriter::Object(std::string_view key, const FieldsWriter& value) {
  Key(key);
  text_ += value.Finish();
  return *this;
}

FieldsWriter& FieldsWriter::Objects(std::string_view key, const std::vector<FieldsWriter>& values) {
  Key(key);
  text_ += '[';
  for (std::size_t i = 0; i < values.size(); ++i) text_ += (i == 0 ? "" : ",") + values[i].Finish();
  text_ += ']';
  return *this;
}

FieldsWriter& FieldsWriter::Texts(std::string_view key, const std::vector<std::string>& values) {
  Key(key);
  text_ += '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i != 0) text_ += ',';
    AppendJsonString(text_, values[i]);
  }
  text_ += ']';
  return *this;
}

std::string TimeText(WallTime time) {
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss of_day(time - day);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), of_day.hours().count(),
                     of_day.minutes().count(), of_day.seconds().count(), of_day.subseconds().count());
}

}  // namespace weightwire
