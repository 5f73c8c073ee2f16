#include "bench/late_joiner.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "bench/counted_store.h"
#include "bench/random_model.h"
#include "follow/rebuild.h"
#include "follow/targets/memory_target.h"
#include "publish/publisher.h"
#include "runner/init_run.h"

namespace weightwire {
namespace {

constexpr std::uint64_t kModelBytes = std::uint64_t{4} << 20;
// So that the newest anchor is some versions old, and neither the anchor nor version 0 is always the cheaper start.
constexpr std::uint64_t kAnchorEvery = 30;

class Joiner {
 public:
  static Result<std::unique_ptr<Joiner>> Open(const std::string& bucket, const Compute& compute) {
    auto joiner = std::make_unique<Joiner>(compute);
    WW_TRY(joiner->store_, CountedStore::Open(bucket));
    return joiner;
  }
  explicit Joiner(const Compute& compute) : compute_(compute), target_(*compute.kernels, *compute.pool) {}

  // Follows to the newest version.
  Result<LateJoiner> CatchUp() {
    WW_TRY(const Run run, Run::Open(store_->store()));
    const std::optional<Held> held = target_.held();
    Follower follower(run, target_, id_, FollowerOptions(), {&clock_, compute_.kernels, compute_.pool.get()});
    const RequestCounts before = store_->Counts();
    WW_RETURN_IF_ERROR(FollowTo(follower, std::nullopt));
    WW_RETURN_IF_ERROR(target_.Verify());
    const RequestCounts counts = store_->Counts() - before;
    LateJoiner joiner;
    joiner.fetched_bytes = counts.object_bytes;
    joiner.requests = counts.requests;
    joiner.from_anchor = follower.status().anchors_loaded != 0;
    if (target_.held().has_value()) {
      WW_TRY(joiner.cheapest_bytes, Cheapest(run, held, *target_.held()));
    }
    return joiner;
  }

 private:
  // Tries every plan: the deltas, and each anchor with the deltas after it.
  static Result<std::uint64_t> Cheapest(const Run& run, const std::optional<Held>& from, const Held& to) {
    std::optional<std::uint64_t> cheapest;
    if (from.has_value()) cheapest = to.delta_bytes - from->delta_bytes;
    WW_TRY(const auto names, run.ListAnchors(0));
    for (const AnchorName& name : names) {
      WW_TRY(const KnownAnchor anchor, run.ReadAnchor(name));
      WW_TRY(const auto record, run.ReadRecord(name.version));
      if (!record.has_value()) continue;
      const std::uint64_t bytes = anchor.manifest.TotalBytes() + to.delta_bytes - record->record.delta_bytes;
      cheapest = std::min(cheapest.value_or(bytes), bytes);
    }
    if (!cheapest.has_value()) return Error(ErrorCode::kNotFound, "the run has no anchor");
    return *cheapest;
  }

  const Compute& compute_;
  SystemClock clock_;
  SystemRandom random_;
  const Id id_ = NewId(random_);
  std::unique_ptr<CountedStore> store_;
  MemoryTarget target_;
};

}  // namespace

Result<LateJoiners> MeasureLateJoiners(const BenchSetup& setup, std::uint64_t versions) {
  const Compute& compute = setup.compute;
  const std::string bucket = (setup.directory / "late").string();
  WW_TRY(const auto store, CountedStore::Open(bucket));
  WW_TRY(const Run run, InitRun(store->store(), false, nullptr));
  SystemClock clock;
  SystemRandom random;
  PublisherOptions options;
  options.anchor_every = kAnchorEvery;
  options.anchor_percent = 0;
  PublisherTools tools;
  tools.clock = &clock;
  tools.random = &random;
  tools.files = &setup.files;
  tools.kernels = compute.kernels;
  tools.pool = compute.pool.get();
  WW_TRY(const auto publisher, Publisher::Open(run, options, tools));
  WW_TRY(ModelState state, MakeRandomModel(kModelBytes, 3, *compute.pool));
  WW_TRY(const auto behind, Joiner::Open(bucket, compute));
  LateJoiners joiners;
  joiners.versions = versions;
  joiners.model_bytes = state.layout->total_bytes();
  for (std::uint64_t step = 0; step <= versions; ++step) {
    WW_RETURN_IF_ERROR(setup.interrupt.Check());
    if (step != 0) StepModel(state, kChangedShare, 3 + step, *compute.pool);
    WW_TRY(const auto ticket, publisher->Publish({state.layout, state.views()}, step));
    while (publisher->Work()) {
    }
    if (!ticket.has_value() || (*ticket)->stage != TicketStage::kCommitted) {
      return Error(ErrorCode::kIo, "a version was not published");
    }
    if (step == 0) WW_RETURN_IF_ERROR(behind->CatchUp());
  }
  WW_TRY(joiners.behind, behind->CatchUp());
  WW_TRY(const auto nothing, Joiner::Open(bucket, compute));
  WW_TRY(joiners.nothing, nothing->CatchUp());
  return joiners;
}

}  // namespace weightwire
