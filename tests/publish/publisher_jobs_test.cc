// A publisher's jobs, executed by hand: what is due when, and what comes of outcomes that a store seldom gives.
#include <gtest/gtest.h>

#include "publish/world.h"

namespace weightwire::testing {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

class PublisherJobs : public ::testing::Test {
 protected:
  PublisherJobs() : process_(world_, Options()) {
    EXPECT_TRUE(process_.Open().ok());
    process_.MustPublish(model_, step_++);
    process_.WorkUntilIdle();
  }

  // The next version. It is queued, and nothing has been done for it.
  Ticket Publish() {
    model_ = Trained(model_, step_);
    return process_.MustPublish(model_, step_++);
  }
  template <typename J>
  [[nodiscard]] J MustGet(Lane lane) {
    auto job = process_->Next(lane);
    EXPECT_TRUE(job.has_value());
    return std::get<J>(std::move(*job));
  }
  template <typename J>
  void ExecuteAndFinish(J job) {
    Job any = std::move(job);
    process_->Execute(any);
    process_->Finish(std::move(any));
  }
  void Decide() { ExecuteAndFinish(MustGet<DecideJob>(Lane::kDecide)); }
  void Commit() { ExecuteAndFinish(MustGet<CommitJob>(Lane::kCommit)); }
  static Id IdOf(const ShareJob& job) { return static_cast<const AnchorWriter&>(*job.share).subject().name.id; }

  static PublisherOptions Options() {
    PublisherOptions options;
    options.anchor_every = 2;
    options.anchor_percent = 0;
    return options;
  }

  World world_;
  Model model_ = SmallModel(1);
  std::uint64_t step_ = 0;
  Process process_;
};

TEST_F(PublisherJobs, ARecordIsMadeFromItsParent) {
  const auto parent = process_.MustPublish(model_, 0)->version;
  EXPECT_EQ(parent, 0u);
  Publish();
  Publish();
  auto first = MustGet<DecideJob>(Lane::kDecide);
  // One at a time: the next needs its bytes.
  EXPECT_FALSE(process_->Next(Lane::kDecide).has_value());
  Job executed = std::move(first);
  process_->Execute(executed);
  const MadeRecord made = *std::get<DecideJob>(executed).made;
  process_->Finish(std::move(executed));
  const Record& record = made.known.record;
  EXPECT_EQ(record.parent, Run::Open(world_.bucket).value().ReadRecord(0).value()->hash);
  EXPECT_EQ(record.chain, 0u);
  EXPECT_EQ(record.delta_bytes, record.OwnDeltaBytes());
  auto second = MustGet<DecideJob>(Lane::kDecide);
  EXPECT_EQ(second.request.parent->hash, Sha256Of(made.json));
  executed = std::move(second);
  process_->Execute(executed);
  const Record& next = std::get<DecideJob>(executed).made->known.record;
  EXPECT_EQ(next.parent, Sha256Of(made.json));
  EXPECT_EQ(next.delta_bytes, record.delta_bytes + next.OwnDeltaBytes());
}

TEST_F(PublisherJobs, VersionsAreCommittedInOrderOneAtATime) {
  const Ticket one = Publish();
  const Ticket two = Publish();
  EXPECT_FALSE(process_->Next(Lane::kCommit).has_value());
  Decide();
  Decide();
  EXPECT_EQ(one->stage, TicketStage::kSpooled);
  auto commit = MustGet<CommitJob>(Lane::kCommit);
  EXPECT_EQ(commit.made.known.record.version, 1u);
  EXPECT_FALSE(commit.again);
  EXPECT_EQ(one->stage, TicketStage::kUploading);
  EXPECT_FALSE(process_->Next(Lane::kCommit).has_value());
  commit.error = Error(ErrorCode::kUnavailable, "gone");
  process_->Finish(std::move(commit));
  EXPECT_EQ(process_->Due(Lane::kCommit), world_.clock.Monotonic() + seconds(1));
  EXPECT_FALSE(process_->Next(Lane::kCommit).has_value());
  world_.clock.Advance(seconds(1));
  commit = MustGet<CommitJob>(Lane::kCommit);
  EXPECT_EQ(commit.made.known.record.version, 1u);
  EXPECT_TRUE(commit.again);
  ExecuteAndFinish(std::move(commit));
  EXPECT_EQ(one->stage, TicketStage::kCommitted);
  EXPECT_EQ(MustGet<CommitJob>(Lane::kCommit).made.known.record.version, 2u);
  EXPECT_EQ(two->stage, TicketStage::kUploading);
}

TEST_F(PublisherJobs, AFailedVersionTakesThoseAfterItAlong) {
  const Ticket one = Publish();
  const Ticket two = Publish();
  const Ticket three = Publish();
  Decide();
  EXPECT_EQ(process_->Admit().safe, 1u);
  const Admission admission = process_->Admit();
  auto late = process_->Make(BitsOf(Trained(model_, 99)), 99, admission);
  auto decide = MustGet<DecideJob>(Lane::kDecide);
  decide.error = Error(ErrorCode::kIo, "full");
  process_->Finish(std::move(decide));
  EXPECT_EQ(one->stage, TicketStage::kSpooled);
  EXPECT_EQ(two->stage, TicketStage::kFailed);
  EXPECT_EQ(three->stage, TicketStage::kFailed);
  EXPECT_EQ(three->error->message(), "full");
  // What was made from them before this was known fails as well; what is made after it does not.
  EXPECT_EQ(process_->Enqueue(*std::move(late).value())->stage, TicketStage::kFailed);
  EXPECT_EQ(process_->Admit().newest_serial, 1u);
  const Ticket next = Publish();
  EXPECT_EQ(next->stage, TicketStage::kQueued);
  EXPECT_EQ(next->version, 2u);
  process_.WorkUntilIdle();
  EXPECT_EQ(ReadWholeRun(world_.bucket).back().model, model_);
}

TEST_F(PublisherJobs, ALostRaceStopsEverything) {
  const Ticket one = Publish();
  const Ticket two = Publish();
  Decide();
  auto decide = MustGet<DecideJob>(Lane::kDecide);
  auto commit = MustGet<CommitJob>(Lane::kCommit);
  commit.outcome = CommitJob::Outcome::kStopped;
  commit.error = Error(ErrorCode::kConflict, "another writer");
  process_->Finish(std::move(commit));
  // A job that was being executed then changes nothing.
  ExecuteAndFinish(std::move(decide));
  EXPECT_EQ(one->stage, TicketStage::kFailed);
  EXPECT_EQ(two->stage, TicketStage::kFailed);
  EXPECT_TRUE(process_->Admit().stopped.has_value());
  world_.clock.Advance(hours(1));
  for (const Lane lane : kAllLanes) EXPECT_FALSE(process_->Next(lane).has_value());
}

TEST_F(PublisherJobs, AVersionWithoutADeltaWaitsForItsAnchorAndTheOthersForIt) {
  World world;
  Process process(world, Options());
  ASSERT_TRUE(process.Open().ok());
  const Ticket first = process.MustPublish(SmallModel(1), 0);
  process.MustPublish(SmallModel(2), 1);
  for (int i = 0; i < 10 && first->stage != TicketStage::kSpooled; ++i) {
    EXPECT_FALSE(process->Next(Lane::kDecide).has_value());
    auto job = process->Next(Lane::kUpload);
    ASSERT_TRUE(job.has_value());
    EXPECT_EQ(first->stage, TicketStage::kUploading);
    process->Execute(*job);
    const bool complete = std::get<ShareJob>(*job).complete;
    process->Finish(std::move(*job));
    if (complete) break;
  }
  auto job = process->Next(Lane::kDecide);
  ASSERT_TRUE(job.has_value());
  process->Execute(*job);
  const Record record = std::get<DecideJob>(*job).made->known.record;
  process->Finish(std::move(*job));
  EXPECT_FALSE(record.delta.has_value());
  EXPECT_EQ(record.chain, 0u);
  ASSERT_TRUE(record.anchor.has_value());
  EXPECT_EQ(record.anchor->name.version, 0u);
  // The next one names its anchor, although it is not committed yet.
  job = process->Next(Lane::kDecide);
  ASSERT_TRUE(job.has_value());
  process->Execute(*job);
  EXPECT_EQ(std::get<DecideJob>(*job).made->known.record.anchor, record.anchor);
}

TEST_F(PublisherJobs, AnAnchorThatTakesTooLongIsStartedAgainUnderAnotherId) {
  Publish();
  Publish();
  EXPECT_FALSE(process_->Next(Lane::kAnchor).has_value()) << "its version is not committed";
  Decide();
  Decide();
  Commit();
  Commit();
  auto job = MustGet<ShareJob>(Lane::kAnchor);
  const Id id = IdOf(job);
  process_->Finish(std::move(job));
  world_.clock.Advance(hours(12));
  job = MustGet<ShareJob>(Lane::kAnchor);
  EXPECT_EQ(IdOf(job), id);
  process_->Finish(std::move(job));
  // What was sent is discarded by a job of its own.
  world_.clock.Advance(hours(1));
  job = MustGet<ShareJob>(Lane::kAnchor);
  EXPECT_TRUE(job.discard);
  EXPECT_EQ(IdOf(job), id);
  process_->Finish(std::move(job));
  job = MustGet<ShareJob>(Lane::kAnchor);
  EXPECT_FALSE(job.discard);
  EXPECT_NE(IdOf(job), id);
}

class AnchorsThatFallBehind : public PublisherJobs {
 protected:
  // Publishes and commits the next version. The anchor that it brings, if any.
  std::optional<ShareJob> Next() {
    Publish();
    Decide();
    Commit();
    auto job = process_->Next(Lane::kAnchor);
    while (job.has_value() && std::get<ShareJob>(*job).discard) {
      process_->Execute(*job);
      process_->Finish(std::move(*job));
      job = process_->Next(Lane::kAnchor);
    }
    if (!job.has_value()) return std::nullopt;
    return std::get<ShareJob>(std::move(*job));
  }
  // Versions until the next anchor is started, which is then abandoned.
  int VersionsUntilTheNextIsAbandoned() {
    for (int versions = 1; versions < 1000; ++versions) {
      auto job = Next();
      if (!job.has_value()) continue;
      job->error = Error(ErrorCode::kMismatch, "the base has moved on");
      process_->Finish(std::move(*job));
      return versions;
    }
    ADD_FAILURE() << "no anchor is started any more";
    return 0;
  }
};

// AnchorBackoff's own test has the rest of the row.
TEST_F(AnchorsThatFallBehind, AreStartedLaterAndLaterUntilOneIsComplete) {
  EXPECT_EQ(VersionsUntilTheNextIsAbandoned(), 2);  // one every two versions
  EXPECT_NE(process_->status().anchor_error->message().find("weightwire anchor"), std::string::npos);
  EXPECT_EQ(VersionsUntilTheNextIsAbandoned(), 16);
  EXPECT_EQ(VersionsUntilTheNextIsAbandoned(), 32);
  EXPECT_EQ(VersionsUntilTheNextIsAbandoned(), 64);
  // Once one gets through, all is as in the beginning.
  std::optional<ShareJob> job;
  while (!job.has_value()) job = Next();
  process_->Finish(std::move(*job));
  process_.WorkUntilIdle();
  EXPECT_FALSE(process_->status().anchor_error.has_value());
  EXPECT_EQ(VersionsUntilTheNextIsAbandoned(), 2);
}

}  // namespace
}  // namespace weightwire::testing
