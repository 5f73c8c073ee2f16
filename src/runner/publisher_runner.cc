#include "runner/publisher_runner.h"

#include <utility>

#include "store/transfer.h"

namespace weightwire {

Result<std::unique_ptr<PublisherRunner>> PublisherRunner::Open(Run run, PublisherOptions options, PublisherTools tools,
                                                               std::string_view start) {
  std::unique_ptr<PublisherRunner> runner(new PublisherRunner(*tools.clock));
  tools.fetch_threads = TransferOptions().threads;
  tools.run_locked = [mutex = &runner->base_mutex_](const std::function<void()>& function) {
    const std::lock_guard lock(*mutex);
    function();
  };
  WW_TRY(runner->publisher_, Publisher::Open(std::move(run), std::move(options), tools, start));
  for (const Lane lane : kAllLanes) {
    if (!runner->publisher_->Uses(lane)) continue;
    runner->threads_.Run(*runner->publisher_, lane, [self = runner.get()] {
      if (self->publisher_->Tick()) self->threads_.Notify();
    });
  }
  return runner;
}

Result<Ticket> PublisherRunner::Publish(const StateBits& bits, std::uint64_t step) {
  LaneThreads::Lock lock = threads_.Take();
  for (bool until_empty = false;;) {
    const Admission admission = publisher_->Admit();
    if (admission.stopped.has_value()) return *admission.stopped;
    if (admission.disconnected.has_value()) {
      publisher_->Refuse(step, *admission.disconnected);
      threads_.Notify();
      return *admission.disconnected;
    }
    if (admission.full || (until_empty && !admission.empty)) {
      if (publisher_->skips_when_full()) return publisher_->Skip(step);
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
    until_empty = true;
    if (!draft.value().has_value()) continue;
    Ticket ticket = publisher_->Enqueue(*std::move(draft).value());
    threads_.Notify();
    return ticket;
  }
}

bool PublisherRunner::WaitForRoom(std::chrono::nanoseconds at_most) const {
  LaneThreads::Lock lock = threads_.Take();
  const auto has_room = [&] {
    const Admission admission = publisher_->Admit();
    return threads_.stopped() || !admission.full || admission.stopped.has_value() ||
           admission.disconnected.has_value() || publisher_->skips_when_full();
  };
  threads_.WaitFor(lock, at_most, has_room);
  return has_room();
}

TicketStatus PublisherRunner::Look(const Ticket& ticket) const {
  const LaneThreads::Lock lock = threads_.Take();
  return *ticket;
}

TicketStatus PublisherRunner::Wait(const Ticket& ticket, std::optional<std::chrono::nanoseconds> at_most) const {
  LaneThreads::Lock lock = threads_.Take();
  threads_.WaitFor(lock, at_most, [&] { return ticket->IsFinal() || threads_.stopped(); });
  return *ticket;
}

bool PublisherRunner::Drain(std::optional<std::chrono::nanoseconds> at_most) const {
  LaneThreads::Lock lock = threads_.Take();
  const auto drained = [&] { return publisher_->idle() && given_.outgoing.empty(); };
  threads_.WaitFor(lock, at_most,
                   [&] { return drained() || threads_.stopped() || publisher_->disconnected().has_value(); });
  return drained();
}

void PublisherRunner::Stop() {
  threads_.Stop();
  LaneThreads::Lock lock = threads_.Take();
  if (!publisher_->has_spool()) return;
  while (std::optional<Job> job = publisher_->Next(Lane::kDecide)) {
    lock.unlock();
    publisher_->Execute(*job);
    lock.lock();
    publisher_->Finish(std::move(*job));
  }
}

PublisherStatus PublisherRunner::status() const {
  const LaneThreads::Lock lock = threads_.Take();
  return publisher_->status();
}

// --- several ranks ---

Ticket PublisherRunner::Refuse(std::uint64_t step, const Error& why) {
  const LaneThreads::Lock lock = threads_.Take();
  Ticket ticket = publisher_->Refuse(step, why);
  threads_.Notify();
  return ticket;
}

PublisherRunner::BoardWork PublisherRunner::NextBoardWork(std::chrono::nanoseconds at_most) {
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

void PublisherRunner::BoardDone() {
  const LaneThreads::Lock lock = threads_.Take();
  given_ = {};
  threads_.Notify();
}

void PublisherRunner::Deliver(const std::string& key, const std::string& text) {
  const LaneThreads::Lock lock = threads_.Take();
  publisher_->Deliver(key, text);
  threads_.Notify();
}

void PublisherRunner::SetDisconnected(const Error& why) {
  const LaneThreads::Lock lock = threads_.Take();
  publisher_->SetDisconnected(why);
  threads_.Notify();
}

void PublisherRunner::SetConnected() {
  const LaneThreads::Lock lock = threads_.Take();
  publisher_->SetConnected();
  threads_.Notify();
}

std::optional<Error> PublisherRunner::disconnected() const {
  const LaneThreads::Lock lock = threads_.Take();
  return publisher_->disconnected();
}

}  // namespace weightwire
