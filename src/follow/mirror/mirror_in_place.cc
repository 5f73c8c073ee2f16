#include "follow/mirror/mirror_in_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/bytes.h"
#include "codec/digest/state.h"
#include "follow/in_place/journal.h"
#include "follow/in_place/journal_writer.h"
#include "follow/mirror/mirror_state.h"
#include "tensor/json.h"

namespace weightwire {

std::string LayoutFile(const Sha256Digest& layout) { return fmt::format("layout.{}.json", ToHex(layout)); }
std::string DigestFile(const Sha256Digest& state) { return fmt::format("digests.{}", ToHex(state)); }

Error ReloadNeededError(const FileSystem::Path& directory, const std::string& why) {
  return {ErrorCode::kCorrupt, fmt::format("{} must be loaded again: {}", directory.string(), why)};
}

Status MirrorInPlace::CheckUsable() const {
  if (!needs_recovery_) return Ok();
  return Error(ErrorCode::kIo,
               fmt::format("an earlier error of the disk may have left an update of {} unfinished; open "
                           "the mirror again, which finishes it",
                           directory_.string()));
}

Status MirrorInPlace::SaveState(const MirrorState& next) {
  Status saved = WriteDurably(files_, own_ / kStateFile, ToJson(next));
  if (saved.ok()) {
    state_ = next;
    return saved;
  }
  // The outcome is unknown only if the new text has the name already, because the name may not be durable. It is known
  // if the disk was full before the rename.
  const auto there = ReadMirrorState(files_, directory_);
  const bool as_before = there.ok() ? there.value() == state_ && !(state_ == next)
                                    : there.error().code() == ErrorCode::kNotFound && state_ == MirrorState();
  if (!as_before) needs_recovery_ = true;
  return saved;
}

namespace {

// A lock whose owner tells when it is taken and released.
class AnnouncedLock final : public FileLock {
 public:
  AnnouncedLock(std::unique_ptr<FileLock> lock, const std::function<void(bool)>& announce)
      : lock_(std::move(lock)), announce_(announce) {
    announce_(true);
  }
  ~AnnouncedLock() override {
    lock_.reset();
    announce_(false);
  }

 private:
  std::unique_ptr<FileLock> lock_;
  const std::function<void(bool)>& announce_;  // of the mirror's options
};

}  // namespace

Result<std::unique_ptr<FileLock>> MirrorInPlace::LockContent() {
  auto lock = files_.Lock(own_ / kContentLock, LockMode::kExclusive);
  if (!lock.ok() && lock.error().code() == ErrorCode::kUnavailable) {
    return Error(ErrorCode::kUnavailable,
                 fmt::format("{} is being read at this moment; it is written when no reader holds it any more",
                             directory_.string()));
  }
  if (!lock.ok() || !options_.content_locked) return lock;
  return std::unique_ptr<FileLock>(std::make_unique<AnnouncedLock>(std::move(lock).value(), options_.content_locked));
}

Status MirrorInPlace::OpenUpdates() {
  if (!updates_.empty()) return Ok();
  std::vector<std::unique_ptr<UpdateMap>> updates;
  for (const CheckpointFile& file : content_->checkpoint().files()) {
    WW_TRY(std::unique_ptr<UpdateMap> update, files_.MapForUpdate(directory_ / file.name));
    updates.push_back(std::move(update));
  }
  updates_ = std::move(updates);
  return Ok();
}

Status MirrorInPlace::SaveLayoutAndDigests(const Layout& layout, const std::vector<Digest>& digests,
                                           const Sha256Digest& state) {
  WW_RETURN_IF_ERROR(WriteDurably(files_, own_ / LayoutFile(layout.hash()), layout.CanonicalJson()));
  return WriteDigests(files_, own_ / DigestFile(state), digests);
}

Status MirrorInPlace::Verify() {
  WW_RETURN_IF_ERROR(CheckUsable());
  if (damage_.has_value()) return *damage_;
  if (!content_.has_value()) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} holds no version yet that could be verified", directory_.string()));
  }
  Status found = FindDamage();
  if (found.ok() || found.error().code() != ErrorCode::kCorrupt) return found;
  // Without saved digests, opening the mirror digests it in full, even if it is told to trust the files.
  (void)files_.Remove(own_ / DigestFile(state_.held->state));
  SetDamaged(found.error());
  return *damage_;
}

// REQUIRES: the content is open.
Status MirrorInPlace::FindDamage() const {
  // Open the files again, which also compares the tensors that they contain under several names.
  const auto opened = MirrorContent::Open(files_, directory_, std::make_shared<const Layout>(content_->layout()));
  if (!opened.ok()) {
    return opened.error().code() == ErrorCode::kIo ? opened.error() : Corrupt(opened.error().message());
  }
  const std::vector<Digest> found = opened.value().DigestInFull(kernels_, pool_);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == content_->digests()[i]) continue;
    return Corrupt(fmt::format("tensor {} does not have its digest", Quoted(content_->layout().tensors()[i].name)));
  }
  return Ok();
}

Status MirrorInPlace::Apply(const std::shared_ptr<const StagedChange>& change, const Held& after) {
  WW_RETURN_IF_ERROR(CheckUsable());
  if (!held_.has_value() || !(change->layout_before() == content_->layout()) ||
      change->digests_before() != content_->digests()) {
    return Error(ErrorCode::kMismatch, fmt::format("the change does not begin at what {} holds", directory_.string()));
  }
  WW_CHECK(change->layout_after().hash() == after.layout && change->state_after() == after.state);
  if (!(change->layout_after() == change->layout_before())) return ApplyByFiles(*change, after);
  if (!change->tensors().empty()) return ApplyByJournal(*change, after);
  // The same bits under another version.
  WW_TRY(const std::unique_ptr<FileLock> lock, LockContent());
  WW_RETURN_IF_ERROR(SaveState({after, std::nullopt, state_.unsynced}));
  held_ = after;
  prepared_change_.reset();
  prepared_files_.reset();
  return Ok();
}

Status MirrorInPlace::ApplyByJournal(const StagedChange& change, const Held& after) {
  // The journal is all there is to complete the previous change with, so it stays until that change is durable.
  WW_RETURN_IF_ERROR(Sync());
  const Held before = *state_.held;
  const MirrorState writing{before, MirrorState::Writing{after, MirrorState::By::kJournal}, std::nullopt};
  const MirrorState written{after, std::nullopt, files_.BootId()};
  if (!(prepared_change_ == after)) {
    prepared_change_.reset();
    WW_RETURN_IF_ERROR(PrepareChange(change, ChangeNote{before, after}, writing, written));
    prepared_change_ = after;
  }
  WW_RETURN_IF_ERROR(OpenUpdates());
  WW_TRY(const std::unique_ptr<FileLock> lock, LockContent());
  needs_recovery_ = true;  // until the change is complete
  prepared_change_.reset();
  undo_.reset();
  prepared_files_.reset();
  WW_RETURN_IF_ERROR(files_.Rename(own_ / kNextJournalFile, own_ / kJournalFile));
  WW_RETURN_IF_ERROR(files_.Rename(own_ / kWritingStateFile, own_ / kStateFile));
  // One sync makes both names durable. If a crash keeps only the second, no weight has changed yet: see
  // FinishUnstarted.
  WW_RETURN_IF_ERROR(files_.SyncDirectory(own_));
  WW_RETURN_IF_ERROR(WriteChange(change));
  // This name may become durable later. Without it, opening replays the journal, with the same result.
  WW_RETURN_IF_ERROR(files_.Rename(own_ / kWrittenStateFile, own_ / kStateFile));
  state_ = written;
  needs_recovery_ = false;
  held_ = after;
  content_->set_digests(change.digests_after());
  undo_ = ChangeNote{before, after};
  return Ok();
}

// Makes durable, under names of their own, the files that must exist before a weight is written. Syncs them together,
// because that costs little more than one sync.
Status MirrorInPlace::PrepareChange(const StagedChange& change, const ChangeNote& note, const MirrorState& writing,
                                    const MirrorState& written) {
  JournalRequest request;
  request.change = &change;
  request.note = ToJson(note);
  request.files = content_->checkpoint().files();
  request.locations = content_->locations();
  request.tensors = content_->tensors();
  WW_TRY(const auto journal, WriteJournal(files_, own_ / kNextJournalFile, request, kernels_, pool_));
  WW_TRY(const auto writing_file, CreateStateFile(kWritingStateFile, writing));
  WW_TRY(const auto written_file, CreateStateFile(kWrittenStateFile, written));
  std::array<NewFile*, 3> unsynced = {journal.get(), writing_file.get(), written_file.get()};
  std::array<Status, 3> synced;
  pool_.ParallelFor(unsynced.size(), [&](std::size_t i, std::size_t) { synced[i] = unsynced[i]->Sync(); });
  for (const Status& status : synced) WW_RETURN_IF_ERROR(status);
  return Ok();
}

// Creates a file with that state, and does not sync it.
Result<std::unique_ptr<NewFile>> MirrorInPlace::CreateStateFile(std::string_view name, const MirrorState& state) {
  WW_TRY(const std::optional<FileInfo> left, files_.Stat(own_ / name));
  if (left.has_value()) WW_RETURN_IF_ERROR(files_.Remove(own_ / name));
  WW_TRY(std::unique_ptr<NewFile> file, files_.Create(own_ / name));
  const std::string text = ToJson(state);
  WW_RETURN_IF_ERROR(file->Append(BytesOf(text)));
  return file;
}

Status MirrorInPlace::WriteChange(const StagedChange& change) {
  struct Write {
    const StagedTensor* staged;
    std::span<std::uint8_t> bytes;
  };
  const Layout& layout = content_->layout();
  // Readers wait for this, so sort the locations by file in one pass, however many files there are.
  std::vector<std::vector<const TensorLocation*>> locations(updates_.size());
  for (const TensorLocation& one : content_->locations()) locations[one.file].push_back(&one);
  for (std::size_t file = 0; file < updates_.size(); ++file) {
    std::vector<Write> writes;
    for (const TensorLocation* location : locations[file]) {
      const StagedTensor* staged = change.Find(location->tensor);
      if (staged == nullptr) continue;
      writes.push_back({staged, {}});
      WW_TRY(writes.back().bytes, updates_[file]->ForWriting(location->offset, layout.byte_size(location->tensor)));
    }
    // The largest first, so that no thread is left with it alone at the end.
    std::sort(writes.begin(), writes.end(),
              [](const Write& a, const Write& b) { return a.staged->changed() > b.staged->changed(); });
    pool_.ParallelFor(writes.size(), [&](std::size_t i, std::size_t) { writes[i].staged->Write(writes[i].bytes); });
  }
  return Ok();
}

Status MirrorInPlace::Sync() {
  WW_RETURN_IF_ERROR(CheckUsable());
  if (!state_.unsynced.has_value() || damage_.has_value()) return Ok();
  // A failed sync may have lost the bytes that it was to write. Only a replay of the journal writes them again.
  needs_recovery_ = true;
  for (const std::unique_ptr<UpdateMap>& update : updates_) WW_RETURN_IF_ERROR(update->Sync());
  needs_recovery_ = false;
  // The weights are durable. A failure from here on is harmless: opening has the same result with either state, and the
  // next Sync repeats the rest.
  const FileSystem::Path digests = own_ / DigestFile(state_.held->state);
  WW_RETURN_IF_ERROR(WriteDigests(files_, digests, content_->digests()));
  const MirrorState synced{state_.held, std::nullopt, std::nullopt};
  WW_RETURN_IF_ERROR(WriteDurably(files_, own_ / kStateFile, ToJson(synced)));
  state_ = synced;
  // Best effort: remove the previous version's digests. Failure is harmless.
  if (const auto names = files_.List(own_); names.ok()) {
    for (const std::string& name : names.value()) {
      if (name.starts_with("digests.") && own_ / name != digests) (void)files_.Remove(own_ / name);
    }
  }
  return Ok();
}

Result<bool> MirrorInPlace::RunMaintenance() {
  WW_RETURN_IF_ERROR(CheckUsable());
  if (synced() || damage_.has_value()) return false;
  WW_RETURN_IF_ERROR(Sync());
  return true;
}

Status MirrorInPlace::Undo() {
  WW_RETURN_IF_ERROR(CheckUsable());
  const std::optional<Held> target = undo_target();
  if (!target.has_value()) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} has no change that could be taken back: there is none, it was taken back already, or "
                    "it was a whole load or a change of the layout, of which no old bits are kept; stand still "
                    "on the version wanted instead",
                    directory_.string()));
  }
  WW_TRY(const Journal journal, Journal::Open(files_, own_ / kJournalFile, kernels_));
  WW_CHECK(journal.state_before() == target->state && journal.files().size() == content_->checkpoint().files().size());
  WW_RETURN_IF_ERROR(OpenUpdates());
  WW_TRY(const std::unique_ptr<FileLock> lock, LockContent());
  WW_RETURN_IF_ERROR(
      SaveState({state_.held, MirrorState::Writing{*target, MirrorState::By::kJournal}, state_.unsynced}));
  needs_recovery_ = true;
  for (std::size_t i = 0; i < updates_.size(); ++i) {
    WW_TRY(const std::span<std::uint8_t> bytes, updates_[i]->ForWriting(0, updates_[i]->size_bytes()));
    journal.Write(i, bytes, Journal::Direction::kBack, pool_);
  }
  WW_RETURN_IF_ERROR(SaveState({*target, std::nullopt, files_.BootId()}));
  needs_recovery_ = false;
  held_ = target;
  prepared_change_.reset();
  prepared_files_.reset();
  content_->set_digests(journal.digests_before());
  undo_.reset();
  return Ok();
}

}  // namespace weightwire
