// Runs a rank's publisher with threads: one for each lane. The board (publish/rank_messages.h) belongs to the caller,
// who brings messages to and fro by the functions below, from a thread of its own.
//
// Two locks, neither held across an effect: one for the state, one that keeps the caller's encoding and an anchor's
// reading of the base copy apart.
//
// Thread safety: Publish and Refuse are called by one thread at a time; everything else by any.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "log/run.h"
#include "publish/rank_publisher.h"
#include "runner/lane_threads.h"

namespace weightwire {

class RankRunner {
 public:
  // As RankPublisher::Open; the tools' exclusion is the runner's own. What the tools point to must outlive it.
  static Result<std::unique_ptr<RankRunner>> Open(Run run, RankOptions options, PublisherTools tools,
                                                  std::string_view start);

  RankRunner(const RankRunner&) = delete;
  RankRunner& operator=(const RankRunner&) = delete;

  [[nodiscard]] std::string start() const { return publisher_->start(); }

  // Returns as soon as the rank's shards are compared and encoded; they may then be changed. Waits only for room.
  // After an error the call has failed on all ranks.
  Result<Ticket> Publish(const StateBits& bits, std::uint64_t step);
  // The caller could not even ask: the call fails on all ranks.
  Ticket Refuse(std::uint64_t step, const Error& why);
  // Until Publish would not wait: true. Or until the time is over: false.
  bool WaitForRoom(std::chrono::nanoseconds at_most) const;

  // Until the ticket's stage is a final one, the runner is stopped, or the time is over.
  TicketStatus Wait(const Ticket& ticket, std::optional<std::chrono::nanoseconds> at_most = std::nullopt) const;
  // Until nothing is on its way: true. Or until the time is over, the runner is stopped or out of touch: false.
  bool Drain(std::optional<std::chrono::nanoseconds> at_most = std::nullopt) const;

  // --- the board ---
  struct BoardWork {
    std::vector<BoardMessage> outgoing;  // to be put
    std::vector<std::string> wanted;     // to be delivered once they are there
    std::vector<std::string> unneeded;   // to be removed
  };
  // What is to be done with the board; waits up to `at_most` for something to put. What is put and removed is given
  // again until BoardDone says that it is: a connection may break in the middle, and to do it twice is no harm.
  BoardWork NextBoardWork(std::chrono::nanoseconds at_most);
  void BoardDone();
  void Deliver(const std::string& key, const std::string& text);
  void LoseTouch(const Error& why);
  void RegainTouch();

  // Threads end after what they are at. Whoever waits is told.
  void Stop() { threads_.Stop(); }
  [[nodiscard]] PublisherStatus status() const;
  // Why rank 0 cannot be heard, if so.
  [[nodiscard]] std::optional<Error> out_of_touch() const;

 private:
  explicit RankRunner(const Clock& clock) : threads_(clock) {}

  std::mutex base_mutex_;
  std::unique_ptr<RankPublisher> publisher_;  // its guarded calls: with the lock of threads_
  BoardWork given_;                           // the same; not yet done, and without `wanted`
  LaneThreads threads_;                       // ends before what it works on
};

}  // namespace weightwire
