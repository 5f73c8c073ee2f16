#include "runner/rank_runner.h"

#include <utility>

#include "store/transfer.h"

namespace weightwire {

Result<std::unique_ptr<RankRunner>> RankRunner::Open(Run run, RankOptions options, PublisherTools tools,
                                                     std::string_view start) {
  std::unique_ptr<RankRunner> runner(new RankRunner(*tools.clock));
  tools.fetch_threads = TransferOptions().threads;
  tools.exclusion = [mutex = &runner->base_mutex_](const std::function<void()>& function) {
    const std::lock_guard lock(*mutex);
    function();
  };
  const bool commits = options.rank == 0;
  WW_TRY(runner->publisher_, RankPublisher::Open(std::move(run), std::move(options), tools, start));
  for (const RankLane lane : kAllRankLanes) {
    const bool of_rank_0 = lane == RankLane::kCommit || lane == RankLane::kComplete;
    if (of_rank_0 && !commits) continue;
    runner->threads_.Run(*runner->publisher_, lane, [self = runner.get()] {
      if (self->publisher_->Tick()) self->threads_.Notify();
    });
  }
  return runner;
}

Result<Ticket> RankRunner::Publish(const StateBits& bits, std::uint64_t step) {
  LaneThreads::Lock lock = threads_.Take();
  for (bool alone = false;;) {
    const RankAdmission admission = publisher_->Admit();
    if (admission.stopped.has_value()) return *admission.stopped;
    if (admission.out_of_touch.has_value()) {
      publisher_->Refuse(step, *admission.out_of_touch);
      threads_.Notify();
      return *admission.out_of_touch;
    }
    if (admission.full || (alone && !admission.empty)) {
      if (threads_.stopped()) return Error(ErrorCode::kUnavailable, "cannot publish: the publisher is being stopped");
      threads_.Wait(lock);
      continue;
    }
    lock.unlock();
    auto draft = publisher_->Make(bits, step, admission);
    lock.lock();
    if (!draft.ok()) {
      publisher_->Refuse(step, draft.error());
      threads_.Notify();
      return draft.error();
    }
    alone = true;
    if (!draft.value().has_value()) continue;
    Ticket ticket = publisher_->Enqueue(*std::move(draft).value());
    threads_.Notify();
    return ticket;
  }
}

Ticket RankRunner::Refuse(std::uint64_t step, const Error& why) {
  const LaneThreads::Lock lock = threads_.Take();
  Ticket ticket = publisher_->Refuse(step, why);
  threads_.Notify();
  return ticket;
}

bool RankRunner::WaitForRoom(std::chrono::nanoseconds at_most) const {
  LaneThreads::Lock lock = threads_.Take();
  const auto has_room = [&] {
    const RankAdmission admission = publisher_->Admit();
    return threads_.stopped() || !admission.full || admission.stopped.has_value() || admission.out_of_touch.has_value();
  };
  threads_.WaitFor(lock, at_most, has_room);
  return has_room();
}

TicketStatus RankRunner::Wait(const Ticket& ticket, std::optional<std::chrono::nanoseconds> at_most) const {
  LaneThreads::Lock lock = threads_.Take();
  threads_.WaitFor(lock, at_most, [&] { return ticket->IsFinal() || threads_.stopped(); });
  return *ticket;
}

bool RankRunner::Drain(std::optional<std::chrono::nanoseconds> at_most) const {
  LaneThreads::Lock lock = threads_.Take();
  const auto drained = [&] { return publisher_->idle() && given_.outgoing.empty(); };
  threads_.WaitFor(lock, at_most,
                   [&] { return drained() || threads_.stopped() || publisher_->out_of_touch().has_value(); });
  return drained();
}

RankRunner::BoardWork RankRunner::NextBoardWork(std::chrono::nanoseconds at_most) {
  LaneThreads::Lock lock = threads_.Take();
  const auto take = [&] {
    for (BoardMessage& message : publisher_->TakeOutgoing()) given_.outgoing.push_back(std::move(message));
    return !given_.outgoing.empty() || threads_.stopped();
  };
  threads_.WaitFor(lock, at_most, take);
  for (std::string& key : publisher_->TakeUnneeded()) given_.unneeded.push_back(std::move(key));
  BoardWork work = given_;
  work.wanted = publisher_->Wanted();
  return work;
}

void RankRunner::BoardDone() {
  const LaneThreads::Lock lock = threads_.Take();
  given_ = {};
  threads_.Notify();
}

void RankRunner::Deliver(const std::string& key, const std::string& text) {
  const LaneThreads::Lock lock = threads_.Take();
  publisher_->Deliver(key, text);
  threads_.Notify();
}

void RankRunner::LoseTouch(const Error& why) {
  const LaneThreads::Lock lock = threads_.Take();
  publisher_->LoseTouch(why);
  threads_.Notify();
}

void RankRunner::RegainTouch() {
  const LaneThreads::Lock lock = threads_.Take();
  publisher_->RegainTouch();
  threads_.Notify();
}

std::optional<Error> RankRunner::out_of_touch() const {
  const LaneThreads::Lock lock = threads_.Take();
  return publisher_->out_of_touch();
}

PublisherStatus RankRunner::status() const {
  const LaneThreads::Lock lock = threads_.Take();
  return publisher_->status();
}

}  // namespace weightwire
