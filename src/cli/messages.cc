#include "cli/messages.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <mutex>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "cli/json.h"
#include "cli/policy.h"
#include "log/fields.h"
#include "tensor/json.h"

namespace weightwire::messages {
namespace {

constexpr const char* kErase = "\r\x1b[K";

// One for the process, as standard error is.
struct State {
  std::mutex mutex;
  Style style;
  std::string line;  // on the terminal
  std::optional<std::chrono::steady_clock::time_point> last_progress;
};

State& Shared() {
  static State state;
  return state;
}

// All of these need the lock. What cannot be written is lost: there is no other place to say so.

void Write(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void WriteJson(std::string_view event, std::string_view level, const std::string& message,
               const JsonOutput& more = {}) {
  JsonOutput json = {
      {"event", event}, {"level", level}, {"time", TimeText(SystemClock().Wall())}, {"message", message}};
  if (more.is_object()) json.update(more);
  Write(json.dump(-1, ' ', /*ensure_ascii=*/false, JsonOutput::error_handler_t::replace) + "\n");
}

void WriteMessage(State& state, std::string_view level, const std::string& prefix, const std::string& sentence) {
  const std::string line = std::exchange(state.line, "");
  if (state.style.json) {
    WriteJson(level, level, sentence);
  } else {
    Write((line.empty() ? "" : kErase) + prefix + Printable(sentence) + "\n");
  }
}

}  // namespace

void Configure(const Style& style) {
  State& state = Shared();
  const std::lock_guard lock(state.mutex);
  state.style = style;
}

void Warning(const std::string& sentence) {
  State& state = Shared();
  const std::lock_guard lock(state.mutex);
  WriteMessage(state, "warning", "warning: ", sentence);
}

void Info(const std::string& sentence) {
  State& state = Shared();
  const std::lock_guard lock(state.mutex);
  if (!state.style.quiet) WriteMessage(state, "info", "", sentence);
}

void Detail(const std::string& sentence) {
  State& state = Shared();
  const std::lock_guard lock(state.mutex);
  if (state.style.verbose) WriteMessage(state, "debug", "", sentence);
}

void Error(const std::string& sentence, std::string_view code, int exit_status) {
  State& state = Shared();
  const std::lock_guard lock(state.mutex);
  if (!state.style.json) WriteMessage(state, "error", "error: ", sentence);
  if (state.style.json || state.style.json_error) {
    WriteJson("error", "error", sentence, {{"code", code}, {"exit_code", exit_status}});
  }
}

ProgressStyle ShownProgress() {
  State& state = Shared();
  const std::lock_guard lock(state.mutex);
  if (state.style.quiet) return ProgressStyle::kNone;
  if (state.style.json) return ProgressStyle::kJson;
  return ::isatty(STDERR_FILENO) == 1 ? ProgressStyle::kLine : ProgressStyle::kNone;
}

void Progress(const std::string& text) {
  const ProgressStyle style = ShownProgress();
  State& state = Shared();
  const std::lock_guard lock(state.mutex);
  if (style == ProgressStyle::kNone || text == state.line) return;
  if (style == ProgressStyle::kLine) {
    if (!text.empty() || !state.line.empty()) Write(kErase + Printable(text));
    state.line = text;
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  const bool is_soon = state.last_progress.has_value() && now - *state.last_progress < kJsonProgressInterval;
  if (text.empty() || is_soon) return;
  state.last_progress = now;
  WriteJson("progress", "info", text);
}

}  // namespace weightwire::messages
