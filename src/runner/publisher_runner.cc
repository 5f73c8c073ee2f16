#include "runner/publisher_runner.h"

#include <utility>

#include "store/transfer.h"

namespace weightwire {

Result<std::unique_ptr<PublisherRunner>> PublisherRunner::Open(Run run, PublisherOptions options,
                                                               PublisherTools tools) {
  std::unique_ptr<PublisherRunner> runner(new PublisherRunner(*tools.clock));
  tools.fetch_threads = TransferOptions().threads;
  tools.exclusion = [mutex = &runner->base_mutex_](const std::function<void()>& function) {
    const std::lock_guard lock(*mutex);
    function();
  };
  WW_TRY(runner->publisher_, Publisher::Open(std::move(run), std::move(options), tools));
  for (const Lane lane : kAllLanes) {
    runner->threads_.Run(*runner->publisher_, lane, [] {});
  }
  return runner;
}

Result<Ticket> PublisherRunner::Publish(const StateBits& bits, std::uint64_t step) {
  LaneThreads::Lock lock = threads_.Take();
  Admission admission = publisher_->Admit();
  while (!admission.stopped.has_value() && admission.full) {
    if (publisher_->skips_when_full()) return publisher_->TicketWithoutVersion(TicketStage::kSkipped, step);
    if (threads_.stopped()) return Error(ErrorCode::kUnavailable, "cannot publish: the publisher is being stopped");
    threads_.Wait(lock);
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
  threads_.Notify();
  return ticket;
}

bool PublisherRunner::WaitForRoom(std::chrono::nanoseconds at_most) const {
  LaneThreads::Lock lock = threads_.Take();
  const auto has_room = [&] {
    const Admission admission = publisher_->Admit();
    return threads_.stopped() || !admission.full || admission.stopped.has_value() || publisher_->skips_when_full();
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
  threads_.WaitFor(lock, at_most, [&] { return publisher_->idle() || threads_.stopped(); });
  return publisher_->idle();
}

void PublisherRunner::Stop() {
  threads_.Stop();
  const LaneThreads::Lock lock = threads_.Take();
  while (std::optional<Job> job = publisher_->Next(Lane::kSpool)) {
    publisher_->Execute(*job);
    publisher_->Finish(std::move(*job));
  }
}

PublisherStatus PublisherRunner::status() const {
  const LaneThreads::Lock lock = threads_.Take();
  return publisher_->status();
}

}  // namespace weightwire
