#include <fmt/format.h>

#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/limits.h"
#include "codec/digest/state.h"
#include "follow/in_place/journal.h"
#include "follow/in_place/journal_replay.h"
#include "follow/mirror/digest_file.h"
#include "follow/mirror/mirror_in_place.h"
#include "log/limits.h"

namespace weightwire {
namespace {

using Path = FileSystem::Path;

}  // namespace

Status MirrorInPlace::Open() {
  WW_RETURN_IF_ERROR(TakeOver());
  WW_TRY(follower_lock_, LockFollower(files_, directory_));
  WW_TRY(const std::optional<FileInfo> content_lock, files_.Stat(own_ / kContentLock));
  if (!content_lock.has_value()) WW_RETURN_IF_ERROR(files_.Lock(own_ / kContentLock, LockMode::kExclusive));
  return ReadBack();
}

// Takes up what is on the disk, and finishes what was begun there.
Status MirrorInPlace::ReadBack() {
  // Whoever kept the mirror may have been killed between naming a file and syncing that name. What is acted on below
  // must not be taken back by a power failure that comes later.
  WW_RETURN_IF_ERROR(files_.SyncDirectory(own_));
  auto state = ReadMirrorState(files_, directory_);
  if (state.ok()) {
    state_ = std::move(state).value();
    WW_RETURN_IF_ERROR(Finish());
    if (state_.held.has_value() && !damage_.has_value()) WW_RETURN_IF_ERROR(OpenContent(options_.check));
    if (!damage_.has_value()) {
      held_ = state_.held;
      undo_ = ReadUndo();
    }
  } else if (state.error().code() == ErrorCode::kNotFound) {
    held_.reset();
  } else if (state.error().code() == ErrorCode::kCorrupt) {
    Damage(state.error());
  } else {
    return state.error();
  }
  return damage_.has_value() ? Ok() : RemoveStaleFiles();
}

Result<bool> MirrorInPlace::Recover() {
  if (!broken_) return false;
  // Nothing in memory counts any more. Only what is held is still said, until it is known what is.
  state_ = MirrorState();
  damage_.reset();
  content_.reset();
  updates_.clear();
  undo_.reset();
  journaled_.reset();
  ready_.reset();
  ++loads_;
  WW_RETURN_IF_ERROR(ReadBack());
  broken_ = false;
  return true;
}

// The directory is ours, or becomes so.
Status MirrorInPlace::TakeOver() {
  WW_RETURN_IF_ERROR(MakeDirectories(files_, directory_));
  WW_TRY(const std::optional<FileInfo> own, files_.Stat(own_));
  if (own.has_value() && own->kind != FileKind::kDirectory) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("{} is not a directory; remove it", own_.string()));
  }
  WW_TRY(const std::optional<FileInfo> swap, files_.Stat(own_ / kSwapMark));
  if (swap.has_value()) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} holds whole copies behind a link, and is kept with --swap only", directory_.string()));
  }
  WW_TRY(const std::vector<std::string> names, files_.List(directory_));
  if (!own.has_value() && !names.empty() && !options_.adopt) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} is not empty and not a mirror of ours; choose an empty directory, or say that its "
                             "files may be taken over (--adopt, in Python adopt=True)",
                             directory_.string()));
  }
  if (!own.has_value()) {
    // Whoever made the directories on the way may have been killed before their names were on the disk. From here on
    // they are, so this is not needed again.
    WW_RETURN_IF_ERROR(SyncAncestors(files_, directory_));
    WW_RETURN_IF_ERROR(files_.MakeDirectory(own_));
  }
  // Even if it is there: whoever made it may have been killed before this.
  return files_.SyncDirectory(directory_);
}

// Completes what a crash cut off.
Status MirrorInPlace::Finish() {
  if (state_.writing.has_value()) {
    return state_.writing->by == MirrorState::By::kFiles ? FinishByFiles() : FinishByJournal(state_.writing->held);
  }
  if (state_.held.has_value() && state_.unsynced.has_value()) return FinishByJournal(*state_.held);
  return Ok();
}

Status MirrorInPlace::FinishByFiles() {
  const auto text = files_.Read(own_ / kReplacementFile, kMaxReplacementBytes);
  if (!text.ok()) {
    Damage(text.error());
    return Ok();
  }
  const auto replacement = ParseReplacement(TextOf(text.value()));
  if (!replacement.ok() || !(replacement.value().held == state_.writing->held)) {
    Damage({ErrorCode::kCorrupt, "the list of files of an unfinished update is damaged"});
    return Ok();
  }
  WW_TRY(const std::unique_ptr<FileLock> lock, LockContent());
  WW_RETURN_IF_ERROR(Install(replacement.value()));
  return Save({replacement.value().held, std::nullopt, std::nullopt});
}

Status MirrorInPlace::FinishByJournal(const Held& target) {
  auto journal = Journal::Open(files_, own_ / kJournalFile, kernels_);
  if (!journal.ok() && journal.error().code() == ErrorCode::kIo) return journal.error();
  if (!journal.ok() && journal.error().code() != ErrorCode::kNotFound) {
    Damage(journal.error());
    return Ok();
  }
  const bool forward = journal.ok() && journal.value().state_after() == target.state;
  if (!forward && (!journal.ok() || journal.value().state_before() != target.state)) return FinishNotBegun();
  WW_TRY(const std::unique_ptr<FileLock> lock, LockContent());
  const Status replayed = ReplayJournal(files_, directory_, journal.value(),
                                        forward ? Journal::Direction::kForward : Journal::Direction::kBack, pool_);
  if (!replayed.ok()) {
    if (replayed.error().code() == ErrorCode::kIo) return replayed.error();
    Damage(replayed.error());
    return Ok();
  }
  WW_RETURN_IF_ERROR(WriteDigests(files_, own_ / DigestFile(target.state),
                                  forward ? journal.value().digests_after() : journal.value().digests_before()));
  return Save({target, std::nullopt, std::nullopt});
}

// The state says that a change is being written by its journal, and the journal is not that change's. Then a crash has
// kept the one name and not the other, which was before the first weight changed; or somebody has removed the journal.
// The digest of the files tells.
Status MirrorInPlace::FinishNotBegun() {
  if (!state_.writing.has_value() || !state_.held.has_value()) {
    Damage({ErrorCode::kCorrupt, "the journal of its last update is missing"});
    return Ok();
  }
  auto layout = ReadLayout(state_.held->layout);
  if (!layout.ok() && layout.error().code() == ErrorCode::kIo) return layout.error();
  if (layout.ok()) {
    const auto content = MirrorContent::Open(files_, directory_, layout.value());
    if (!content.ok() && content.error().code() == ErrorCode::kIo) return content.error();
    if (content.ok() &&
        StateDigest(*layout.value(), content.value().DigestInFull(kernels_, pool_)) == state_.held->state) {
      return Save({state_.held, std::nullopt, std::nullopt});
    }
  }
  Damage({ErrorCode::kCorrupt, "its last update was cut off, and the journal of that is missing"});
  return Ok();
}

Status MirrorInPlace::OpenContent(bool check) {
  const Held& held = *state_.held;
  auto layout = ReadLayout(held.layout);
  if (!layout.ok()) {
    if (layout.error().code() == ErrorCode::kIo) return layout.error();
    Damage(layout.error());
    return Ok();
  }
  auto content = MirrorContent::Open(files_, directory_, std::move(layout).value());
  if (!content.ok()) {
    if (content.error().code() == ErrorCode::kIo) return content.error();
    Damage(content.error());
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
    Damage({ErrorCode::kCorrupt, fmt::format("its files do not have the digest of version {}", held.version)});
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

// Removes what is of no use any more.
Status MirrorInPlace::RemoveStaleFiles() {
  std::set<std::string> kept = {std::string(kStateFile),       std::string(kFollowerLock),   std::string(kContentLock),
                                std::string(kMirrorFilesFile), std::string(kFollowerIdFile), std::string(kToldFile)};
  if (undo_.has_value() || state_.unsynced.has_value()) kept.emplace(kJournalFile);
  if (state_.held.has_value()) {
    kept.insert(LayoutFile(state_.held->layout));
    kept.insert(DigestFile(state_.held->state));
  }
  WW_TRY(const std::vector<std::string> names, files_.List(own_));
  for (const std::string& name : names) {
    if (!kept.contains(name)) WW_RETURN_IF_ERROR(RemoveTree(files_, own_ / name));
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
