// Runs a publisher with threads: one for each lane, so that spooling, uploading and anchors do not wait for each other,
// nor the caller for any of them.
//
// Two locks, neither held across an effect: one for the pipeline's state, one that keeps the caller's encoding and an
// anchor's reading of the base copy apart.
//
// Thread safety: Publish is called by one thread at a time; everything else by any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "log/run.h"
#include "publish/publisher.h"

namespace weightwire {

class PublisherRunner {
 public:
  // As Publisher::Open; the tools' exclusion is the runner's own. What the tools point to must outlive it.
  static Result<std::unique_ptr<PublisherRunner>> Open(Run run, PublisherOptions options, PublisherTools tools);

  // Stops.
  ~PublisherRunner();
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

  // Threads end after what they are at. What is spooled stays there for the next start; what is in memory is lost.
  // Whoever waits is told.
  void Stop();

  [[nodiscard]] PublisherStatus status() const;

 private:
  explicit PublisherRunner(const Clock& clock) : clock_(clock) {}
  void RunLane(Lane lane);
  template <typename Condition>
  void WaitFor(std::unique_lock<std::mutex>& lock, std::optional<std::chrono::nanoseconds> at_most,
               Condition&& condition) const;

  const Clock& clock_;
  std::mutex base_mutex_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::unique_ptr<Publisher> publisher_;  // its guarded calls: by mutex_
  bool stop_ = false;                     // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace weightwire
