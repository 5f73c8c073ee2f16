// How a publisher starts: checks that it may write, takes up what an earlier process has left, and finds its committer.
#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/surface.h"
#include "publish/publisher.h"
#include "store/probe.h"

namespace weightwire {
namespace {

// Whether put-if-absent lets only one of two writers win: kUnsupported if not, unless the run has a single writer.
Status CheckPutIfAbsent(const Run& run, Random& random) {
  if (run.manifest().single_writer) return Ok();
  Store& store = run.store();
  WW_TRY(const bool honours, HonoursPutIfAbsent(store, random));
  if (honours) return Ok();
  return Error(ErrorCode::kUnsupported,
               fmt::format("{} does not refuse to create an object twice, so two publishers could destroy each other's "
                           "versions; make the run with {} if there is only one",
                           store.Name(), FlagText("single-writer")));
}

}  // namespace

Publisher::Publisher(Run run, PublisherOptions options, PublisherTools tools)
    : run_(std::move(run)), options_(std::move(options)), tools_(std::move(tools)) {}

Result<std::unique_ptr<Publisher>> Publisher::Open(Run run, PublisherOptions options, const PublisherTools& tools,
                                                   std::string_view start) {
  WW_CHECK(!options.base_on_disk || options.state_directory.has_value());
  if (options.group.has_value()) {
    WW_CHECK(options.group->rank < options.group->ranks && start.empty() == (options.group->rank == 0));
    WW_CHECK(!options.state_directory.has_value() && !options.skip_when_full);
  }
  std::unique_ptr<Publisher> publisher(new Publisher(std::move(run), std::move(options), tools));
  WW_RETURN_IF_ERROR(publisher->Start(start));
  return publisher;
}

Status Publisher::Start(std::string_view start) {
  WW_RETURN_IF_ERROR(run_.CheckMayWrite());
  if (options_.state_directory.has_value()) WW_RETURN_IF_ERROR(LockStateDirectory());
  anchors_.files = options_.anchor_files;
  anchors_.file_system = tools_.files;
  maker_ = std::make_unique<VersionMaker>(run_, options_, tools_);
  if (start.empty()) {
    WW_RETURN_IF_ERROR(StartCommitter());
  } else {
    WW_RETURN_IF_ERROR(StartAsRank(start));
  }
  if (options_.group.has_value()) {
    board_ = std::make_unique<BoardLink>(options_.group->rank, options_.group->deadline,
                                         host_.has_value() ? &*host_ : nullptr, outbox_);
  }
  return Ok();
}

Status Publisher::StartCommitter() {
  WW_RETURN_IF_ERROR(CheckPutIfAbsent(run_, *tools_.random));
  if (options_.extra_files.has_value()) {
    WW_TRY(ExtraFiles extra, FindExtraFiles(*tools_.files, *options_.extra_files, options_.include_code));
    anchors_.extra = std::move(extra.files);
    warnings_ = std::move(extra.left_out);
  }
  WW_TRY(newest_, run_.FindNewest(std::nullopt));
  std::vector<SpoolEntry> spooled;
  if (spool_ != nullptr) {
    WW_TRY(spooled,
           RecoverSpool(run_, *spool_, options_.state_directory->string(), newest_, options_.discard_conflicting));
  }
  std::optional<KnownAnchor> anchor;
  if (newest_.has_value()) {
    WW_TRY(anchor, FindNewestAnchor(run_, newest_->record));
  }
  if (options_.group.has_value()) {
    if (newest_.has_value()) newest_serial_ = 0;  // whatever the base will be is numbered from there
  } else {
    WW_RETURN_IF_ERROR(maker_->Recover(newest_, spooled, spool_.get()));
    if (newest_.has_value()) newest_serial_ = newest_->record.version;
  }
  committer_.emplace(run_, options_, anchors_, *tools_.random, spool_.get(), newest_, std::move(anchor));
  next_anchor_ = committer_->next_anchor();
  for (SpoolEntry& entry : spooled) Resume(entry);
  if (options_.group.has_value()) host_.emplace(run_, options_, anchors_, *committer_, outbox_);
  return Ok();
}

Status Publisher::StartAsRank(std::string_view start) {
  WW_TRY(const GroupStart group, ParseGroupStart(start));
  if (group.run != run_.id()) {
    return Error(ErrorCode::kMismatch,
                 fmt::format("{} is run {}, and rank 0 publishes to run {}: all ranks must see the same bucket or "
                             "directory",
                             run_.store().Name(), ToHex(run_.id()), ToHex(group.run)));
  }
  next_anchor_ = group.next_anchor;
  if (!group.newest.has_value()) return Ok();
  WW_TRY(newest_, run_.ReadRecord(*group.newest));
  if (!newest_.has_value() || newest_->hash != group.record_hash) {
    return Error(ErrorCode::kMismatch,
                 fmt::format("version {} of {} is not what rank 0 sees there: do all ranks have the same run?",
                             *group.newest, run_.store().Name()));
  }
  newest_serial_ = 0;
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
                 fmt::format("another publisher uses {}; stop it, or use another directory ({})", directory.string(),
                             OptionText("state-dir", "DIR")));
  }
  lock_ = std::move(lock).value();
  spool_ = std::make_unique<Spool>(files, directory / "spool");
  return Ok();
}

void Publisher::Resume(const SpoolEntry& spooled) {
  const Record& record = spooled.known.record;
  Entry& entry = entries_.emplace_back(next_call_++, options_.retry);
  entry.draft.serial = record.version;
  entry.draft.step = record.step;
  entry.draft.whole = !record.delta.has_value();
  entry.part_bytes = record.OwnDeltaBytes();
  entry.in_base = entry.decided = entry.sent = true;
  entry.ticket = std::make_shared<TicketStatus>();
  entry.ticket->stage = TicketStage::kSpooled;
  entry.ticket->version = record.version;
  entry.ticket->step = record.step;
  if (record.delta.has_value()) entry.ticket->delta_bytes = entry.part_bytes;
  entry.ticket->changed = record.changed;
  entry_bytes_ += entry.part_bytes;
  committer_->Resume(entry.call, spooled);
}

}  // namespace weightwire
