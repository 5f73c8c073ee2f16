// The events of a sparse tile, one change after another (spec/FORMAT.md, "Positions" and "Values"). This is the
// definition; make_events does the common case on vectors and comes here for the rest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/check.h"
#include "codec/format/order.h"
#include "codec/format/step_coding.h"
#include "codec/format/tables.h"
#include "codec/format/units.h"
#include "codec/format/waiting.h"
#include "codec/kernels/encode_kernels.h"
#include "codec/kernels/kernels.h"

namespace weightwire {

// A step takes a symbol and at most two events of raw bits, a change in a sparse tile one event more.
inline constexpr std::size_t kMaxEventsPerUnit = 4;

// Between two changes there is at most one survival for each horizon of time; two at the end.
inline std::size_t MostEvents(std::size_t changed, std::uint64_t total_time) {
  return kMaxEventsPerUnit * changed + static_cast<std::size_t>(total_time / kHorizon) + 2;
}

inline RansEvent SymbolOf(const ExpandedTables& tables, std::uint32_t unit_class, std::uint32_t symbol) {
  const SymbolEvent& event = tables.events[unit_class * tables.stride + symbol];
  WW_CHECK(event.possible);
  return event.event;
}

// The most units between two changes of which the time passed is certainly below 2^32, so that a difference of times
// modulo 2^32 tells it.
inline std::uint32_t SafeGap(const ExpandedTables& tables, std::uint64_t total_time) {
  constexpr std::uint32_t kMost = std::numeric_limits<std::uint32_t>::max();
  if (total_time <= kMost) return kMost;
  return kMost / *std::max_element(tables.rates.begin(), tables.rates.end());
}

// Writes the events of one tile; single-threaded, over the caller's memory. Append is called once for every change, in
// order, then Finish.
template <typename Unit>
class SparseEventWriter {
 public:
  SparseEventWriter(const SparseChanges& changes, const ExpandedTables& tables, RansEvent* events)
      : changes_(changes), tables_(tables), safe_gap_(SafeGap(tables, changes.total_time)), next_event_(events) {}

  void Append(std::size_t k) {
    const std::uint32_t index = changes_.positions[k];
    const Unit old_unit = LoadUnit<Unit>(changes_.old_units, k);
    const std::uint32_t field = FieldOf(old_unit);
    const std::uint32_t next = k == 0 ? 0 : changes_.positions[k - 1] + 1;
    const std::uint32_t rate = tables_.rate_of_field[field];
    std::uint32_t wait = changes_.ends[k] - rate - EndBefore(k);
    if (wait >= kHorizon || index - next > safe_gap_) [[unlikely]] {
      wait = Survive(next, index);
      if (wait >= kHorizon) {
        *next_event_++ = SurvivalEvent(Waiting(kHorizon));
        wait = 0;
      }
    }
    const Step step = StepBetween<Unit>(old_unit, LoadUnit<Unit>(changes_.new_units, k), tables_.rule.order);
    *next_event_++ = ChangeEvent(Waiting(wait), Waiting(std::min(wait + rate, kHorizon)), step.down);
    const Bucket bucket = BucketOf(step.magnitude);
    *next_event_++ = SymbolOf(tables_, tables_.class_of_field[field], bucket.symbol);
    next_event_ = AppendRawBits(bucket.extra, bucket.extra_bits, next_event_);
    single_steps_ += step.magnitude == 1 ? 1 : 0;
  }

  // What comes after the last change; returns the end of the events.
  RansEvent* Finish() {
    const std::uint32_t next = changes_.positions[changes_.changed - 1] + 1;
    std::uint32_t rest = static_cast<std::uint32_t>(changes_.total_time) - EndBefore(changes_.changed);
    if (rest >= kHorizon || changes_.tile_count - next > safe_gap_) rest = Survive(next, changes_.tile_count);
    if (rest > kHorizon) {
      *next_event_++ = SurvivalEvent(Waiting(kHorizon));
      *next_event_++ = SurvivalEvent(Waiting(0));
    } else {
      *next_event_++ = SurvivalEvent(Waiting(rest));
    }
    return next_event_;
  }

  // For whoever writes the events of some changes instead of Append: up to `end`.
  [[nodiscard]] RansEvent* next_event() const { return next_event_; }
  void Skip(RansEvent* end, std::uint32_t single_steps) {
    next_event_ = end;
    single_steps_ += single_steps;
  }

  [[nodiscard]] std::uint32_t single_steps() const { return single_steps_; }
  [[nodiscard]] std::uint32_t safe_gap() const { return safe_gap_; }

 private:
  [[nodiscard]] std::uint32_t FieldOf(Unit unit) const {
    return static_cast<std::uint32_t>(unit >> tables_.rule.shift) & tables_.rule.FieldMask();
  }
  [[nodiscard]] std::uint32_t RateAt(std::uint32_t index) const {
    return tables_.rate_of_field[FieldOf(LoadUnit<Unit>(changes_.tile_units, index))];
  }
  // When the unit changed before change k had been passed, modulo 2^32.
  [[nodiscard]] std::uint32_t EndBefore(std::size_t k) const { return k == 0 ? 0 : changes_.ends[k - 1]; }

  // Waits from unit `next` on, one event for each of a horizon or more, until unit `until` is nearer than that or is
  // the next one; returns how far it is then.
  std::uint32_t Survive(std::uint32_t next, std::uint32_t until) {
    for (;;) {
      std::uint32_t time = 0;
      next = FirstAtHorizon(next, until, time);
      if (next >= until) return time;
      *next_event_++ = SurvivalEvent(Waiting(kHorizon));
    }
  }

  // The first unit that is a horizon or more away from unit `next`, but at most `until`; `time` becomes how far it is.
  std::uint32_t FirstAtHorizon(std::uint32_t next, std::uint32_t until, std::uint32_t& time) const {
    if (tables_.uniform) {
      const std::uint32_t rate = tables_.rates[0];
      const std::uint32_t units = std::min((kHorizon + rate - 1) / rate, until - next);
      time = units * rate;
      return next + units;
    }
    std::uint32_t i = next;
    const auto walk = [&](std::uint32_t end) {
      for (; i < end && time < kHorizon; ++i) time += RateAt(i);
    };
    walk(std::min(until, (next + kTimeBlock - 1) / kTimeBlock * kTimeBlock));
    if (i >= until || time >= kHorizon) return i;
    // Whole blocks: a block takes less than 2^27, so a time modulo 2^32 cannot pass the horizon unseen.
    const std::uint32_t zero = changes_.times[i / kTimeBlock] - time;
    while (i + kTimeBlock <= until && changes_.times[i / kTimeBlock + 1] - zero < kHorizon) i += kTimeBlock;
    time = changes_.times[i / kTimeBlock] - zero;
    walk(until);
    return i;
  }

  const SparseChanges& changes_;
  const ExpandedTables& tables_;
  std::uint32_t safe_gap_;
  RansEvent* next_event_;
  std::uint32_t single_steps_ = 0;
};

}  // namespace weightwire
