#include "runner/publisher_runner.h"

#include <utility>

namespace weightwire {

Result<std::unique_ptr<PublisherRunner>> PublisherRunner::Open(Run run, PublisherOptions options,
                                                               PublisherTools tools) {
  std::unique_ptr<PublisherRunner> runner(new PublisherRunner(*tools.clock));
  tools.exclusion = [mutex = &runner->base_mutex_](const std::function<void()>& function) {
    const std::lock_guard lock(*mutex);
    function();
  };
  WW_TRY(runner->publisher_, Publisher::Open(std::move(run), std::move(options), tools));
  for (const Lane lane : kAllLanes) {
    runner->threads_.emplace_back([self = runner.get(), lane] { self->RunLane(lane); });
  }
  return runner;
}

PublisherRunner::~PublisherRunner() { Stop(); }

void PublisherRunner::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void PublisherRunner::RunLane(Lane lane) {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    std::optional<Job> job = publisher_->Next(lane);
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

Result<Ticket> PublisherRunner::Publish(const StateBits& bits, std::uint64_t step) {
  std::unique_lock lock(mutex_);
  Admission admission = publisher_->Admit();
  while (!admission.stopped.has_value() && admission.full) {
    if (publisher_->skips_when_full()) return publisher_->TicketWithoutVersion(TicketStage::kSkipped, step);
    if (stop_) return Error(ErrorCode::kUnavailable, "cannot publish: the publisher is being stopped");
    changed_.wait(lock);
    admission = publisher_->Admit();
  }
  if (admission.stopped.has_value()) return *admission.stopped;
  lock.unlock();
  WW_TRY(std::optional<Draft> draft, publisher_->Make(bits, step, admission));
  if (!draft.has_value()) {
    Ticket ticket = publisher_->TicketWithoutVersion(TicketStage::kAlreadyPublished, step);
    ticket->version = admission.newest_version;
    return ticket;
  }
  lock.lock();
  Ticket ticket = publisher_->Enqueue(std::move(*draft));
  lock.unlock();
  changed_.notify_all();
  return ticket;
}

bool PublisherRunner::WaitForRoom(std::chrono::nanoseconds at_most) const {
  std::unique_lock lock(mutex_);
  const auto has_room = [&] {
    const Admission admission = publisher_->Admit();
    return stop_ || !admission.full || admission.stopped.has_value() || publisher_->skips_when_full();
  };
  WaitFor(lock, at_most, has_room);
  return has_room();
}

TicketStatus PublisherRunner::Look(const Ticket& ticket) const {
  const std::lock_guard lock(mutex_);
  return *ticket;
}

template <typename Condition>
void PublisherRunner::WaitFor(std::unique_lock<std::mutex>& lock, std::optional<std::chrono::nanoseconds> at_most,
                              Condition&& condition) const {
  if (at_most.has_value()) {
    changed_.wait_for(lock, *at_most, std::forward<Condition>(condition));
  } else {
    changed_.wait(lock, std::forward<Condition>(condition));
  }
}

TicketStatus PublisherRunner::Wait(const Ticket& ticket, std::optional<std::chrono::nanoseconds> at_most) const {
  std::unique_lock lock(mutex_);
  WaitFor(lock, at_most, [&] { return ticket->IsFinal() || stop_; });
  return *ticket;
}

bool PublisherRunner::Drain(std::optional<std::chrono::nanoseconds> at_most) const {
  std::unique_lock lock(mutex_);
  WaitFor(lock, at_most, [&] { return publisher_->idle() || stop_; });
  return publisher_->idle();
}

PublisherStatus PublisherRunner::status() const {
  const std::lock_guard lock(mutex_);
  return publisher_->status();
}

}  // namespace weightwire
