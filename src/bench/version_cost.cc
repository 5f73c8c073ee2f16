#include "bench/version_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "bench/counted_store.h"
#include "bench/memory_floor.h"
#include "bench/random_model.h"
#include "cli/state_pair.h"
#include "cli/terminal.h"
#include "codec/digest/state.h"
#include "codec/encode/encoder.h"
#include "follow/follower.h"
#include "follow/mirror/mirror.h"
#include "runner/init_run.h"
#include "runner/publisher_runner.h"

namespace weightwire {
namespace {

class VersionBench {
 public:
  explicit VersionBench(const BenchSetup& setup) : setup_(setup), compute_(setup.compute), files_(setup.files) {}

  Result<VersionCost> Run(std::uint64_t model_bytes, std::size_t rounds) {
    {
      const Progress progress("making up a model");
      WW_RETURN_IF_ERROR(MakeStates(model_bytes));
    }
    {
      const Progress progress("publishing and loading the first version");
      WW_RETURN_IF_ERROR(OpenAll());
    }
    Progress progress("measuring versions", rounds);
    for (std::size_t i = 0; i < rounds; ++i) {
      WW_RETURN_IF_ERROR(setup_.interrupt.Check());
      WW_RETURN_IF_ERROR(EncodeAlone());
      WW_RETURN_IF_ERROR(Publish());
      WW_RETURN_IF_ERROR(Follow());
      progress.Add(1);
    }
    WW_RETURN_IF_ERROR(mirror_->Verify());
    runner_->Stop();
    return figures_;
  }

 private:
  [[nodiscard]] const Kernels& kernels() const { return *compute_.kernels; }
  [[nodiscard]] ThreadPool& pool() const { return *compute_.pool; }
  // The state that is published next.
  [[nodiscard]] const ModelState& next() const { return (step_ % 2 == 0) ? *even_ : *odd_; }

  Status MakeStates(std::uint64_t model_bytes) {
    WW_TRY(ModelState even, MakeRandomModel(model_bytes, 1, pool()));
    WW_TRY(ModelState odd, CopyOf(even, pool()));
    StepModel(odd, kChangedShare, 2, pool());
    WW_TRY(ModelState base, CopyOf(even, pool()));
    base_digests_ = DigestTensors(base.views(), kernels(), pool());
    even_.emplace(std::move(even));
    odd_.emplace(std::move(odd));
    base_.emplace(std::move(base));
    figures_.model_bytes = even_->layout->total_bytes();
    for (std::size_t i = 0; i < even_->layout->size(); ++i) figures_.elements += even_->layout->unit_count(i);
    return Ok();
  }

  Status OpenAll() {
    const std::string bucket = (setup_.directory / "bucket").string();
    WW_TRY(publisher_store_, CountedStore::Open(bucket));
    WW_TRY(follower_store_, CountedStore::Open(bucket));
    WW_TRY(const weightwire::Run run, InitRun(publisher_store_->store(), false, nullptr));
    PublisherOptions options;
    options.state_directory = setup_.directory / "state";
    options.anchor_every = 0;
    options.anchor_percent = 0;
    PublisherTools tools;
    tools.clock = &clock_;
    tools.random = &random_;
    tools.files = &files_;
    tools.kernels = compute_.kernels;
    tools.pool = compute_.pool.get();
    WW_TRY(runner_, PublisherRunner::Open(run, options, tools));
    WW_TRY(const Ticket first, runner_->Publish({next().layout, next().views()}, step_));
    WW_RETURN_IF_ERROR(WaitFor(first));
    ++step_;

    WW_TRY(mirror_, OpenMirror(files_, setup_.directory / "mirror", {}, kernels(), pool()));
    WW_TRY(weightwire::Run seen, weightwire::Run::Open(follower_store_->store()));
    // One pool at a time: publisher and follower take turns here.
    follower_.emplace(std::move(seen), *mirror_, NewId(random_), FollowerOptions(),
                      FollowerTools{&clock_, compute_.kernels, compute_.pool.get()});
    return StepUntil(FollowerStep::kUpToDate);
  }

  Status WaitFor(const Ticket& ticket) {
    const TicketStatus status = runner_->Wait(ticket);
    if (status.stage == TicketStage::kCommitted) return Ok();
    return status.error.value_or(Error(ErrorCode::kIo, "a version was not published"));
  }

  Status StepUntil(FollowerStep wanted) {
    for (;;) {
      WW_TRY(const FollowerStep step, follower_->Step());
      if (step == wanted) return Ok();
    }
  }

  // What BaseCopy::Advance asks of the encoder, and nothing else.
  Status EncodeAlone() {
    StatePair pair{*base_->layout, *base_->layout, base_->views(), next().views()};
    EncodeRequest request = RequestFor(pair, base_digests_, CodingRequest::kSmallest);
    request.keep_old = true;
    for (std::size_t i = 0; i < request.entries.size(); ++i) request.entries[i].update = base_->tensors[i].data();
    auto encoded = figures_.encode.Time([&] { return EncodeDelta(request, kernels(), pool(), scratch_); });
    if (!encoded.ok()) return encoded.error();
    base_digests_ = std::move(encoded.value().digests_after);
    return Ok();
  }

  Status Publish() {
    const RequestCounts before = publisher_store_->Counts();
    const StateBits bits{next().layout, next().views()};
    const auto ticket = figures_.publish.Time([&] { return runner_->Publish(bits, step_); });
    if (!ticket.ok()) return ticket.error();
    WW_RETURN_IF_ERROR(WaitFor(ticket.value()));
    ++step_;
    const TicketStatus status = runner_->Wait(ticket.value());
    const RequestCounts counts = publisher_store_->Counts() - before;
    figures_.delta_bytes = status.delta_bytes.value_or(0);
    figures_.changed = status.changed;
    figures_.bytes_beyond_delta = std::max(figures_.bytes_beyond_delta, counts.sent_bytes - figures_.delta_bytes);
    figures_.publisher_requests = std::max(figures_.publisher_requests, counts.requests);
    return Ok();
  }

  Status Follow() {
    {
      WW_TRY(const StateView view, mirror_->View());
      WW_RETURN_IF_ERROR(figures_.read.Time([&] { return ReadTouched(view); }));
    }
    const RequestCounts before = follower_store_->Counts();
    WW_RETURN_IF_ERROR(StepUntil(FollowerStep::kRecord));
    WW_RETURN_IF_ERROR(figures_.fetch.Time([&] { return StepUntil(FollowerStep::kFetch); }));
    WW_RETURN_IF_ERROR(figures_.stage.Time([&] { return StepUntil(FollowerStep::kStage); }));
    WW_RETURN_IF_ERROR(figures_.apply.Time([&] { return StepUntil(FollowerStep::kApply); }));
    figures_.mirror.Add(figures_.fetch.last() + figures_.stage.last() + figures_.apply.last());
    WW_RETURN_IF_ERROR(figures_.sync.Time([&] { return StepUntil(FollowerStep::kUpToDate); }));
    const RequestCounts counts = follower_store_->Counts() - before;
    figures_.follower_requests = std::max(figures_.follower_requests, counts.requests);
    return figures_.write_journal.Time([&] { return WriteAsMuchAsTheJournal(); });
  }

  // All tensors are touched: every one has weights that change.
  Status ReadTouched(const StateView& view) {
    constexpr std::size_t kPortionBytes = std::size_t{4} << 20;
    std::vector<std::span<const std::uint8_t>> portions;
    for (std::size_t i = 0; i < view.layout().size(); ++i) {
      const auto bytes = view.InPlace(i);
      for (std::size_t at = 0; at < bytes.size(); at += kPortionBytes) {
        portions.push_back(bytes.subspan(at, std::min(kPortionBytes, bytes.size() - at)));
      }
    }
    std::atomic<std::uint64_t> sum{0};
    pool().ParallelFor(portions.size(), [&](std::size_t i, std::size_t) {
      sum += weightwire::ReadOnce(portions[i].data(), portions[i].size());
    });
    return Ok();
  }

  Status WriteAsMuchAsTheJournal() {
    const std::filesystem::path own = setup_.directory / "mirror" / ".weightwire";
    WW_TRY(const std::optional<FileInfo> journal, files_.Stat(own / "journal"));
    if (!journal.has_value()) return Error(ErrorCode::kNotFound, "the mirror kept no journal to compare with");
    figures_.journal_bytes = journal->size_bytes;
    const std::filesystem::path path = own / "floor.tmp";
    {
      WW_TRY(const std::unique_ptr<NewFile> file, files_.Create(path));
      for (std::uint64_t at = 0; at < journal->size_bytes; at += piece_.size()) {
        const std::uint64_t size = std::min<std::uint64_t>(piece_.size(), journal->size_bytes - at);
        WW_RETURN_IF_ERROR(file->Append(std::span(piece_).first(size)));
      }
      WW_RETURN_IF_ERROR(file->Sync());
    }
    return files_.Remove(path);
  }

  const BenchSetup& setup_;
  const Compute& compute_;
  FileSystem& files_;
  SystemClock clock_;
  SystemRandom random_;
  const std::vector<std::uint8_t> piece_ = std::vector<std::uint8_t>(std::size_t{1} << 20, 0x5a);

  std::optional<ModelState> even_;
  std::optional<ModelState> odd_;
  std::optional<ModelState> base_;  // of EncodeAlone
  std::vector<Digest> base_digests_;
  std::uint64_t step_ = 0;

  std::unique_ptr<CountedStore> publisher_store_;
  std::unique_ptr<CountedStore> follower_store_;
  std::unique_ptr<PublisherRunner> runner_;
  std::unique_ptr<Mirror> mirror_;
  std::optional<Follower> follower_;
  VersionCost figures_;
  EncodeScratch scratch_;  // as a publisher keeps one
};

}  // namespace

Result<VersionCost> MeasureVersions(const BenchSetup& setup, std::uint64_t model_bytes, std::size_t rounds) {
  VersionBench bench(setup);
  return bench.Run(model_bytes, rounds);
}

}  // namespace weightwire
