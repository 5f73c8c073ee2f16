#include "store/http/times.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <charconv>

namespace weightwire {
namespace {

// The next `digits` digits of the text, and then `separator` (0: none).
std::optional<int> TakeNumber(std::string_view* text, std::size_t digits, char separator) {
  int value = 0;
  const std::string_view number = text->substr(0, digits);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (number.size() != digits || error != std::errc() || end != number.data() + digits || number[0] == '-') return {};
  text->remove_prefix(digits);
  if (separator == 0) return value;
  if (text->empty() || text->front() != separator) return {};
  text->remove_prefix(1);
  return value;
}

}  // namespace

std::optional<WallTime> ParseIsoTime(std::string_view text) {
  const auto year = TakeNumber(&text, 4, '-');
  const auto month = year ? TakeNumber(&text, 2, '-') : std::nullopt;
  const auto day = month ? TakeNumber(&text, 2, 'T') : std::nullopt;
  const auto hour = day ? TakeNumber(&text, 2, ':') : std::nullopt;
  const auto minute = hour ? TakeNumber(&text, 2, ':') : std::nullopt;
  const auto second = minute ? TakeNumber(&text, 2, 0) : std::nullopt;
  if (!second) return {};
  int milliseconds = 0;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    int unit = 100;
    std::size_t digits = 0;
    for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; ++digits, unit /= 10) {
      milliseconds += unit * (text[digits] - '0');
    }
    if (digits == 0) return {};
    text.remove_prefix(digits);
  }
  if (text != "Z" && text != "+00:00") return {};
  const std::chrono::year_month_day date{std::chrono::year(*year), std::chrono::month(static_cast<unsigned>(*month)),
                                         std::chrono::day(static_cast<unsigned>(*day))};
  if (!date.ok() || *hour > 23 || *minute > 59 || *second > 60) return {};
  return WallTime(std::chrono::sys_days(date)) + std::chrono::hours(*hour) + std::chrono::minutes(*minute) +
         std::chrono::seconds(*second) + std::chrono::milliseconds(milliseconds);
}

std::optional<WallTime> ParseHttpTime(std::string_view text) {
  const std::time_t seconds = curl_getdate(std::string(text).c_str(), nullptr);
  if (text.empty() || seconds < 0) return {};
  return WallTime(std::chrono::seconds(seconds));
}

std::string FormatTime(WallTime time) {
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(std::chrono::floor<std::chrono::seconds>(time - day));
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), clock.hours().count(),
                     clock.minutes().count(), clock.seconds().count());
}

}  // namespace weightwire
