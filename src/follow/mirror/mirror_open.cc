#include <fmt/format.h>

#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/limits.h"
#include "base/surface.h"
#include "codec/digest/state.h"
#include "follow/in_place/journal.h"
#include "follow/mirror/mirror_in_place.h"
#include "follow/mirror/mirror_state.h"
#include "log/limits.h"

namespace weightwire {
namespace {

using Path = FileSystem::Path;

// True for the names that a mirror gives to files of its own, except its locks, which are never stale.
bool IsOwnFile(std::string_view name) {
  constexpr std::string_view kTemporary = ".tmp";  // WriteDurably's
  if (name.ends_with(kTemporary)) name.remove_suffix(kTemporary.size());
  for (const std::string_view own : {kStateFile, kMirrorFilesFile, kJournalFile, kNextJournalFile, kWritingStateFile,
                                     kWrittenStateFile, kReplacementFile, kIncoming}) {
    if (name == own) return true;
  }
  return name.starts_with("layout.") || name.starts_with("digests.");
}

}  // namespace

Status MirrorInPlace::Open() {
  WW_RETURN_IF_ERROR(ClaimDirectory());
  WW_TRY(follower_lock_, LockFollower(files_, directory_));
  WW_TRY(const std::optional<FileInfo> content_lock, files_.Stat(own_ / kContentLock));
  if (!content_lock.has_value()) WW_RETURN_IF_ERROR(files_.Lock(own_ / kContentLock, LockMode::kExclusive));
  return LoadState();
}

// Reads the state from the disk, and completes a change that a crash interrupted.
Status MirrorInPlace::LoadState() {
  // The previous follower may have been killed between renaming a file and syncing the directory. Sync it now, so that
  // a later power failure cannot undo a name that the code below relies on.
  WW_RETURN_IF_ERROR(files_.SyncDirectory(own_));
  auto state = ReadMirrorState(files_, directory_);
  if (state.ok()) {
    state_ = std::move(state).value();
    WW_RETURN_IF_ERROR(FinishInterrupted());
    if (state_.held.has_value() && !damage_.has_value()) WW_RETURN_IF_ERROR(OpenContent(options_.check));
    if (!damage_.has_value()) {
      held_ = state_.held;
      undo_ = ReadUndo();
    }
  } else if (state.error().code() == ErrorCode::kNotFound) {
    held_.reset();
  } else if (state.error().code() == ErrorCode::kCorrupt) {
    SetDamaged(state.error());
  } else {
    return state.error();
  }
  return damage_.has_value() ? Ok() : RemoveStaleFiles();
}

Result<bool> MirrorInPlace::Recover() {
  if (!needs_recovery_) return false;
  // Discard the in-memory state; it may not match the disk. Keep `held_`, so that held() has an answer until the files
  // are read again.
  state_ = MirrorState();
  damage_.reset();
  content_.reset();
  updates_.clear();
  undo_.reset();
  prepared_change_.reset();
  prepared_files_.reset();
  ++loads_;
  WW_RETURN_IF_ERROR(LoadState());
  needs_recovery_ = false;
  return true;
}

// Creates the mirror's own folder, unless the directory is a mirror already.
Status MirrorInPlace::ClaimDirectory() {
  WW_RETURN_IF_ERROR(MakeDirectories(files_, directory_));
  WW_TRY(const std::optional<FileInfo> own, files_.Stat(own_));
  if (own.has_value() && own->kind != FileKind::kDirectory) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("{} is not a directory; remove it", own_.string()));
  }
  WW_TRY(const std::optional<FileInfo> swap, files_.Stat(own_ / kSwapMark));
  if (swap.has_value()) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} holds whole copies behind a link, and is kept with {} only", directory_.string(),
                             FlagText("swap")));
  }
  WW_TRY(const std::vector<std::string> names, files_.List(directory_));
  if (!own.has_value() && !names.empty() && !options_.adopt) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} is not empty and not a mirror of ours; choose an empty directory, or say that its "
                             "files may be taken over ({})",
                             directory_.string(), FlagText("adopt")));
  }
  if (!own.has_value()) {
    // The process that made the parent directories may have been killed before their names were durable. Once the
    // mirror's own folder exists, they are.
    WW_RETURN_IF_ERROR(SyncAncestors(files_, directory_));
    WW_RETURN_IF_ERROR(files_.MakeDirectory(own_));
  }
  // Sync it even if the folder exists, because the process that made it may have been killed before this line.
  return files_.SyncDirectory(directory_);
}

// Completes a change that a crash interrupted, and replays one whose weights may not be durable.
Status MirrorInPlace::FinishInterrupted() {
  if (state_.writing.has_value()) {
    return state_.writing->by == MirrorState::By::kFiles ? FinishByFiles() : FinishByJournal(state_.writing->target);
  }
  if (state_.held.has_value() && state_.unsynced.has_value()) return FinishByJournal(*state_.held);
  return Ok();
}

Status MirrorInPlace::FinishByFiles() {
  const auto text = files_.Read(own_ / kReplacementFile, kMaxReplacementBytes);
  if (!text.ok()) {
    SetDamaged(text.error());
    return Ok();
  }
  const auto replacement = ParseReplacement(TextOf(text.value()));
  if (!replacement.ok() || !(replacement.value().target == state_.writing->target)) {
    SetDamaged({ErrorCode::kCorrupt, "the list of files of an unfinished update is damaged"});
    return Ok();
  }
  WW_TRY(const std::unique_ptr<FileLock> lock, LockContent());
  WW_RETURN_IF_ERROR(Install(replacement.value()));
  return SaveState({replacement.value().target, std::nullopt, std::nullopt});
}

Status MirrorInPlace::FinishByJournal(const Held& target) {
  auto journal = Journal::Open(files_, own_ / kJournalFile, kernels_);
  if (!journal.ok() && journal.error().code() == ErrorCode::kIo) return journal.error();
  if (!journal.ok() && journal.error().code() != ErrorCode::kNotFound) {
    SetDamaged(journal.error());
    return Ok();
  }
  const bool forward = journal.ok() && journal.value().state_after() == target.state;
  if (!forward && (!journal.ok() || journal.value().state_before() != target.state)) return FinishUnstarted();
  WW_TRY(const std::unique_ptr<FileLock> lock, LockContent());
  const Status replayed = ReplayJournal(files_, directory_, journal.value(),
                                        forward ? Journal::Direction::kForward : Journal::Direction::kBack, pool_);
  if (!replayed.ok()) {
    if (replayed.error().code() == ErrorCode::kIo) return replayed.error();
    SetDamaged(replayed.error());
    return Ok();
  }
  WW_RETURN_IF_ERROR(WriteDigests(files_, own_ / DigestFile(target.state),
                                  forward ? journal.value().digests_after() : journal.value().digests_before()));
  return SaveState({target, std::nullopt, std::nullopt});
}

// Handles a state that says "being written by the journal" beside a journal of another change. Either a crash kept only
// the name of the state, which happens before the first weight changes, or another program removed the journal. The
// digest of the files decides which.
Status MirrorInPlace::FinishUnstarted() {
  if (!state_.writing.has_value() || !state_.held.has_value()) {
    SetDamaged({ErrorCode::kCorrupt, "the journal of its last update is missing"});
    return Ok();
  }
  auto layout = ReadLayout(state_.held->layout);
  if (!layout.ok() && layout.error().code() == ErrorCode::kIo) return layout.error();
  if (layout.ok()) {
    const auto content = MirrorContent::Open(files_, directory_, layout.value());
    if (!content.ok() && content.error().code() == ErrorCode::kIo) return content.error();
    if (content.ok() &&
        StateDigest(*layout.value(), content.value().DigestInFull(kernels_, pool_)) == state_.held->state) {
      return SaveState({state_.held, std::nullopt, std::nullopt});
    }
  }
  SetDamaged({ErrorCode::kCorrupt, "its last update was cut off, and the journal of that is missing"});
  return Ok();
}

Status MirrorInPlace::OpenContent(bool check) {
  const Held& held = *state_.held;
  auto layout = ReadLayout(held.layout);
  if (!layout.ok()) {
    if (layout.error().code() == ErrorCode::kIo) return layout.error();
    SetDamaged(layout.error());
    return Ok();
  }
  auto content = MirrorContent::Open(files_, directory_, std::move(layout).value());
  if (!content.ok()) {
    if (content.error().code() == ErrorCode::kIo) return content.error();
    SetDamaged(content.error());
    return Ok();
  }
  content_.emplace(std::move(content).value());
  updates_.clear();
  auto digests = ReadDigests(files_, own_ / DigestFile(held.state), content_->layout(), held.state);
  if (digests.has_value() && !check) {
    content_->set_digests(std::move(*digests));
    return Ok();
  }
  std::vector<Digest> found = content_->DigestInFull(kernels_, pool_);
  if (StateDigest(content_->layout(), found) != held.state) {
    SetDamaged({ErrorCode::kCorrupt, fmt::format("its files do not have the digest of version {}", held.version)});
    return Ok();
  }
  content_->set_digests(std::move(found));
  return WriteDigests(files_, own_ / DigestFile(held.state), content_->digests());
}

Result<std::shared_ptr<const Layout>> MirrorInPlace::ReadLayout(const Sha256Digest& hash) {
  const Path path = own_ / LayoutFile(hash);
  WW_TRY(const std::vector<std::uint8_t> text, files_.Read(path, kMaxLayoutBytes));
  auto layout = Layout::Parse(TextOf(text));
  if (!layout.ok() || layout.value().hash() != hash) {
    return Error(ErrorCode::kCorrupt, fmt::format("{} is damaged", path.string()));
  }
  return std::make_shared<const Layout>(std::move(layout).value());
}

std::optional<ChangeNote> MirrorInPlace::ReadUndo() {
  const auto journal = Journal::Open(files_, own_ / kJournalFile, kernels_);
  if (!journal.ok()) return std::nullopt;
  auto note = ParseChangeNote(journal.value().note());
  if (!note.ok() || !(state_.held == note.value().after)) return std::nullopt;
  return std::move(note).value();
}

// Removes the mirror's own files that no change and no state needs. Others may keep files in the folder, too.
Status MirrorInPlace::RemoveStaleFiles() {
  std::set<std::string> kept = {std::string(kStateFile), std::string(kMirrorFilesFile)};
  if (undo_.has_value() || state_.unsynced.has_value()) kept.emplace(kJournalFile);
  if (state_.held.has_value()) {
    kept.insert(LayoutFile(state_.held->layout));
    kept.insert(DigestFile(state_.held->state));
  }
  WW_TRY(const std::vector<std::string> names, files_.List(own_));
  for (const std::string& name : names) {
    if (IsOwnFile(name) && !kept.contains(name)) WW_RETURN_IF_ERROR(RemoveTree(files_, own_ / name));
  }
  return Ok();
}

Result<std::unique_ptr<Mirror>> OpenMirror(FileSystem& files, const FileSystem::Path& directory,
                                           const MirrorOptions& options, const Kernels& kernels, ThreadPool& pool) {
  auto mirror = std::make_unique<MirrorInPlace>(files, directory, options, kernels, pool);
  WW_RETURN_IF_ERROR(mirror->Open());
  return std::unique_ptr<Mirror>(std::move(mirror));
}

}  // namespace weightwire
