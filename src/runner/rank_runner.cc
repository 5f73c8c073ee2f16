#include "runner/rank_runner.h"

#include <utility>

namespace weightwire {

Result<std::unique_ptr<RankRunner>> RankRunner::Open(Run run, RankOptions options, PublisherTools tools,
                                                     std::string_view start) {
  std::unique_ptr<RankRunner> runner(new RankRunner(*tools.clock));
  tools.exclusion = [mutex = &runner->base_mutex_](const std::function<void()>& function) {
    const std::lock_guard lock(*mutex);
    function();
  };
  const bool commits = options.rank == 0;
  WW_TRY(runner->publisher_, RankPublisher::Open(std::move(run), std::move(options), tools, start));
  for (const RankLane lane : kAllRankLanes) {
    const bool of_rank_0 = lane == RankLane::kCommit || lane == RankLane::kComplete;
    if (of_rank_0 && !commits) continue;
    runner->threads_.emplace_back([self = runner.get(), lane] { self->RunLane(lane); });
  }
  return runner;
}

RankRunner::~RankRunner() { Stop(); }

void RankRunner::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void RankRunner::RunLane(RankLane lane) {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (publisher_->Tick()) changed_.notify_all();
    std::optional<RankJob> job = publisher_->Next(lane);
    if (!job.has_value()) {
      const auto due = publisher_->Due(lane);
      if (due.has_value()) {
        changed_.wait_for(lock, *due - clock_.Monotonic());
      } else {
        changed_.wait(lock);
      }
      continue;
    }
    lock.unlock();
    publisher_->Execute(*job);
    lock.lock();
    publisher_->Finish(std::move(*job));
    changed_.notify_all();
  }
}

Result<Ticket> RankRunner::Publish(const StateBits& bits, std::uint64_t step) {
  std::unique_lock lock(mutex_);
  for (bool alone = false;;) {
    const RankAdmission admission = publisher_->Admit();
    if (admission.stopped.has_value()) return *admission.stopped;
    if (admission.out_of_touch.has_value()) {
      publisher_->Refuse(step, *admission.out_of_touch);
      changed_.notify_all();
      return *admission.out_of_touch;
    }
    if (admission.full || (alone && !admission.empty)) {
      if (stop_) return Error(ErrorCode::kUnavailable, "cannot publish: the publisher is being stopped");
      changed_.wait(lock);
      continue;
    }
    lock.unlock();
    auto draft = publisher_->Make(bits, step, admission);
    lock.lock();
    if (!draft.ok()) {
      publisher_->Refuse(step, draft.error());
      changed_.notify_all();
      return draft.error();
    }
    alone = true;
    if (!draft.value().has_value()) continue;
    Ticket ticket = publisher_->Enqueue(*std::move(draft).value());
    changed_.notify_all();
    return ticket;
  }
}

Ticket RankRunner::Refuse(std::uint64_t step, const Error& why) {
  const std::lock_guard lock(mutex_);
  Ticket ticket = publisher_->Refuse(step, why);
  changed_.notify_all();
  return ticket;
}

bool RankRunner::WaitForRoom(std::chrono::nanoseconds at_most) const {
  std::unique_lock lock(mutex_);
  const auto has_room = [&] {
    const RankAdmission admission = publisher_->Admit();
    return stop_ || !admission.full || admission.stopped.has_value() || admission.out_of_touch.has_value();
  };
  WaitFor(lock, at_most, has_room);
  return has_room();
}

TicketStatus RankRunner::Look(const Ticket& ticket) const {
  const std::lock_guard lock(mutex_);
  return *ticket;
}

template <typename Condition>
void RankRunner::WaitFor(std::unique_lock<std::mutex>& lock, std::optional<std::chrono::nanoseconds> at_most,
                         Condition&& condition) const {
  if (at_most.has_value()) {
    changed_.wait_for(lock, *at_most, std::forward<Condition>(condition));
  } else {
    changed_.wait(lock, std::forward<Condition>(condition));
  }
}

TicketStatus RankRunner::Wait(const Ticket& ticket, std::optional<std::chrono::nanoseconds> at_most) const {
  std::unique_lock lock(mutex_);
  WaitFor(lock, at_most, [&] { return ticket->IsFinal() || stop_; });
  return *ticket;
}

bool RankRunner::Drain(std::optional<std::chrono::nanoseconds> at_most) const {
  std::unique_lock lock(mutex_);
  const auto drained = [&] { return publisher_->idle() && outgoing_.empty(); };
  WaitFor(lock, at_most, [&] { return drained() || stop_ || publisher_->out_of_touch().has_value(); });
  return drained();
}

RankRunner::BoardWork RankRunner::NextBoardWork(std::chrono::nanoseconds at_most) {
  std::unique_lock lock(mutex_);
  const bool put = !std::exchange(outgoing_, {}).empty();  // what was given out last
  BoardWork work;
  const auto take = [&] {
    outgoing_ = publisher_->TakeOutgoing();
    return !outgoing_.empty() || stop_;
  };
  WaitFor(lock, at_most, take);
  work.outgoing = outgoing_;
  work.wanted = publisher_->Wanted();
  work.unneeded = publisher_->TakeUnneeded();
  lock.unlock();
  if (put) changed_.notify_all();
  return work;
}

void RankRunner::Deliver(const std::string& key, const std::string& text) {
  const std::lock_guard lock(mutex_);
  publisher_->Deliver(key, text);
  changed_.notify_all();
}

void RankRunner::LoseTouch(const Error& why) {
  const std::lock_guard lock(mutex_);
  publisher_->LoseTouch(why);
  changed_.notify_all();
}

std::optional<Error> RankRunner::out_of_touch() const {
  const std::lock_guard lock(mutex_);
  return publisher_->out_of_touch();
}

PublisherStatus RankRunner::status() const {
  const std::lock_guard lock(mutex_);
  return publisher_->status();
}

}  // namespace weightwire
