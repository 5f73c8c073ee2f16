#include "publish/publisher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "codec/decode/decoder.h"
#include "codec/format/delta_file.h"
#include "follow/rebuild.h"
#include "log/fields.h"
#include "publish/record_commit.h"
#include "publish/writer_start.h"

namespace weightwire {
namespace {

constexpr std::size_t kMaxWarnings = 1000;

std::uint64_t AllUnits(const Layout& layout) {
  std::uint64_t units = 0;
  for (std::size_t i = 0; i < layout.size(); ++i) units += layout.unit_count(i);
  return units;
}

}  // namespace

Publisher::Publisher(Run run, PublisherOptions options, PublisherTools tools)
    : options_(std::move(options)), tools_(std::move(tools)), job_tools_{std::move(run), nullptr, options_.bugs} {}

Result<std::unique_ptr<Publisher>> Publisher::Open(Run run, PublisherOptions options, const PublisherTools& tools) {
  WW_CHECK(!options.base_in_file || options.state_directory.has_value());
  std::unique_ptr<Publisher> publisher(new Publisher(std::move(run), std::move(options), tools));
  WW_RETURN_IF_ERROR(publisher->Start());
  return publisher;
}

// --- starting ---

Status Publisher::Start() {
  const Run& run = job_tools_.run;
  WW_RETURN_IF_ERROR(run.CheckMayWrite());
  if (options_.state_directory.has_value()) WW_RETURN_IF_ERROR(LockStateDirectory());
  WW_RETURN_IF_ERROR(CheckOneWins(run, *tools_.random));
  if (options_.carried_directory.has_value()) {
    WW_TRY(CarriedFiles carried, FindCarriedFiles(*tools_.files, *options_.carried_directory, options_.carry_code));
    carried_ = std::move(carried.files);
    warnings_ = std::move(carried.left_out);
  }
  WW_TRY(const std::optional<KnownRecord> newest, run.FindNewest(std::nullopt));
  std::vector<SpoolEntry> waiting;
  if (spool_ != nullptr) {
    WW_TRY(waiting, RecoverSpool(newest));
  }
  std::optional<KnownAnchor> anchor;
  if (newest.has_value()) {
    WW_TRY(anchor, FindNewestAnchor(run, newest->record));
  }
  if (options_.base_in_file) {
    base_maker_ = std::make_unique<FileBaseMaker>(*tools_.files, *options_.state_directory);
  } else {
    base_maker_ = std::make_unique<MemoryBaseMaker>();
  }
  base_ = std::make_unique<BaseCopy>(*base_maker_, *tools_.kernels, *tools_.pool, tools_.exclusion);
  WW_RETURN_IF_ERROR(RecoverBase(newest, waiting));

  const auto make_writer = [this](Version version, const Sha256Digest& state, std::uint64_t delta_bytes,
                                  const std::shared_ptr<const BasePin>& pin) {
    const AnchorSubject subject{{version, NewId(*tools_.random)}, state, delta_bytes};
    return std::make_shared<AnchorWriter>(job_tools_.run, subject, std::make_shared<BaseSource>(*base_, pin),
                                          AnchorOptions{options_.anchor_files, carried_, tools_.files},
                                          *tools_.kernels);
  };
  pipeline_ = std::make_unique<Pipeline>(options_.pipeline, run.id(), NewId(*tools_.random), spool_ != nullptr, newest,
                                         std::move(anchor), make_writer);
  if (options_.bugs.lost_answer_is_failure) pipeline_->KeepUntilCommitted();
  for (SpoolEntry& entry : waiting) {
    pipeline_->Resume(std::move(entry.known), std::move(entry.record_json), std::move(entry.layout));
  }
  return Ok();
}

Status Publisher::LockStateDirectory() {
  FileSystem& files = *tools_.files;
  const FileSystem::Path& directory = *options_.state_directory;
  WW_TRY(const auto there, files.Stat(directory));
  if (!there.has_value()) {
    WW_RETURN_IF_ERROR(files.MakeDirectory(directory));
    WW_RETURN_IF_ERROR(files.SyncDirectory(directory.parent_path()));
  }
  auto lock = files.Lock(directory / "lock", LockMode::kExclusive);
  if (!lock.ok()) {
    if (lock.error().code() != ErrorCode::kUnavailable) return lock.error();
    return Error(ErrorCode::kUnavailable,
                 fmt::format("another publisher uses {}; stop it, or use another state directory", directory.string()));
  }
  lock_ = std::move(lock).value();
  spool_ = std::make_unique<Spool>(files, directory / "spool");
  job_tools_.spool = spool_.get();
  return Ok();
}

Result<std::vector<SpoolEntry>> Publisher::RecoverSpool(const std::optional<KnownRecord>& newest) {
  const Run& run = job_tools_.run;
  std::optional<KnownRecord> before = newest;
  std::vector<SpoolEntry> waiting;
  WW_TRY(std::vector<FoundEntry> found, spool_->Recover());
  bool drop = false;
  for (FoundEntry& there : found) {
    if (drop || !there.entry.ok()) {
      // Of a version that exists nothing is needed any more. Of another one, those after it were made from it.
      drop = drop || !newest.has_value() || there.version > newest->record.version;
      WW_RETURN_IF_ERROR(spool_->Remove(there.version));
      continue;
    }
    SpoolEntry& entry = there.entry.value();
    if (entry.known.record.run != run.id()) {
      return Error(ErrorCode::kMismatch, fmt::format("{} is the state directory of another run; use another one",
                                                     options_.state_directory->string()));
    }
    bool ours = false;
    if (newest.has_value() && there.version <= newest->record.version) {
      WW_TRY(const auto committed, run.ReadRecord(there.version));
      ours = committed.has_value() && committed->hash == entry.known.hash;
      if (ours) {
        WW_RETURN_IF_ERROR(spool_->Remove(there.version));
        continue;
      }
    } else {
      ours = before.has_value() ? CheckFollows(*before, entry.known).ok() : there.version == 0;
    }
    if (!ours) {
      if (!options_.drop_lost_versions) {
        const Version lost = std::min(there.version, newest.has_value() ? newest->record.version : there.version);
        // Starting again changes nothing: only a person can know that these are not wanted any more.
        const Version last = found.back().version;
        const std::string which = there.version == last ? fmt::format("version {}", last)
                                                        : fmt::format("versions {} to {}", there.version, last);
        return Error(ErrorCode::kMismatch,
                     fmt::format("{}, so {} waiting in {} cannot be published any more: see that only one publishes, "
                                 "then start it {}, which drops what waits",
                                 WhoseRecord(run, lost), which, options_.state_directory->string(), kHowToDropLost));
      }
      drop = true;
      WW_RETURN_IF_ERROR(spool_->Remove(there.version));
      continue;
    }
    before = entry.known;
    waiting.push_back(std::move(entry));
  }
  return waiting;
}

Status Publisher::RecoverBase(const std::optional<KnownRecord>& newest, const std::vector<SpoolEntry>& waiting) {
  const Run& run = job_tools_.run;
  // All versions the base may be at, oldest first.
  std::vector<BaseCopy::Candidate> candidates;
  std::shared_ptr<const Layout> layout;
  if (newest.has_value()) {
    WW_TRY(Layout read, run.ReadLayout(newest->record.layout));
    layout = std::make_shared<const Layout>(std::move(read));
    candidates.push_back({newest->record.version, newest->record.state, layout});
  }
  for (const SpoolEntry& entry : waiting) {
    if (entry.layout != nullptr) layout = entry.layout;
    if (layout == nullptr || layout->hash() != entry.known.record.layout) return Ok();  // the next is a rebase
    candidates.push_back({entry.known.record.version, entry.known.record.state, layout});
  }
  if (candidates.empty()) return Ok();
  std::ranges::reverse(candidates);
  if (!base_->Adopt(candidates).has_value()) {
    if (!newest.has_value()) return Ok();
    WW_TRY(const bool rebuilt, Rebuild(*newest));
    if (!rebuilt) return Ok();
  }
  // From there by what is spooled.
  for (const SpoolEntry& entry : waiting) {
    const Record& record = entry.known.record;
    if (record.version <= base_->version()) continue;
    if (!record.delta.has_value()) {
      base_->Lose();
      return Ok();
    }
    if (record.delta->empty()) {
      base_->AdvanceSame();
      continue;
    }
    WW_TRY(const std::unique_ptr<FileMap> part, spool_->OpenPart(record.version));
    const auto stage = [&]() -> Result<std::shared_ptr<const StagedChange>> {
      WW_TRY(const DeltaFile file, DeltaFile::Parse(part->bytes()));
      return StageDelta(file, base_->View(), *tools_.kernels, *tools_.pool);
    };
    const auto change = stage();
    if (!change.ok() || change.value()->state_after() != record.state) {
      base_->Lose();
      return Ok();
    }
    WW_RETURN_IF_ERROR(base_->Advance(*change.value()));
  }
  return Ok();
}

Result<bool> Publisher::Rebuild(const KnownRecord& version) {
  if (!options_.rebuild) return false;
  MemoryTarget target(*tools_.kernels, *tools_.pool);
  FollowerOptions options;
  options.name = "publisher";
  options.fetch_threads = tools_.fetch_threads;
  const Status rebuilt = weightwire::Rebuild(job_tools_.run, version.record.version, target, NewId(*tools_.random),
                                             options, {tools_.clock, tools_.kernels, tools_.pool});
  if (!rebuilt.ok()) {
    if (MayMend(rebuilt.error())) return rebuilt.error();
    note_ = fmt::format("version {} could not be rebuilt, so the next one is a rebase: {}", version.record.version,
                        rebuilt.error().message());
    return false;
  }
  StateBits bits{std::make_shared<const Layout>(target.layout()), {}};
  for (std::size_t i = 0; i < bits.layout->size(); ++i) bits.tensors.push_back(target.bytes(i));
  WW_RETURN_IF_ERROR(base_->Replace(bits, version.record.version));
  if (base_->state() == version.record.state) return true;
  base_->Lose();
  return false;
}

// --- the caller's side ---

Admission Publisher::Admit() {
  Admission admission = pipeline_->Admit();
  // A base is rebuilt from what is committed: with versions on their way one waits for them.
  if (!base_->holds() && options_.rebuild && !admission.empty) admission.full = true;
  return admission;
}

void Publisher::Describe(Draft& draft, std::uint64_t step) {
  draft.version = base_->version();
  draft.step = step;
  draft.time =
      TimeText(std::chrono::duration_cast<std::chrono::seconds>(tools_.clock->Wall().time_since_epoch()).count());
  draft.layout = base_->layout();
  draft.state = base_->state();
  // A record waits for the anchor of a version without a delta: that one must be readable as long as it takes.
  draft.pin = base_->Pin(/*revocable=*/draft.has_delta);
  draft.note = std::exchange(note_, "");
}

Result<std::optional<Draft>> Publisher::MakeWhole(const StateBits& bits, std::uint64_t step,
                                                  const Admission& admission) {
  const Version version = admission.newest_version.has_value() ? *admission.newest_version + 1 : 0;
  WW_RETURN_IF_ERROR(base_->Replace(bits, version));
  Draft draft;
  if (admission.newest_state == base_->state() && admission.newest_layout == bits.layout->hash()) {
    // It is the newest version itself: then there is a base again, and nothing to send.
    base_->Renumber(*admission.newest_version);
    if (step == admission.newest_step) return std::optional<Draft>();
    base_->AdvanceSame();
  } else {
    draft.has_delta = false;
    draft.changed = AllUnits(*bits.layout);
  }
  Describe(draft, step);
  return std::optional(std::move(draft));
}

Result<std::optional<Draft>> Publisher::Make(const StateBits& bits, std::uint64_t step, const Admission& admission) {
  WW_RETURN_IF_ERROR(CheckBits(bits));
  if (base_->holds() && !admission.newest_version.has_value()) base_->Lose();
  if (base_->holds() && base_->version() > *admission.newest_version) {
    // What was published after it failed. If the old bits are gone, so is the base.
    static_cast<void>(base_->RollBack(*admission.newest_version));
  }
  if (base_->holds()) base_->Forget(admission.safe, base_->StepLimit());
  if (!base_->holds() && admission.newest_record.has_value()) {
    WW_RETURN_IF_ERROR(Rebuild(*admission.newest_record));
  }
  if (!base_->holds()) return MakeWhole(bits, step, admission);

  WW_TRY(BaseAdvance advance, base_->Advance(bits, step == admission.newest_step));
  if (advance.same && step == admission.newest_step) return std::optional<Draft>();
  Draft draft;
  draft.changed = advance.changed;
  if (!advance.same) draft.part = std::make_shared<const DeltaBytes>(std::move(advance.delta));
  Describe(draft, step);
  return std::optional(std::move(draft));
}

Ticket Publisher::Enqueue(Draft draft) {
  if (!draft.note.empty() && warnings_.size() < kMaxWarnings) warnings_.push_back(std::move(draft.note));
  return pipeline_->Enqueue(std::move(draft), tools_.clock->Monotonic());
}

Ticket Publisher::TicketWithoutVersion(TicketStage stage, std::uint64_t step) const {
  auto ticket = std::make_shared<TicketStatus>();
  ticket->step = step;
  ticket->Reach(stage, tools_.clock->Monotonic());
  return ticket;
}

Result<std::optional<Ticket>> Publisher::Publish(const StateBits& bits, std::uint64_t step) {
  const Admission admission = Admit();
  if (admission.stopped.has_value()) return *admission.stopped;
  if (admission.full) {
    if (!options_.skip_when_full) return std::optional<Ticket>();
    return std::optional(TicketWithoutVersion(TicketStage::kSkipped, step));
  }
  WW_TRY(std::optional<Draft> draft, Make(bits, step, admission));
  if (draft.has_value()) return std::optional(Enqueue(std::move(*draft)));
  Ticket ticket = TicketWithoutVersion(TicketStage::kAlreadyPublished, step);
  ticket->version = admission.newest_version;
  return std::optional(std::move(ticket));
}

// --- the other side ---

std::optional<Job> Publisher::Next(Lane lane) { return pipeline_->Next(lane, tools_.clock->Monotonic()); }

void Publisher::Finish(Job job) { pipeline_->Finish(std::move(job), tools_.clock->Monotonic()); }

std::optional<MonotonicTime> Publisher::Due(Lane lane) const { return pipeline_->Due(lane); }

PublisherStatus Publisher::status() const { return {pipeline_->status(), warnings_}; }

bool Publisher::Work() {
  for (const Lane lane : kAllLanes) {
    auto job = Next(lane);
    if (!job.has_value()) continue;
    Execute(*job);
    Finish(std::move(*job));
    return true;
  }
  return false;
}

}  // namespace weightwire
