// The pipeline by itself: what is due when, without a store, a disk or a base.
#include "publish/pipeline.h"

#include <gtest/gtest.h>

#include "publish/world.h"

namespace weightwire::testing {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

constexpr MonotonicTime kNow = seconds(1000);
constexpr std::uint64_t kDeltaBytes = 64;  // of a version that is made; room for a hash

class PipelineTest : public ::testing::Test {
 protected:
  explicit PipelineTest(bool has_spool = true) : run_(weightwire::Run::Open(world_.bucket).value()) {
    PipelineOptions options;
    options.anchor_every = 2;
    KnownRecord newest;
    newest.record.version = 9;
    newest.record.layout = model_.layout->hash();
    newest.record.delta_bytes = 100;
    newest.record.chain = 3;
    pipeline_ =
        std::make_unique<Pipeline>(options, Id{}, Id{}, has_spool, newest, KnownAnchor{},
                                   [this](Version version, const Sha256Digest& state, std::uint64_t delta_bytes,
                                          const std::shared_ptr<const BasePin>&) {
                                     ++writers_;
                                     std::vector<OwnedTensor> tensors;
                                     for (std::size_t i = 0; i < model_.layout->size(); ++i) {
                                       tensors.push_back({model_.layout->tensors()[i], model_.tensors[i]});
                                     }
                                     auto source = std::make_shared<CheckpointSource>(
                                         Checkpoint::FromMemory(std::move(tensors), model_.layout->aliases()).value());
                                     return std::make_shared<AnchorWriter>(
                                         run_, AnchorSubject{{version, NewId(world_.random)}, state, delta_bytes},
                                         std::move(source), AnchorOptions{}, BestKernels());
                                   });
  }

  [[nodiscard]] Draft DraftOf(Version version, bool has_delta = true) const {
    Draft draft;
    draft.version = version;
    draft.time = "2026-01-01T00:00:00Z";
    draft.layout = model_.layout;
    draft.state = StateDigest(*model_.layout, DigestsOf(model_));
    draft.has_delta = has_delta;
    if (has_delta) draft.part = std::make_shared<const DeltaBytes>(UnsealedDelta(Bytes(kDeltaBytes, 1), 0));
    return draft;
  }

  template <typename J>
  [[nodiscard]] J MustGet(Lane lane, MonotonicTime now = kNow) {
    auto job = pipeline_->Next(lane, now);
    EXPECT_TRUE(job.has_value());
    return std::get<J>(std::move(*job));
  }
  void FinishSpool(SpoolJob job, Status status = {}) {
    job.status = std::move(status);
    job.record.delta_bytes = job.delta_bytes_before + (job.part != nullptr ? job.part->size_bytes() : 0);
    job.record_json = ToJson(job.record);
    pipeline_->Finish(std::move(job), kNow);
  }
  void FinishUpload(UploadJob job, UploadJob::Outcome outcome, MonotonicTime now = kNow) {
    job.outcome = outcome;
    if (outcome != UploadJob::Outcome::kCommitted) job.error = Error(ErrorCode::kUnavailable, "gone");
    pipeline_->Finish(std::move(job), now);
  }

  World world_;
  weightwire::Run run_;
  const Model model_ = SmallModel(1);
  int writers_ = 0;
  std::unique_ptr<Pipeline> pipeline_;
};

TEST_F(PipelineTest, ARecordIsMadeFromItsParent) {
  pipeline_->Enqueue(DraftOf(10), kNow);
  pipeline_->Enqueue(DraftOf(11), kNow);
  auto first = MustGet<SpoolJob>(Lane::kSpool);
  EXPECT_EQ(first.record.parent, Sha256Digest{});
  EXPECT_EQ(first.delta_bytes_before, 100u);
  EXPECT_EQ(first.record.chain, 3u);
  EXPECT_EQ(first.new_layout, nullptr);
  // One at a time: the next needs its bytes.
  EXPECT_FALSE(pipeline_->Next(Lane::kSpool, kNow).has_value());
  first.record.step = 77;
  Record decided = first.record;
  decided.delta_bytes = 100 + kDeltaBytes;
  FinishSpool(std::move(first));
  const auto second = MustGet<SpoolJob>(Lane::kSpool);
  EXPECT_EQ(second.record.parent, Sha256Of(ToJson(decided)));
  EXPECT_EQ(second.delta_bytes_before, 100 + kDeltaBytes);
}

TEST_F(PipelineTest, VersionsAreUploadedInOrderOneAtATime) {
  const Ticket one = pipeline_->Enqueue(DraftOf(10), kNow);
  const Ticket two = pipeline_->Enqueue(DraftOf(11), kNow);
  EXPECT_FALSE(pipeline_->Next(Lane::kUpload, kNow).has_value());
  FinishSpool(MustGet<SpoolJob>(Lane::kSpool));
  FinishSpool(MustGet<SpoolJob>(Lane::kSpool));
  EXPECT_EQ(one->stage, TicketStage::kSpooled);
  auto upload = MustGet<UploadJob>(Lane::kUpload);
  EXPECT_EQ(upload.known.record.version, 10u);
  EXPECT_FALSE(upload.again);
  EXPECT_EQ(one->stage, TicketStage::kUploading);
  EXPECT_FALSE(pipeline_->Next(Lane::kUpload, kNow).has_value());
  FinishUpload(std::move(upload), UploadJob::Outcome::kError);
  EXPECT_EQ(pipeline_->Due(Lane::kUpload), kNow + seconds(1));
  EXPECT_FALSE(pipeline_->Next(Lane::kUpload, kNow).has_value());
  upload = MustGet<UploadJob>(Lane::kUpload, kNow + seconds(1));
  EXPECT_EQ(upload.known.record.version, 10u);
  EXPECT_TRUE(upload.again);
  FinishUpload(std::move(upload), UploadJob::Outcome::kCommitted);
  EXPECT_EQ(one->stage, TicketStage::kCommitted);
  EXPECT_EQ(MustGet<UploadJob>(Lane::kUpload).known.record.version, 11u);
  EXPECT_EQ(two->stage, TicketStage::kUploading);
}

TEST_F(PipelineTest, AFailedVersionTakesThoseAfterItAlong) {
  const Ticket one = pipeline_->Enqueue(DraftOf(10), kNow);
  const Ticket two = pipeline_->Enqueue(DraftOf(11), kNow);
  const Ticket three = pipeline_->Enqueue(DraftOf(12), kNow);
  FinishSpool(MustGet<SpoolJob>(Lane::kSpool));
  EXPECT_EQ(pipeline_->Admit().safe, 10u);
  FinishSpool(MustGet<SpoolJob>(Lane::kSpool), Error(ErrorCode::kIo, "full"));
  EXPECT_EQ(one->stage, TicketStage::kSpooled);
  EXPECT_EQ(two->stage, TicketStage::kFailed);
  EXPECT_EQ(three->stage, TicketStage::kFailed);
  // What was made from them before this was known fails as well; what is made after it does not.
  EXPECT_EQ(pipeline_->Enqueue(DraftOf(13), kNow)->stage, TicketStage::kFailed);
  EXPECT_EQ(pipeline_->Admit().newest_version, 10u);
  EXPECT_EQ(pipeline_->Enqueue(DraftOf(11), kNow)->stage, TicketStage::kQueued);
}

TEST_F(PipelineTest, ALostRaceStopsEverything) {
  const Ticket one = pipeline_->Enqueue(DraftOf(10), kNow);
  const Ticket two = pipeline_->Enqueue(DraftOf(11), kNow);
  FinishSpool(MustGet<SpoolJob>(Lane::kSpool));
  auto spool = MustGet<SpoolJob>(Lane::kSpool);
  FinishUpload(MustGet<UploadJob>(Lane::kUpload), UploadJob::Outcome::kStopped);
  // A job that was on its way meanwhile changes nothing.
  FinishSpool(std::move(spool));
  EXPECT_EQ(one->stage, TicketStage::kFailed);
  EXPECT_EQ(two->stage, TicketStage::kFailed);
  EXPECT_TRUE(pipeline_->Admit().stopped.has_value());
  for (const Lane lane : kAllLanes) EXPECT_FALSE(pipeline_->Next(lane, kNow + hours(1)).has_value());
}

TEST_F(PipelineTest, AVersionWithoutADeltaWaitsForItsAnchorAndTheOthersForIt) {
  const Ticket rebase = pipeline_->Enqueue(DraftOf(10, /*has_delta=*/false), kNow);
  pipeline_->Enqueue(DraftOf(11), kNow);
  EXPECT_FALSE(pipeline_->Next(Lane::kSpool, kNow).has_value());
  for (int i = 0; i < 10 && !pipeline_->Next(Lane::kSpool, kNow).has_value(); ++i) {
    auto job = MustGet<AnchorJob>(Lane::kAnchor);
    EXPECT_EQ(rebase->stage, TicketStage::kUploading);
    const auto step = job.writer->Step();
    ASSERT_TRUE(step.ok());
    job.complete = step.value();
    pipeline_->Finish(std::move(job), kNow);
    if (step.value()) break;
  }
  auto spool = MustGet<SpoolJob>(Lane::kSpool);
  EXPECT_EQ(spool.record.version, 10u);
  EXPECT_FALSE(spool.record.delta.has_value());
  EXPECT_EQ(spool.record.chain, 10u);
  ASSERT_TRUE(spool.record.anchor.has_value());
  EXPECT_EQ(spool.record.anchor->name.version, 10u);
  FinishSpool(std::move(spool));
  EXPECT_EQ(MustGet<SpoolJob>(Lane::kSpool).record.chain, 10u);
}

TEST_F(PipelineTest, AnAnchorThatTakesTooLongIsBegunAnewUnderAnotherName) {
  pipeline_->Enqueue(DraftOf(10), kNow);
  EXPECT_FALSE(pipeline_->Next(Lane::kAnchor, kNow).has_value()) << "its version is not committed";
  FinishSpool(MustGet<SpoolJob>(Lane::kSpool));
  FinishUpload(MustGet<UploadJob>(Lane::kUpload), UploadJob::Outcome::kCommitted);
  auto job = MustGet<AnchorJob>(Lane::kAnchor);
  const Id id = job.writer->subject().name.id;
  pipeline_->Finish(std::move(job), kNow);
  job = MustGet<AnchorJob>(Lane::kAnchor, kNow + hours(12));
  EXPECT_EQ(job.writer->subject().name.id, id);
  pipeline_->Finish(std::move(job), kNow + hours(12));
  // What was sent is dropped by a job of its own.
  job = MustGet<AnchorJob>(Lane::kAnchor, kNow + hours(13));
  EXPECT_TRUE(job.give_up);
  EXPECT_EQ(job.writer->subject().name.id, id);
  pipeline_->Finish(std::move(job), kNow + hours(13));
  job = MustGet<AnchorJob>(Lane::kAnchor, kNow + hours(13));
  EXPECT_FALSE(job.give_up);
  EXPECT_NE(job.writer->subject().name.id, id);
  EXPECT_EQ(writers_, 2);
}

class AnchorsThatFallBehind : public PipelineTest {
 protected:
  // Enqueues and commits the next version. The anchor that it brings, if any.
  std::optional<AnchorJob> Next() {
    pipeline_->Enqueue(DraftOf(version_++), kNow);
    FinishSpool(MustGet<SpoolJob>(Lane::kSpool));
    FinishUpload(MustGet<UploadJob>(Lane::kUpload), UploadJob::Outcome::kCommitted);
    auto job = pipeline_->Next(Lane::kAnchor, kNow);
    if (job.has_value() && std::get<AnchorJob>(*job).give_up) {
      pipeline_->Finish(std::move(*job), kNow);
      job = pipeline_->Next(Lane::kAnchor, kNow);
    }
    if (!job.has_value()) return std::nullopt;
    return std::get<AnchorJob>(std::move(*job));
  }
  // Versions until the next anchor is begun, which is then given up.
  int VersionsUntilTheNextIsGivenUp() {
    for (int versions = 1; versions < 10'000; ++versions) {
      auto job = Next();
      if (!job.has_value()) continue;
      job->error = Error(ErrorCode::kMismatch, "the base has moved on");
      pipeline_->Finish(std::move(*job), kNow);
      return versions;
    }
    ADD_FAILURE() << "no anchor is begun any more";
    return 0;
  }

  Version version_ = 10;
};

TEST_F(AnchorsThatFallBehind, AreBegunLaterAndLaterUntilOneIsComplete) {
  EXPECT_EQ(VersionsUntilTheNextIsGivenUp(), 1);  // one every two versions, and the last was long ago
  EXPECT_NE(pipeline_->status().anchor_error->message().find("weightwire anchor"), std::string::npos);
  EXPECT_EQ(VersionsUntilTheNextIsGivenUp(), 16);
  EXPECT_EQ(VersionsUntilTheNextIsGivenUp(), 32);
  EXPECT_EQ(VersionsUntilTheNextIsGivenUp(), 64);
  for (int i = 0; i < 10; ++i) VersionsUntilTheNextIsGivenUp();
  EXPECT_EQ(VersionsUntilTheNextIsGivenUp(), 8 << 8) << "and never not at all";
  // Once one gets through, all is as in the beginning.
  std::optional<AnchorJob> job;
  while (!job.has_value()) job = Next();
  for (bool complete = false; !complete;) {
    const auto step = job->writer->Step();
    ASSERT_TRUE(step.ok()) << step.error().message();
    complete = step.value();
  }
  job->complete = true;
  pipeline_->Finish(std::move(*job), kNow);
  EXPECT_FALSE(pipeline_->status().anchor_error.has_value());
  EXPECT_EQ(VersionsUntilTheNextIsGivenUp(), 2);
}

}  // namespace
}  // namespace weightwire::testing
