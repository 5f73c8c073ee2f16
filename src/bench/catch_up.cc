#include "bench/catch_up.h"

#include <memory>
#include <optional>
#include <utility>

#include "base/random.h"
#include "bench/heap_meter.h"
#include "bench/random_model.h"
#include "cli/state_pair.h"
#include "cli/terminal.h"
#include "codec/decode/write_change.h"
#include "codec/digest/state.h"
#include "codec/encode/encoder.h"
#include "follow/staged_versions.h"
#include "follow/targets/array_target.h"

namespace weightwire {
namespace {

// A version after the first, and the delta that leads to it.
struct MadeVersion {
  KnownRecord record;
  std::vector<std::vector<std::uint8_t>> parts;
};

class CatchUpBench {
 public:
  explicit CatchUpBench(const Compute& compute) : compute_(compute) {}

  Result<CatchUps> Run(const CatchUpModel& model, std::span<const std::uint64_t> versions, std::size_t rounds) {
    {
      const Progress progress("making up versions");
      WW_RETURN_IF_ERROR(MakeVersions(model, versions));
      WW_RETURN_IF_ERROR(MakeTarget());
    }
    Progress progress("measuring", rounds * versions.size());
    for (std::size_t round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < versions.size(); ++i) {
        WW_RETURN_IF_ERROR(Measure(figures_.rows[i], singles_[i], round == 0));
        progress.Add(1);
      }
    }
    return figures_;
  }

 private:
  [[nodiscard]] const Kernels& kernels() const { return *compute_.kernels; }
  [[nodiscard]] ThreadPool& pool() const { return *compute_.pool; }

  // The versions one after another, and for each row a single one from the first to the last.
  Status MakeVersions(const CatchUpModel& model, std::span<const std::uint64_t> versions) {
    WW_TRY(ModelState first, MakeRandomModel(model.size_bytes, 1, pool(), model.rows));
    WW_TRY(ModelState last, CopyOf(first, pool()));
    WW_TRY(ModelState next, CopyOf(first, pool()));
    const std::vector<Digest> digests_first = DigestTensors(first.views(), kernels(), pool());
    std::vector<Digest> digests = digests_first;
    first_ = RecordOf(0, *first.layout, digests);
    figures_.model_bytes = first.layout->total_bytes();
    figures_.tensors = first.layout->size();
    for (const std::uint64_t wanted : versions) {
      while (chain_.size() < wanted) {
        StepModel(next, kChangedShare, 2 + chain_.size(), pool());
        WW_TRY(EncodedDelta delta, Encode(last, next, digests));
        digests = std::move(delta.digests_after);
        chain_.push_back({RecordOf(chain_.size() + 1, *first.layout, digests), {}});
        chain_.back().parts.push_back(std::move(delta.file));
        pool().ParallelFor(next.tensors.size(), [&](std::size_t i, std::size_t) {
          std::copy(next.tensors[i].begin(), next.tensors[i].end(), last.tensors[i].begin());
        });
      }
      WW_TRY(EncodedDelta delta, Encode(first, last, digests_first));
      CatchUp row;
      row.versions = wanted;
      for (const auto& report : delta.reports) row.changed += report.changed;
      figures_.rows.push_back(std::move(row));
      singles_.push_back({chain_.back().record, {}});
      singles_.back().parts.push_back(std::move(delta.file));
    }
    state_.emplace(std::move(first));
    return Ok();
  }

  Result<EncodedDelta> Encode(const ModelState& from, const ModelState& to, const std::vector<Digest>& digests) {
    const StatePair pair{*from.layout, *to.layout, from.views(), to.views()};
    return EncodeDelta(RequestFor(pair, digests, CodingRequest::kSmallest), kernels(), pool(), scratch_);
  }

  static KnownRecord RecordOf(Version version, const Layout& layout, const std::vector<Digest>& digests) {
    KnownRecord record;
    record.record.version = version;
    record.record.layout = layout.hash();
    record.record.state = StateDigest(layout, digests);
    return record;
  }

  Status MakeTarget() {
    std::vector<TargetArray> arrays;
    for (std::size_t i = 0; i < state_->tensors.size(); ++i) {
      arrays.push_back({state_->layout->tensors()[i], state_->tensors[i]});
      places_.push_back({state_->tensors[i]});
    }
    WW_TRY(target_, ArrayTarget::Make(std::move(arrays), kernels(), pool()));
    return target_->Adopt(HeldOf(first_), *state_->layout);
  }

  Status Measure(CatchUp& row, const MadeVersion& single, bool first_round) {
    std::optional<HeapMeter> heap;
    if (first_round) heap.emplace();
    WW_RETURN_IF_ERROR(CatchUpWith(std::span(chain_).first(row.versions), row.stage, row.apply));
    if (heap.has_value()) row.stage_peak_bytes = heap->peak_bytes();
    heap.reset();
    if (first_round) WW_RETURN_IF_ERROR(target_->Verify());
    WW_RETURN_IF_ERROR(target_->Undo());
    Timings stage_single;
    WW_RETURN_IF_ERROR(CatchUpWith({&single, 1}, stage_single, row.apply_single));
    WW_RETURN_IF_ERROR(target_->Undo());
    return TimeWriting(row, single);
  }

  Status TimeWriting(CatchUp& row, const MadeVersion& single) {
    StagedVersions staged(*target_, pool());
    WW_RETURN_IF_ERROR(Stage(staged, {&single, 1}));
    WW_RETURN_IF_ERROR(row.write.Time([&] {
      WriteChange(*staged.Combined(), places_, pool());
      return Ok();
    }));
    TakeBackChange(*staged.Combined(), places_, pool());
    return Ok();
  }

  Status CatchUpWith(std::span<const MadeVersion> versions, Timings& stage, Timings& apply) {
    StagedVersions staged(*target_, pool());
    WW_RETURN_IF_ERROR(stage.Time([&] { return Stage(staged, versions); }));
    return apply.Time([&] { return target_->Apply(staged.Combined(), HeldOf(staged.last())); });
  }

  Status Stage(StagedVersions& staged, std::span<const MadeVersion> versions) {
    Sha256Digest before = first_.record.state;
    for (const MadeVersion& version : versions) {
      WW_TRY(const StateView* const view, staged.View());
      WW_TRY(auto change, DecodeVersion(version.record.record, before, version.parts, *view, kernels(), pool()));
      staged.Push(version.record, std::move(change));
      before = version.record.record.state;
    }
    staged.Combine();
    return Ok();
  }

  const Compute& compute_;
  EncodeScratch scratch_;
  KnownRecord first_;
  std::vector<MadeVersion> chain_;
  std::vector<MadeVersion> singles_;  // for each row
  std::optional<ModelState> state_;   // the memory of the target's arrays
  TensorPlaces places_;               // the same
  std::unique_ptr<ArrayTarget> target_;
  CatchUps figures_;
};

}  // namespace

Result<CatchUps> MeasureCatchingUp(const CatchUpModel& model, std::span<const std::uint64_t> versions,
                                   std::size_t rounds, const Compute& compute) {
  return CatchUpBench(compute).Run(model, versions, rounds);
}

}  // namespace weightwire
