#include "runner/publisher_runner.h"

#include <utility>

#include "base/signals_blocked.h"
#include "runner/policy.h"
#include "store/policy.h"

namespace weightwire {

Result<std::unique_ptr<PublisherRunner>> PublisherRunner::Open(Run run, PublisherOptions options, PublisherTools tools,
                                                               std::string_view start) {
  std::unique_ptr<PublisherRunner> runner(new PublisherRunner(*tools.clock));
  tools.fetch_threads = kTransferThreads;
  tools.run_locked = [mutex = &runner->base_mutex_](const std::function<void()>& function) {
    const std::lock_guard lock(*mutex);
    function();
  };
  WW_TRY(runner->publisher_, Publisher::Open(std::move(run), std::move(options), tools, start));
  const SignalsBlocked blocked;
  for (const Lane lane : kAllLanes) {
    if (!runner->publisher_->Uses(lane)) continue;
    runner->threads_.emplace_back([self = runner.get(), lane] { self->RunLane(lane); });
  }
  return runner;
}

void PublisherRunner::RunLane(Lane lane) {
  Lock lock(mutex_);
  while (!stop_) {
    if (publisher_->Tick()) changed_.notify_all();
    std::optional<Job> job = publisher_->Next(lane);
    if (!job.has_value()) {
      if (const auto due = publisher_->Due(lane); due.has_value()) {
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

void PublisherRunner::StopThreads() {
  Change([&] { stop_ = true; });
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

Result<Ticket> PublisherRunner::Publish(const StateBits& bits, std::uint64_t step,
                                        const std::function<void()>& while_waiting) {
  Lock lock(mutex_);
  for (bool until_empty = false;;) {
    const Admission admission = publisher_->Admit();
    if (admission.stopped.has_value()) return *admission.stopped;
    if (admission.disconnected.has_value()) {
      publisher_->Refuse(step, *admission.disconnected);
      changed_.notify_all();
      return *admission.disconnected;
    }
    if (admission.full || (until_empty && !admission.empty)) {
      if (publisher_->skips_when_full()) return publisher_->Skip(step);
      if (stop_) return Error(ErrorCode::kUnavailable, "cannot publish: the publisher is being stopped");
      changed_.wait_for(lock, kInterruptCheckInterval);
      lock.unlock();
      if (while_waiting != nullptr) while_waiting();
      lock.lock();
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
    until_empty = true;
    if (!draft.value().has_value()) continue;
    Ticket ticket = publisher_->Enqueue(*std::move(draft).value());
    changed_.notify_all();
    return ticket;
  }
}

TicketStatus PublisherRunner::Wait(const Ticket& ticket, std::optional<std::chrono::nanoseconds> at_most) const {
  Lock lock(mutex_);
  WaitFor(lock, at_most, [&] { return ticket->IsFinal() || stop_; });
  return *ticket;
}

bool PublisherRunner::Flush(std::optional<std::chrono::nanoseconds> at_most) const {
  Lock lock(mutex_);
  WaitFor(lock, at_most, [&] { return publisher_->idle() || stop_ || publisher_->disconnected().has_value(); });
  return publisher_->idle();
}

void PublisherRunner::Stop() {
  StopThreads();
  Lock lock(mutex_);
  if (!publisher_->has_spool()) return;
  while (std::optional<Job> job = publisher_->Next(Lane::kDecide)) {
    lock.unlock();
    publisher_->Execute(*job);
    lock.lock();
    publisher_->Finish(std::move(*job));
  }
}

PublisherStatus PublisherRunner::status() const {
  const Lock lock(mutex_);
  return publisher_->status();
}

// --- several ranks ---

PublisherRunner::BoardWork PublisherRunner::NextBoardWork(std::chrono::nanoseconds at_most) {
  Lock lock(mutex_);
  BoardOutbox& outbox = publisher_->outbox();
  WaitFor(lock, at_most, [&] { return !outbox.outgoing.empty() || stop_; });
  given_messages_ = outbox.outgoing.size();
  given_keys_ = outbox.unneeded.size();
  return {outbox, publisher_->Wanted()};
}

void PublisherRunner::BoardDone() {
  Change([&] {
    BoardOutbox& outbox = publisher_->outbox();
    const auto erase_first = [](auto& list, std::size_t count) {
      list.erase(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(count));
    };
    erase_first(outbox.outgoing, std::exchange(given_messages_, 0));
    erase_first(outbox.unneeded, std::exchange(given_keys_, 0));
  });
}

std::optional<Error> PublisherRunner::disconnected() const {
  const Lock lock(mutex_);
  return publisher_->disconnected();
}

}  // namespace weightwire
