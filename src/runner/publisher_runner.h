// Runs a publisher with threads: one for each lane, so that spooling, uploading and anchors do not wait for each other,
// nor the caller for any of them.
//
// Two locks, neither held across an effect: one for the pipeline's state, one that keeps the caller's encoding and an
// anchor's reading of the base copy apart.
//
// Thread safety: Publish is called by one thread at a time; everything else by any.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "base/result.h"
#include "log/run.h"
#include "publish/publisher.h"
#include "runner/lane_threads.h"

namespace weightwire {

class PublisherRunner {
 public:
  // As Publisher::Open; the tools' exclusion is the runner's own. What the tools point to must outlive it.
  static Result<std::unique_ptr<PublisherRunner>> Open(Run run, PublisherOptions options, PublisherTools tools);

  PublisherRunner(const PublisherRunner&) = delete;
  PublisherRunner& operator=(const PublisherRunner&) = delete;

  // Returns as soon as the state is compared and encoded; it may then be changed. Waits only for room in the spool,
  // unless the publisher skips then. kMismatch once another writer has won.
  Result<Ticket> Publish(const StateBits& bits, std::uint64_t step);

  // Until Publish would not wait: true; at once if it never does. Or until the time is over: false.
  bool WaitForRoom(std::chrono::nanoseconds at_most) const;

  [[nodiscard]] TicketStatus Look(const Ticket& ticket) const;
  // Until the ticket's stage is a final one, the runner is stopped, or the time is over.
  TicketStatus Wait(const Ticket& ticket, std::optional<std::chrono::nanoseconds> at_most = std::nullopt) const;

  // Until nothing is on its way, anchors included: true. Or until the time is over or the runner is stopped: false.
  bool Drain(std::optional<std::chrono::nanoseconds> at_most = std::nullopt) const;

  // Threads end after what they are at. With a state directory all that was published is on the disk then, for the next
  // start; otherwise what was not sent is lost. Whoever waits is told.
  void Stop();

  [[nodiscard]] PublisherStatus status() const;

 private:
  explicit PublisherRunner(const Clock& clock) : threads_(clock) {}

  std::mutex base_mutex_;
  std::unique_ptr<Publisher> publisher_;  // its guarded calls: with the lock of threads_
  LaneThreads threads_;                   // ends before what it works on
};

}  // namespace weightwire
