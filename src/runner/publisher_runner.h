// Runs a publisher with threads: one for each lane, so that spooling, uploading and anchors do not wait for each other,
// nor the caller for any of them.
//
// Two locks, neither held across an effect on a store or a disk: one for the publisher's state, one that keeps the
// caller's encoding and an anchor's reading of the base copy apart.
//
// With several ranks the board (publish/board_messages.h) belongs to the caller, who moves messages in both directions
// by the functions below, from a thread of its own.
//
// Thread safety: Publish and Refuse are called by one thread at a time; everything else by any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "log/run.h"
#include "publish/publisher.h"

namespace weightwire {

class PublisherRunner {
 public:
  // As Publisher::Open; the tools' RunLocked is the runner's own. What the tools point to must outlive it.
  static Result<std::unique_ptr<PublisherRunner>> Open(Run run, PublisherOptions options, PublisherTools tools,
                                                       std::string_view start = {});

  ~PublisherRunner() { StopThreads(); }
  PublisherRunner(const PublisherRunner&) = delete;
  PublisherRunner& operator=(const PublisherRunner&) = delete;

  // Returns as soon as the state (of a rank, its shards) is compared and encoded; it may then be changed. Waits only
  // for room, unless the publisher skips then. If the base is lost, it also waits until nothing is in flight, and
  // downloads the newest version (publish/version_maker.h). kConflict once another writer has won. With ranks an error
  // means that the call has failed on all of them.
  // While it waits it calls `while_waiting`, if given, several times a second, without a lock. That function may throw,
  // which ends the wait.
  Result<Ticket> Publish(const StateBits& bits, std::uint64_t step, const std::function<void()>& while_waiting = {});

  // A copy of the ticket, once its stage is final, the runner is stopped, or the time is over.
  TicketStatus Wait(const Ticket& ticket, std::optional<std::chrono::nanoseconds> at_most = std::nullopt) const;
  // Waits until all versions and anchors are uploaded. Returns false on timeout, after Stop(), or while disconnected.
  bool Flush(std::optional<std::chrono::nanoseconds> at_most = std::nullopt) const;

  // Ends the threads after their current jobs, and wakes all waiting callers. With a state directory every published
  // version is then durable, for the next start, except a version without a delta, and those after it, until its anchor
  // is complete. Without one, what was not sent is lost.
  void Stop();
  [[nodiscard]] PublisherStatus status() const;

  // --- several ranks ---
  [[nodiscard]] std::string start() const { return publisher_->start(); }
  // The caller could not even ask: the call fails on all ranks.
  Ticket Refuse(std::uint64_t step, const Error& why) {
    return Change([&] { return publisher_->Refuse(step, why); });
  }
  struct BoardWork : BoardOutbox {
    std::vector<std::string> wanted;  // to be delivered once they are there
  };
  // What is to be done with the board; waits up to `at_most` for something to put. What is to be put and removed is
  // returned again until BoardDone: a connection may break in between, and doing it twice is harmless.
  BoardWork NextBoardWork(std::chrono::nanoseconds at_most);
  void BoardDone();
  void Deliver(const std::string& key, const std::string& text) {
    Change([&] { publisher_->Deliver(key, text); });
  }
  void SetDisconnected(const Error& why) {
    Change([&] { publisher_->SetDisconnected(why); });
  }
  void SetConnected() {
    Change([&] { publisher_->SetConnected(); });
  }
  [[nodiscard]] std::optional<Error> disconnected() const;  // why, if so

 private:
  using Lock = std::unique_lock<std::mutex>;
  explicit PublisherRunner(const Clock& clock) : clock_(clock) {}

  // Does the publisher's jobs of a lane until the runner is stopped, on a thread of its own.
  void RunLane(Lane lane);
  void StopThreads();
  // Calls `function` with the lock held, and wakes all that wait for a change.
  template <typename Function>
  std::invoke_result_t<Function> Change(const Function& function) {
    const Lock lock(mutex_);
    changed_.notify_all();
    return function();
  }
  // Waits until `condition` holds, or the time is over.
  template <typename Condition>
  void WaitFor(Lock& lock, std::optional<std::chrono::nanoseconds> at_most, const Condition& condition) const {
    if (at_most.has_value()) {
      changed_.wait_for(lock, *at_most, condition);
    } else {
      changed_.wait(lock, condition);
    }
  }

  const Clock& clock_;
  std::mutex base_mutex_;
  mutable std::mutex mutex_;  // guards stop_, what is given and the publisher's guarded calls
  mutable std::condition_variable changed_;
  bool stop_ = false;
  std::unique_ptr<Publisher> publisher_;
  // How much of the outbox is on its way to the board.
  std::size_t given_messages_ = 0;
  std::size_t given_keys_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace weightwire
