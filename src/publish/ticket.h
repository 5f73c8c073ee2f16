// A ticket: what became of one call of publish.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "log/keys.h"

namespace weightwire {

enum class TicketStage : std::uint8_t {
  kQueued,            // compared and encoded; the caller has gone on
  kSpooled,           // its record is decided, and on the disk if there is a state directory
  kUploading,         // its parts or its anchor are on their way
  kCommitted,         // the version exists
  kAlreadyPublished,  // it is the newest version, with the same step: there is nothing to do
  kSkipped,           // the spool was full, and the next publish covers it
  kFailed,            // it is not published; `error` says why, or that it may be all the same (kUnknownOutcome)
};
inline constexpr std::size_t kTicketStages = 7;

[[nodiscard]] constexpr std::string_view NameOf(TicketStage stage) {
  constexpr std::array<std::string_view, kTicketStages> kNames = {
      "queued", "spooled", "uploading", "committed", "already_published", "skipped", "failed"};
  return kNames[static_cast<std::size_t>(stage)];
}

// A copy of what is known now.
struct TicketStatus {
  TicketStage stage = TicketStage::kQueued;
  std::optional<Version> version;  // unless skipped or failed before it had one
  std::uint64_t step = 0;
  std::optional<std::uint64_t> delta_bytes;   // of its parts; none if it has no delta
  std::optional<std::uint64_t> anchor_bytes;  // of its own anchor, once it is committed; none if it has a delta
  std::uint64_t changed = 0;                  // units
  // When each stage was reached, by the clock's monotonic time.
  std::array<std::optional<std::chrono::nanoseconds>, kTicketStages> times;
  // Why it failed, or, before the end, why the last attempt did; it is tried again.
  std::optional<Error> error;

  [[nodiscard]] bool IsFinal() const {
    return stage != TicketStage::kQueued && stage != TicketStage::kSpooled && stage != TicketStage::kUploading;
  }
  void Reach(TicketStage reached, std::chrono::nanoseconds now) {
    stage = reached;
    times[static_cast<std::size_t>(reached)] = now;
  }
};

}  // namespace weightwire
