#include "publish/version_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/failure_policy.h"
#include "codec/decode/decoder.h"
#include "codec/format/delta_file.h"
#include "follow/rebuild.h"
#include "follow/targets/memory_target.h"
#include "log/fields.h"
#include "publish/same_model.h"

namespace weightwire {
namespace {

std::uint64_t AllUnits(const Layout& layout) {
  std::uint64_t units = 0;
  for (std::size_t i = 0; i < layout.size(); ++i) units += layout.unit_count(i);
  return units;
}

bool SameShards(const std::shared_ptr<const Shards>& a, const std::shared_ptr<const Shards>& b) {
  return (a == nullptr || b == nullptr) ? a == b : *a == *b;
}

}  // namespace

VersionMaker::VersionMaker(Run run, const PublisherOptions& options, PublisherTools tools)
    : run_(std::move(run)),
      options_(options),
      tools_(std::move(tools)),
      base_({tools_.files, options.base_on_disk ? options.state_directory : std::nullopt}, *tools_.kernels,
            *tools_.pool, tools_.run_locked) {}

// --- the base ---

Status VersionMaker::Recover(const std::optional<KnownRecord>& newest, std::span<const SpoolEntry> spooled,
                             const Spool* spool) {
  // All versions that the base file may be, oldest first.
  std::vector<BaseCopy::Candidate> candidates;
  std::shared_ptr<const Layout> layout;
  if (newest.has_value()) {
    WW_TRY(Layout read, run_.ReadLayout(newest->record.layout));
    layout = std::make_shared<const Layout>(std::move(read));
    candidates.push_back({newest->record.version, newest->record.state, layout});
  }
  for (const SpoolEntry& entry : spooled) {
    if (entry.layout != nullptr) layout = entry.layout;
    if (layout == nullptr || layout->hash() != entry.known.record.layout) return Ok();  // the next one is a rebase
    candidates.push_back({entry.known.record.version, entry.known.record.state, layout});
  }
  if (candidates.empty()) return Ok();
  std::ranges::reverse(candidates);
  if (!base_.Adopt(candidates).has_value()) {
    if (!newest.has_value()) return Ok();
    WW_TRY(const bool rebuilt, Rebuild(*newest, nullptr, newest->record.version));
    if (!rebuilt) return Ok();
  }
  return spooled.empty() ? Ok() : ApplySpooled(spooled, *spool);
}

Status VersionMaker::ApplySpooled(std::span<const SpoolEntry> spooled, const Spool& spool) {
  for (const SpoolEntry& entry : spooled) {
    const Record& record = entry.known.record;
    if (record.version <= base_.version()) continue;
    if (!record.delta.has_value()) {
      base_.Invalidate();
      return Ok();
    }
    if (record.delta->empty()) {
      base_.AdvanceSame();
      continue;
    }
    WW_TRY(const std::unique_ptr<FileMap> part, spool.OpenPart(record.version));
    const auto stage = [&]() -> Result<std::shared_ptr<const StagedChange>> {
      WW_TRY(const DeltaFile file, DeltaFile::Parse(part->bytes()));
      return StageDelta(file, base_.View(), *tools_.kernels, *tools_.pool);
    };
    const auto change = stage();
    if (!change.ok() || change.value()->state_after() != record.state) {
      base_.Invalidate();
      return Ok();
    }
    WW_RETURN_IF_ERROR(base_.Advance(*change.value()));
  }
  return Ok();
}

Result<bool> VersionMaker::Rebuild(const KnownRecord& version, const std::shared_ptr<const Shards>& shards,
                                   Version serial) {
  if (!options_.rebuild) return false;
  if (shards != nullptr && version.record.layout != shards->whole()->hash()) return false;
  MemoryTarget target(*tools_.kernels, *tools_.pool);
  FollowerOptions options;
  options.name = options_.group.has_value() ? fmt::format("rank {} of a publisher", options_.group->rank) : "publisher";
  options.fetch_threads = tools_.fetch_threads;
  const Status rebuilt = weightwire::Rebuild(run_, version.record.version, target, NewId(*tools_.random), options,
                                             {tools_.clock, tools_.kernels, tools_.pool});
  if (!rebuilt.ok()) {
    if (MaySucceedLater(rebuilt.error())) return rebuilt.error();
    note_ = fmt::format("version {} could not be rebuilt, so the next one is a rebase: {}", version.record.version,
                        rebuilt.error().message());
    return false;
  }
  StateBits bits;
  std::vector<std::vector<std::uint8_t>> copies;
  if (shards == nullptr) {
    bits.layout = std::make_shared<const Layout>(target.layout());
    for (std::size_t i = 0; i < bits.layout->size(); ++i) bits.tensors.push_back(target.bytes(i));
  } else {
    bits.layout = shards->own();
    bits.shards = shards;
    copies.resize(shards->size());
    for (std::size_t i = 0; i < shards->size(); ++i) {
      copies[i].resize(shards->own()->byte_size(i));
      CopyShard(shards->map(i), target.bytes(shards->all()[i].tensor), copies[i]);
      bits.tensors.emplace_back(copies[i]);
    }
  }
  WW_RETURN_IF_ERROR(base_.Replace(bits, serial));
  // Of shards only the sum over all ranks could be compared; the target has checked the whole state.
  if (shards != nullptr || base_.state() == version.record.state) return true;
  base_.Invalidate();
  return false;
}

// --- making ---

Result<std::optional<Draft>> VersionMaker::Make(const StateBits& bits, std::uint64_t step, const Admission& admission) {
  WW_RETURN_IF_ERROR(CheckBits(bits));
  Draft draft;
  draft.step = step;
  draft.time = TimeText(tools_.clock->Wall());
  draft.epoch = admission.epoch;
  draft.shards = bits.shards;
  draft.layout = bits.shards != nullptr ? bits.shards->whole() : bits.layout;
  if (base_.holds() && !admission.newest_serial.has_value()) base_.Invalidate();
  if (base_.holds() && base_.version() > *admission.newest_serial) {
    // The versions after it have failed. If their undo data is gone, the base is lost.
    static_cast<void>(base_.RollBack(*admission.newest_serial));
  }
  if (base_.holds() && !SameShards(base_.shards(), bits.shards)) {
    if (!admission.empty) return std::optional<Draft>();
    base_.Invalidate();
  }
  WW_RETURN_IF_ERROR(CheckModel(*draft.layout, admission));
  if (base_.holds()) base_.DiscardUndo(admission.safe, base_.StepLimit());

  bool whole = !admission.newest_serial.has_value();
  if (bits.shards != nullptr) {
    // All ranks must decide alike, whatever their bases are. Before the first call no rank has a base.
    const bool first_call = !std::exchange(called_, true);
    const bool other_layout = admission.newest_layout.has_value() && *admission.newest_layout != draft.layout->hash();
    whole = whole || admission.whole || other_layout || (first_call && !options_.rebuild);
  }
  const bool needs_base = !whole && !base_.holds();
  if ((whole || needs_base) && !admission.empty) return std::optional<Draft>();
  if (needs_base) {
    WW_TRY(const bool rebuilt, Rebuild(*admission.newest, bits.shards, *admission.newest_serial));
    if (!rebuilt && bits.shards != nullptr) {
      draft.error = Error(ErrorCode::kNotFound, fmt::format("version {} cannot be had from the bucket any more; "
                                                            "publish again, which makes a version without a delta",
                                                            admission.newest->record.version));
      draft.needs_rebase = true;
      draft.note = std::exchange(note_, "");
      return std::optional(std::move(draft));
    }
    whole = !rebuilt;
  }
  WW_TRY(Draft made,
         whole ? MakeWhole(bits, std::move(draft), admission) : MakeDelta(bits, std::move(draft), admission));
  return std::optional(std::move(made));
}

Status VersionMaker::CheckModel(const Layout& published, const Admission& admission) const {
  const std::optional<Sha256Digest>& newest = admission.newest_layout;
  if (options_.allow_new_model || !newest.has_value() || *newest == published.hash()) return Ok();
  // The base of a rank has only its shards.
  if (base_.holds() && base_.shards() == nullptr && base_.layout()->hash() == *newest) {
    return CheckSameModel(*base_.layout(), published, run_.store().Name());
  }
  // Nothing is in flight, so the bucket has the layout.
  WW_TRY(const Layout layout, run_.ReadLayout(*newest));
  return CheckSameModel(layout, published, run_.store().Name());
}

Result<Draft> VersionMaker::MakeWhole(const StateBits& bits, Draft draft, const Admission& admission) {
  const Version serial = admission.newest_serial.has_value() ? *admission.newest_serial + 1 : 0;
  WW_RETURN_IF_ERROR(base_.Replace(bits, serial));
  const bool is_newest = bits.shards == nullptr && admission.newest.has_value() &&
                         admission.newest->record.state == base_.state() &&
                         admission.newest->record.layout == bits.layout->hash();
  if (!is_newest) {
    draft.whole = true;
    draft.changed = AllUnits(*bits.layout);
    return Finish(std::move(draft));
  }
  // It is the newest version itself, so the base is found again and there are no bits to send.
  base_.Renumber(*admission.newest_serial);
  draft.before = base_.digests();
  draft.layout_before = base_.layout();
  draft.nothing_new = draft.step == admission.newest_step;
  if (!draft.nothing_new) base_.AdvanceSame();
  return Finish(std::move(draft));
}

Result<Draft> VersionMaker::MakeDelta(const StateBits& bits, Draft draft, const Admission& admission) {
  // Only one process knows by itself that the state is the newest version. Ranks learn it from the committer.
  const bool unless_same = bits.shards == nullptr && draft.step == admission.newest_step;
  draft.layout_before = bits.shards != nullptr ? draft.layout : base_.layout();
  WW_TRY(BaseAdvance advance, base_.Advance(bits, unless_same));
  draft.nothing_new = advance.same && unless_same;
  draft.changed = advance.changed;
  draft.before = std::move(advance.before);
  if (!advance.same) draft.part = std::make_shared<const DeltaBytes>(std::move(advance.delta));
  return Finish(std::move(draft));
}

Draft VersionMaker::Finish(Draft draft) {
  draft.serial = base_.version();
  draft.after = base_.digests();
  // The record of a version without a delta waits for its anchor, so its bits must stay readable for as long as it
  // takes.
  draft.pin = base_.Pin(/*revocable=*/!draft.whole);
  draft.note = std::exchange(note_, "");
  return draft;
}

}  // namespace weightwire
