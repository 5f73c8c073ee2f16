#include "codec/decode/decoder.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/memory_pool.h"
#include "codec/decode/decode_plan.h"
#include "codec/decode/entry_decoder.h"
#include "codec/decode/staged_builder.h"
#include "codec/digest/state.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

// Jobs whose base need not be copied are decoded together up to this many tiles, which keeps all lanes busy to near the
// end, or units.
constexpr std::uint64_t kTilesTogether = 4 * kLanes;
constexpr std::uint64_t kUnitsTogether = 1 << 24;

class Stager {
 public:
  Stager(DecodePlan plan, const std::optional<StateDigests>& promised, const StateView& base, const Kernels& kernels,
         ThreadPool& pool)
      : plan_(std::move(plan)), promised_(promised), base_(base), kernels_(kernels), pool_(pool) {}

  Result<std::shared_ptr<const StagedChange>> Stage() {
    WW_RETURN_IF_ERROR(RunJobs());
    return Collect();
  }

 private:
  static std::uint64_t JobCount(const DecodeEntry& entry) {
    return (entry.map->unit_count() + UnitsPerJob(entry) - 1) / UnitsPerJob(entry);
  }

  // Where entries' numbers of changes say how much room they need, all of it is taken at once.
  [[nodiscard]] std::shared_ptr<MemoryPool> ReserveMemory() const {
    std::size_t bytes = 0;
    for (const DecodeEntry& entry : plan_.entries) {
      const bool known = entry.index->mode == EntryMode::kSparse || entry.index->mode == EntryMode::kGaps;
      if (!known || !entry.map->is_contiguous()) continue;
      const auto unit_bytes = static_cast<std::size_t>(entry.map->unit_bytes());
      bytes += entry.index->changed * (sizeof(std::uint32_t) + 2 * unit_bytes) +
               JobCount(entry) * 3 * MemoryPool::Rounded(1);
    }
    return MemoryPool::Make(bytes);
  }

  Status RunJobs() {
    for (std::size_t i = 0; i < plan_.entries.size(); ++i) {
      const DecodeEntry& entry = plan_.entries[i];
      const std::uint64_t step = UnitsPerJob(entry);
      for (std::uint64_t first = 0; first < entry.map->unit_count(); first += step) {
        jobs_.push_back({i, first, std::min(step, entry.map->unit_count() - first), {}, {}});
      }
    }
    const EntryDecoder decoder(plan_.entries, base_, kernels_, ReserveMemory());
    const std::vector<std::span<DecodeJob>> together = JobsTogether(decoder);
    std::vector<DecodeScratch> scratch(pool_.threads());
    std::atomic<bool> damaged = false;
    pool_.ParallelFor(together.size(), [&](std::size_t i, std::size_t worker) {
      if (damaged.load(std::memory_order_relaxed)) return;
      if (!decoder.Decode(together[i], scratch[worker])) damaged.store(true, std::memory_order_relaxed);
    });
    if (damaged.load()) return DamagedDelta("a tile does not decode to its end");
    return Ok();
  }

  // Jobs that follow each other and share lanes in groups, the others each on its own.
  std::vector<std::span<DecodeJob>> JobsTogether(const EntryDecoder& decoder) {
    std::vector<std::span<DecodeJob>> groups;
    const auto entry_of = [&](const DecodeJob& job) -> const DecodeEntry& { return plan_.entries[job.entry]; };
    const auto tiles = [&](const DecodeJob& job) { return job.unit_count >> entry_of(job).index->tile_log2; };
    for (std::size_t begin = 0; begin < jobs_.size();) {
      std::size_t end = begin + 1;
      const DecodeEntry& first = entry_of(jobs_[begin]);
      std::uint64_t tile_count = tiles(jobs_[begin]);
      std::uint64_t unit_count = jobs_[begin].unit_count;
      while (decoder.MayShareLanes(first) && end < jobs_.size() && decoder.MayShareLanes(entry_of(jobs_[end]))) {
        tile_count += tiles(jobs_[end]);
        unit_count += jobs_[end].unit_count;
        if (tile_count > kTilesTogether || unit_count > kUnitsTogether ||
            entry_of(jobs_[end]).map->unit_bytes() != first.map->unit_bytes())
          break;
        ++end;
      }
      groups.push_back(std::span(jobs_).subspan(begin, end - begin));
      begin = end;
    }
    return groups;
  }

  Result<std::shared_ptr<const StagedChange>> Collect() {
    StagedChangeBuilder builder(base_.shared_layout(), plan_.after, base_.digests());
    std::vector<Digest> digests(plan_.after->size());
    for (std::size_t i = 0; i < plan_.after->size(); ++i) {
      const std::optional<std::size_t> origin = OriginOf(i, *plan_.after, base_.layout());
      if (origin.has_value()) digests[i] = base_.digests()[*origin];
    }
    // By tensor, as they come from the jobs; boxes come in any order, and their stretches interleave.
    struct Found {
      const DecodeEntry* entry;  // the last of its tensor
      std::vector<StagedChunk> chunks;
    };
    std::vector<Found> found;
    std::size_t job = 0;
    std::vector<StagedChunk> chunks;
    for (std::size_t i = 0; i < plan_.entries.size(); ++i) {
      const DecodeEntry& entry = plan_.entries[i];
      Digest change;
      std::uint64_t changed = 0;
      for (; job < jobs_.size() && jobs_[job].entry == i; ++job) {
        change += jobs_[job].digest_change;
        for (StagedChunk& chunk : jobs_[job].chunks) {
          changed += chunk.offsets.size();
          chunks.push_back(std::move(chunk));
        }
      }
      if (entry.index->before + change != entry.index->after) {
        return DamagedDelta("the new bits of " + Quoted(plan_.SpecOf(entry).name) +
                            " are not those its digest was made of");
      }
      if (entry.index->mode != EntryMode::kWhole && changed != entry.index->changed) {
        return DamagedDelta(Quoted(plan_.SpecOf(entry).name) + " has another number of changes than promised");
      }
      digests[entry.index->tensor] += change;
      if (i + 1 == plan_.entries.size() || plan_.entries[i + 1].index->tensor != entry.index->tensor) {
        if (entry.is_new || !chunks.empty()) found.push_back({&entry, std::move(chunks)});
        chunks.clear();
      }
    }
    if (promised_.has_value() && StateDigest(*plan_.after, digests) != promised_->after) {
      return DamagedDelta("the state after the change is not the promised one");
    }
    pool_.ParallelFor(found.size(), [&](std::size_t i, std::size_t) {
      const auto unit_bytes = static_cast<std::size_t>(found[i].entry->map->unit_bytes());
      found[i].chunks = InOrder(std::move(found[i].chunks), unit_bytes);
    });
    for (Found& tensor : found) {
      const DecodeEntry& entry = *tensor.entry;
      if (entry.is_new) {
        builder.AddNew(entry.index->tensor, entry.map->unit_bytes(), {entry.payload.begin(), entry.payload.end()});
      } else {
        builder.AddChanged(entry.index->tensor, entry.map->unit_bytes(), std::move(tensor.chunks));
      }
    }
    return std::make_shared<const StagedChange>(builder.Finish(std::move(digests)));
  }

  const DecodePlan plan_;
  const std::optional<StateDigests>& promised_;
  const StateView& base_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  std::vector<DecodeJob> jobs_;
};

Result<std::shared_ptr<const StagedChange>> Stage(std::span<const DeltaFile> parts,
                                                  const std::optional<StateDigests>& promised, const StateView& base,
                                                  const Kernels& kernels, ThreadPool& pool) {
  WW_TRY(DecodePlan plan, PlanDecoding(parts, promised, base, kernels));
  return Stager(std::move(plan), promised, base, kernels, pool).Stage();
}

}  // namespace

Result<std::shared_ptr<const StagedChange>> StageDelta(const DeltaFile& file, const StateView& base,
                                                       const Kernels& kernels, ThreadPool& pool) {
  return Stage({&file, 1}, file.index().state, base, kernels, pool);
}

Result<std::shared_ptr<const StagedChange>> StageParts(std::span<const DeltaFile> parts,
                                                       const std::optional<StateDigests>& promised,
                                                       const StateView& base, const Kernels& kernels,
                                                       ThreadPool& pool) {
  if (parts.empty()) return Error(ErrorCode::kInvalidArgument, "a delta must have at least one part");
  return Stage(parts, promised, base, kernels, pool);
}

Result<Layout> LayoutForDelta(const DeltaFile& file, const Layout& checkpoint) {
  // Names that the delta knows as aliases are not tensors of its layout, even if the checkpoint has them.
  const Aliases& aliases = file.index().aliases;
  std::vector<TensorSpec> tensors;
  for (const TensorSpec& spec : checkpoint.tensors()) {
    if (!aliases.contains(spec.name)) tensors.push_back(spec);
  }
  // Further names of the checkpoint's ties: where the delta keeps another name of a tie than the checkpoint does, that
  // one is a tensor; and all of them are for a delta that knows of no tie.
  std::vector<TensorSpec> kept_otherwise = tensors;
  std::vector<TensorSpec> untied = tensors;
  for (const auto& [alias, kept] : checkpoint.aliases()) {
    if (aliases.contains(alias)) continue;
    TensorSpec spec = checkpoint.tensors()[*checkpoint.Find(kept)];
    spec.name = alias;
    if (const auto at = aliases.find(kept); at != aliases.end() && at->second == alias) kept_otherwise.push_back(spec);
    untied.push_back(std::move(spec));
  }
  for (std::vector<TensorSpec>* names : {&kept_otherwise, &untied}) {
    Result<Layout> layout = Layout::Make(std::move(*names), aliases);
    if (layout.ok() && layout.value().hash() == file.index().layout_hash) return layout;
  }
  return MadeForAnotherBase("the names, types or shapes of the base's tensors are not those the delta applies to");
}

}  // namespace weightwire
