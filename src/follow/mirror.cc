#include "follow/mirror.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/limits.h"
#include "codec/state.h"
#include "follow/digest_file.h"
#include "follow/incoming.h"
#include "follow/journal.h"
#include "follow/mirror_content.h"
#include "follow/replacement.h"
#include "log/limits.h"
#include "tensor/checkpoint_plan.h"
#include "tensor/json.h"
#include "tensor/safetensors.h"

namespace weightwire {
namespace {

using Path = FileSystem::Path;

constexpr std::string_view kJournalFile = "journal";
// What a change needs on the disk, before it takes its place: its journal, and the states while and after it is
// written.
constexpr std::string_view kNextJournalFile = "journal.next";
constexpr std::string_view kWritingStateFile = "state.writing.json";
constexpr std::string_view kWrittenStateFile = "state.written.json";
constexpr std::string_view kIncoming = "incoming";
constexpr std::string_view kReplacementFile = "replacement";
constexpr std::string_view kFilesFormat = "weightwire-files";
constexpr std::string_view kNoteFormat = "weightwire-change";

// A tensor that is rewritten goes through memory in pieces of this size.
constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 22;

std::string LayoutFile(const Sha256Digest& layout) { return fmt::format("layout.{}.json", ToHex(layout)); }
std::string DigestFile(const Sha256Digest& state) { return fmt::format("digests.{}", ToHex(state)); }

std::string_view TextOf(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Error LoadAnew(const Path& directory, const std::string& why) {
  return {ErrorCode::kCorrupt, fmt::format("{} must be loaded anew: {}", directory.string(), why)};
}

// What a journal of a mirror leads from and to.
struct ChangeNote {
  Held before;
  Held after;
};

std::string ToJson(const ChangeNote& note) {
  FieldsWriter before;
  WriteHeld(before, note.before);
  FieldsWriter after;
  WriteHeld(after, note.after);
  FieldsWriter out;
  out.Text("format", kNoteFormat).Object("before", before).Object("after", after);
  return out.Finish();
}

Result<ChangeNote> ParseNote(std::string_view json) {
  WW_TRY(const JsonValue object, ParseFields(json, kMaxJournalNoteBytes, kNoteFormat));
  ChangeNote note;
  WW_TRY(const JsonValue* before, object.Object("before"));
  WW_TRY(note.before, ReadHeld(*before));
  WW_TRY(const JsonValue* after, object.Object("after"));
  WW_TRY(note.after, ReadHeld(*after));
  return note;
}

// Whether a file of a plan has nothing in it that the change alters.
bool StaysAsItIs(const CheckpointFile& file, const PlannedFile& planned, const StagedChange& change) {
  if (file.metadata != planned.metadata || file.tensors.size() != planned.specs.size()) return false;
  for (std::size_t i = 0; i < planned.specs.size(); ++i) {
    const std::size_t tensor = planned.sources[i];
    if (file.tensors[i] != planned.specs[i].name || change.Find(tensor) != nullptr ||
        !change.Origin(tensor).has_value()) {
      return false;
    }
  }
  return true;
}

class MirrorInPlace final : public Mirror {
 public:
  MirrorInPlace(FileSystem& files, Path directory, const MirrorOptions& options, const Kernels& kernels,
                ThreadPool& pool, const MirrorFaults& faults)
      : files_(files),
        directory_(std::move(directory)),
        own_(directory_ / kMirrorFolder),
        options_(options),
        kernels_(kernels),
        pool_(pool),
        faults_(faults) {}

  Status Open();

  [[nodiscard]] const std::optional<Held>& held() const override { return held_; }
  [[nodiscard]] const std::optional<Error>& damage() const override { return damage_; }
  [[nodiscard]] Result<StateView> View() override {
    WW_RETURN_IF_ERROR(CheckUsable());
    WW_CHECK(content_.has_value());
    return content_->view();
  }
  [[nodiscard]] Status Check() override;
  Status Apply(const std::shared_ptr<const StagedChange>& change, const Held& after) override;
  Status Settle() override;
  [[nodiscard]] bool settled() const override { return !state_.unsynced.has_value(); }
  [[nodiscard]] std::optional<Held> undo_target() const override {
    return undo_.has_value() && !broken_ && held_ == undo_->after ? std::optional(undo_->before) : std::nullopt;
  }
  Status Undo() override;
  Result<std::unique_ptr<TargetLoad>> BeginLoad(std::span<const AnchorFile> files) override;
  Result<bool> Mend() override;
  Result<bool> Idle() override;
  Result<Sha256Digest> DigestAs(const Layout& layout) override;
  Status Adopt(const Held& held, const Layout& layout) override;

 private:
  class Loading;
  // Files that lie ready in incoming/ and only have to take their places.
  struct Ready {
    Replacement replacement;
    std::shared_ptr<const Layout> layout;
    std::vector<Digest> digests;
  };

  [[nodiscard]] Status CheckUsable() const;
  Status TakeOver();
  Status ReadBack();
  Status Finish();
  Status FinishByFiles();
  Status FinishByJournal(const Held& target);
  Status FinishNotBegun();
  void Damage(const Error& why) {
    damage_ = LoadAnew(directory_, why.message());
    held_.reset();
    content_.reset();
  }
  Status OpenContent(bool check);
  Result<std::shared_ptr<const Layout>> ReadLayout(const Sha256Digest& hash);
  [[nodiscard]] std::optional<ChangeNote> ReadUndo();
  Status Tidy();

  Status Save(const MirrorState& next);
  Result<std::unique_ptr<FileLock>> LockContent();
  Status OpenUpdates();
  Status WriteChange(const StagedChange& change);
  Status ApplyByJournal(const StagedChange& change, const Held& after);
  Status Prepare(const StagedChange& change, const ChangeNote& note, const MirrorState& writing,
                 const MirrorState& written);
  Result<std::unique_ptr<NewFile>> WriteState(std::string_view name, const MirrorState& state);
  Status ApplyByFiles(const StagedChange& change, const Held& after);
  Result<Ready> RewriteFiles(const StagedChange& change, const Held& after);
  Status RewriteFile(const PlannedFile& file, const StateView& after);
  Result<Ready> CheckLoaded(const Held& held, const Layout& layout, std::vector<std::string> names);
  Status TakeIntoUse();
  Status Place(const Replacement& replacement);
  Result<std::vector<std::string>> OwnedFiles();
  Status SaveBeside(const Layout& layout, const std::vector<Digest>& digests, const Sha256Digest& state);

  FileSystem& files_;
  Path directory_;
  Path own_;
  MirrorOptions options_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  MirrorFaults faults_;

  std::unique_ptr<FileLock> follower_lock_;
  MirrorState state_;  // as it is on the disk
  std::optional<Held> held_;
  std::optional<Error> damage_;
  // An effect failed half-way, so what is in memory may not be what is on the disk.
  bool broken_ = false;
  std::optional<MirrorContent> content_;             // if held()
  std::vector<std::unique_ptr<UpdateMap>> updates_;  // of the content's files, once they are needed
  std::optional<ChangeNote> undo_;                   // of the journal, if it can be taken back
  // What the change that leads from what is held to this needs lies ready on the disk, and nothing else has happened.
  std::optional<Held> journaled_;
  std::optional<Ready> ready_;
  std::uint64_t loads_ = 0;  // begun so far: incoming/ belongs to the last one
};

// --- opening ---

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
  return damage_.has_value() ? Ok() : Tidy();
}

Result<bool> MirrorInPlace::Mend() {
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
  WW_RETURN_IF_ERROR(Place(replacement.value()));
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
  std::vector<std::unique_ptr<UpdateMap>> maps;
  for (std::size_t i = 0; i < journal.value().files().size(); ++i) {
    const Path path = directory_ / journal.value().files()[i].name;
    auto update = files_.MapForUpdate(path);
    if (!update.ok() && update.error().code() == ErrorCode::kIo) return update.error();
    if (!update.ok()) {
      Damage(update.error());
      return Ok();
    }
    WW_TRY(const std::unique_ptr<FileMap> map, files_.Map(path));
    const Status as_expected = faults_.journal_holds_steps ? Ok() : journal.value().CheckHeld(i, map->bytes(), pool_);
    if (!as_expected.ok()) {
      Damage(as_expected.error());
      return Ok();
    }
    maps.push_back(std::move(update).value());
  }
  for (std::size_t i = 0; i < maps.size(); ++i) {
    WW_TRY(const std::span<std::uint8_t> bytes, maps[i]->ForWriting(0, maps[i]->size_bytes()));
    if (faults_.journal_holds_steps && forward) {
      journal.value().AddSteps(i, bytes);
    } else {
      journal.value().Write(i, bytes, forward ? Journal::Direction::kForward : Journal::Direction::kBack, pool_);
    }
  }
  for (const std::unique_ptr<UpdateMap>& map : maps) WW_RETURN_IF_ERROR(map->Sync());
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
  auto note = ParseNote(journal.value().note());
  if (!note.ok() || !(state_.held == note.value().after)) return std::nullopt;
  return std::move(note).value();
}

// Removes what is of no use any more.
Status MirrorInPlace::Tidy() {
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

// --- small steps ---

Status MirrorInPlace::CheckUsable() const {
  if (!broken_) return Ok();
  return Error(ErrorCode::kIo,
               fmt::format("an earlier error of the disk may have left an update of {} unfinished; open "
                           "the mirror again, which finishes it",
                           directory_.string()));
}

Status MirrorInPlace::Save(const MirrorState& next) {
  Status saved = WriteDurably(files_, own_ / kStateFile, ToJson(next));
  if (saved.ok()) {
    state_ = next;
    return saved;
  }
  // In doubt only if the new text has its name already, which may not be on the disk; not if the disk was full before.
  const auto there = ReadMirrorState(files_, directory_);
  const bool as_before = there.ok() ? there.value() == state_ && !(state_ == next)
                                    : there.error().code() == ErrorCode::kNotFound && state_ == MirrorState();
  if (!as_before) broken_ = true;
  return saved;
}

Result<std::unique_ptr<FileLock>> MirrorInPlace::LockContent() {
  auto lock = files_.Lock(own_ / kContentLock, LockMode::kExclusive);
  if (!lock.ok() && lock.error().code() == ErrorCode::kUnavailable) {
    return Error(ErrorCode::kUnavailable,
                 fmt::format("{} is being read at this moment; it is written when no reader holds it any more",
                             directory_.string()));
  }
  return lock;
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

Status MirrorInPlace::SaveBeside(const Layout& layout, const std::vector<Digest>& digests, const Sha256Digest& state) {
  WW_RETURN_IF_ERROR(WriteDurably(files_, own_ / LayoutFile(layout.hash()), layout.CanonicalJson()));
  return WriteDigests(files_, own_ / DigestFile(state), digests);
}

Status MirrorInPlace::Check() {
  WW_RETURN_IF_ERROR(CheckUsable());
  if (damage_.has_value()) return *damage_;
  if (!content_.has_value()) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} holds no version yet that could be checked", directory_.string()));
  }
  // Opened anew, which also compares the tensors that are held under several names.
  const auto opened = MirrorContent::Open(files_, directory_, std::make_shared<const Layout>(content_->layout()));
  if (!opened.ok()) return LoadAnew(directory_, opened.error().message());
  const std::vector<Digest> found = opened.value().DigestInFull(kernels_, pool_);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == content_->digests()[i]) continue;
    return LoadAnew(directory_,
                    fmt::format("tensor {} does not have its digest", Quoted(content_->layout().tensors()[i].name)));
  }
  return Ok();
}

// --- a change ---

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
  WW_RETURN_IF_ERROR(Save({after, std::nullopt, state_.unsynced}));
  held_ = after;
  journaled_.reset();
  ready_.reset();
  return Ok();
}

Status MirrorInPlace::ApplyByJournal(const StagedChange& change, const Held& after) {
  // The journal of a change is all there is to repair it with, so it stays until the change is on the disk.
  WW_RETURN_IF_ERROR(Settle());
  const Held before = *state_.held;
  const MirrorState writing{before, MirrorState::Writing{after, MirrorState::By::kJournal}, std::nullopt};
  const MirrorState written{after, std::nullopt, files_.BootId()};
  if (!(journaled_ == after)) {
    journaled_.reset();
    WW_RETURN_IF_ERROR(Prepare(change, ChangeNote{before, after}, writing, written));
    journaled_ = after;
  }
  WW_RETURN_IF_ERROR(OpenUpdates());
  WW_TRY(const std::unique_ptr<FileLock> lock, LockContent());
  broken_ = true;  // until all of it has happened
  journaled_.reset();
  undo_.reset();
  ready_.reset();
  WW_RETURN_IF_ERROR(files_.Rename(own_ / kNextJournalFile, own_ / kJournalFile));
  if (!faults_.no_writing_mark) WW_RETURN_IF_ERROR(files_.Rename(own_ / kWritingStateFile, own_ / kStateFile));
  // One sync for both names. If a crash before it keeps only the second, no weight has changed yet: see
  // FinishByJournal.
  if (!faults_.apply_before_journal_is_durable) WW_RETURN_IF_ERROR(files_.SyncDirectory(own_));
  WW_RETURN_IF_ERROR(WriteChange(change));
  // This name need not be on the disk: without it, opening finishes the change by the journal and comes to the same.
  WW_RETURN_IF_ERROR(files_.Rename(own_ / kWrittenStateFile, own_ / kStateFile));
  state_ = written;
  broken_ = false;
  held_ = after;
  content_->set_digests(change.digests_after());
  undo_ = ChangeNote{before, after};
  return Ok();
}

// Brings everything to the disk that the change needs there before a weight is written, under names of its own. All at
// once, for the syncs then cost little more than one.
Status MirrorInPlace::Prepare(const StagedChange& change, const ChangeNote& note, const MirrorState& writing,
                              const MirrorState& written) {
  JournalRequest request;
  request.change = &change;
  request.note = ToJson(note);
  request.files = content_->checkpoint().files();
  request.places = content_->places();
  request.held = content_->tensors();
  WW_TRY(const auto journal, WriteJournal(files_, own_ / kNextJournalFile, request, kernels_, pool_));
  WW_TRY(const auto writing_file, WriteState(kWritingStateFile, writing));
  WW_TRY(const auto written_file, WriteState(kWrittenStateFile, written));
  std::array<NewFile*, 3> unsynced = {journal.get(), writing_file.get(), written_file.get()};
  std::array<Status, 3> synced;
  pool_.ParallelFor(unsynced.size(), [&](std::size_t i, std::size_t) {
    if (i != 0 || !faults_.apply_before_journal_is_durable) synced[i] = unsynced[i]->Sync();
  });
  for (const Status& status : synced) WW_RETURN_IF_ERROR(status);
  return Ok();
}

// A new file with that state, not synced.
Result<std::unique_ptr<NewFile>> MirrorInPlace::WriteState(std::string_view name, const MirrorState& state) {
  WW_TRY(const std::optional<FileInfo> left, files_.Stat(own_ / name));
  if (left.has_value()) WW_RETURN_IF_ERROR(files_.Remove(own_ / name));
  WW_TRY(std::unique_ptr<NewFile> file, files_.Create(own_ / name));
  const std::string text = ToJson(state);
  WW_RETURN_IF_ERROR(file->Append({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}));
  return file;
}

Status MirrorInPlace::WriteChange(const StagedChange& change) {
  struct Write {
    const StagedTensor* staged;
    std::span<std::uint8_t> bytes;
  };
  const Layout& layout = content_->layout();
  for (std::size_t file = 0; file < updates_.size(); ++file) {
    std::vector<Write> writes;
    for (const TensorPlace& place : content_->places()) {
      const StagedTensor* staged = place.file == file ? change.Find(place.tensor) : nullptr;
      if (staged == nullptr) continue;
      writes.push_back({staged, {}});
      WW_TRY(writes.back().bytes, updates_[file]->ForWriting(place.offset, layout.byte_size(place.tensor)));
    }
    // The largest first, so that no thread is left with it alone at the end.
    std::sort(writes.begin(), writes.end(),
              [](const Write& a, const Write& b) { return a.staged->changed() > b.staged->changed(); });
    pool_.ParallelFor(writes.size(), [&](std::size_t i, std::size_t) { writes[i].staged->Write(writes[i].bytes); });
  }
  return Ok();
}

Status MirrorInPlace::Settle() {
  WW_RETURN_IF_ERROR(CheckUsable());
  if (!state_.unsynced.has_value()) return Ok();
  // A sync that failed may have lost what it was to write. Opening again writes it once more.
  broken_ = true;
  if (!faults_.settle_without_sync) {
    for (const std::unique_ptr<UpdateMap>& update : updates_) WW_RETURN_IF_ERROR(update->Sync());
  }
  broken_ = false;
  // The weights are on the disk. What fails from here on leaves nothing in doubt: with either state opening comes to
  // the same, and it is all done again next time.
  const Path digests = own_ / DigestFile(state_.held->state);
  WW_RETURN_IF_ERROR(WriteDigests(files_, digests, content_->digests()));
  const MirrorState settled{state_.held, std::nullopt, std::nullopt};
  WW_RETURN_IF_ERROR(WriteDurably(files_, own_ / kStateFile, ToJson(settled)));
  state_ = settled;
  // Those of the version before lie about; whatever comes of it, the mirror is as it should be.
  if (const auto names = files_.List(own_); names.ok()) {
    for (const std::string& name : names.value()) {
      if (name.starts_with("digests.") && own_ / name != digests) (void)files_.Remove(own_ / name);
    }
  }
  return Ok();
}

Result<bool> MirrorInPlace::Idle() {
  WW_RETURN_IF_ERROR(CheckUsable());
  if (settled()) return false;
  WW_RETURN_IF_ERROR(Settle());
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
  WW_RETURN_IF_ERROR(Save({state_.held, MirrorState::Writing{*target, MirrorState::By::kJournal}, state_.unsynced}));
  broken_ = true;
  for (std::size_t i = 0; i < updates_.size(); ++i) {
    WW_TRY(const std::span<std::uint8_t> bytes, updates_[i]->ForWriting(0, updates_[i]->size_bytes()));
    journal.Write(i, bytes, Journal::Direction::kBack, pool_);
  }
  WW_RETURN_IF_ERROR(Save({*target, std::nullopt, files_.BootId()}));
  broken_ = false;
  held_ = target;
  journaled_.reset();
  ready_.reset();
  content_->set_digests(journal.digests_before());
  undo_.reset();
  return Ok();
}

// --- other files ---

Status MirrorInPlace::ApplyByFiles(const StagedChange& change, const Held& after) {
  if (!ready_.has_value() || !(ready_->replacement.held == after)) {
    ready_.reset();
    ++loads_;  // incoming/ is used for this now
    // Files in which nothing changes stay, so they have to be on the disk.
    WW_RETURN_IF_ERROR(Settle());
    WW_TRY(Ready ready, RewriteFiles(change, after));
    ready_ = std::move(ready);
  }
  return TakeIntoUse();
}

// The files in which something changes, as they will be, in incoming/.
Result<MirrorInPlace::Ready> MirrorInPlace::RewriteFiles(const StagedChange& change, const Held& after) {
  Ready ready;
  ready.replacement.held = after;
  ready.layout = std::make_shared<const Layout>(change.layout_after());
  ready.digests = change.digests_after();
  WW_TRY(ready.replacement.owned, OwnedFiles());
  // The view keeps the change only as long as this function lasts, so it may point to one it does not own.
  const StateView view = content_->view().After(std::shared_ptr<const StagedChange>(&change, [](const auto*) {}));
  const Checkpoint& like = content_->checkpoint();
  const CheckpointPlan plan = PlanLike(like, *ready.layout);
  WW_RETURN_IF_ERROR(RemoveTree(files_, own_ / kIncoming));
  WW_RETURN_IF_ERROR(files_.MakeDirectory(own_ / kIncoming));
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (i < like.files().size() && StaysAsItIs(like.files()[i], plan[i], change)) continue;
    WW_RETURN_IF_ERROR(RewriteFile(plan[i], view));
    ready.replacement.placed.push_back(plan[i].name);
  }
  if (like.has_index()) {
    WW_TRY(const std::unique_ptr<NewFile> index, files_.Create(own_ / kIncoming / kIndexFileName));
    const std::string text = IndexText(plan);
    WW_RETURN_IF_ERROR(index->Append({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}));
    WW_RETURN_IF_ERROR(index->Sync());
    ready.replacement.placed.emplace_back(kIndexFileName);
  }
  WW_RETURN_IF_ERROR(SyncParents(files_, own_ / kIncoming, ready.replacement.placed));
  return ready;
}

Status MirrorInPlace::RewriteFile(const PlannedFile& file, const StateView& after) {
  WW_TRY(const std::unique_ptr<NewFile> out, files_.Create(own_ / kIncoming / file.name));
  WW_TRY(const std::vector<std::uint8_t> header, file.Header());
  WW_RETURN_IF_ERROR(out->Append(header));
  std::vector<std::uint8_t> scratch;
  for (const std::size_t tensor : file.sources) {
    const auto width = static_cast<std::uint64_t>(UnitBytes(after.layout().tensors()[tensor].dtype));
    const std::uint64_t units = after.layout().unit_count(tensor);
    const std::uint64_t piece = kPieceBytes / width;
    for (std::uint64_t first = 0; first < units; first += piece) {
      WW_RETURN_IF_ERROR(out->Append(after.Units(tensor, first, std::min(piece, units - first), scratch)));
    }
  }
  return out->Sync();
}

// A load of a mirror. The mirror must outlive it.
class MirrorInPlace::Loading final : public TargetLoad {
 public:
  Loading(MirrorInPlace& mirror, std::unique_ptr<IncomingFiles> incoming)
      : mirror_(mirror), number_(mirror.loads_), incoming_(std::move(incoming)) {}

  Status WriteAt(std::size_t file, std::uint64_t offset, std::span<const std::uint8_t> bytes) override {
    WW_CHECK(number_ == mirror_.loads_);
    return incoming_->WriteAt(file, offset, bytes);
  }
  Status Commit(const Held& held, const Layout& layout) override {
    WW_CHECK(number_ == mirror_.loads_ && layout.hash() == held.layout);
    WW_RETURN_IF_ERROR(mirror_.CheckUsable());
    if (!mirror_.ready_.has_value() || !(mirror_.ready_->replacement.held == held)) {
      mirror_.ready_.reset();
      WW_RETURN_IF_ERROR(incoming_->Finish(!mirror_.faults_.load_without_sync));
      WW_TRY(Ready ready, mirror_.CheckLoaded(held, layout, incoming_->names()));
      mirror_.ready_ = std::move(ready);
    }
    return mirror_.TakeIntoUse();
  }

 private:
  MirrorInPlace& mirror_;
  std::uint64_t number_;
  std::unique_ptr<IncomingFiles> incoming_;
};

Result<std::unique_ptr<TargetLoad>> MirrorInPlace::BeginLoad(std::span<const AnchorFile> files) {
  WW_RETURN_IF_ERROR(CheckUsable());
  ready_.reset();
  ++loads_;
  WW_TRY(auto incoming, IncomingFiles::Begin(files_, own_ / kIncoming, files, options_.carry_code));
  for (const std::string& name : incoming->names()) {
    WW_TRY(const std::optional<FileInfo> there, files_.Stat(directory_ / name));
    if (there.has_value() && there->kind == FileKind::kDirectory) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("cannot write {}: it is a directory", (directory_ / name).string()));
    }
  }
  return std::unique_ptr<TargetLoad>(std::make_unique<Loading>(*this, std::move(incoming)));
}

// Whether the files in incoming/ are what they should be; if so, what is to be done with them.
Result<MirrorInPlace::Ready> MirrorInPlace::CheckLoaded(const Held& held, const Layout& layout,
                                                        std::vector<std::string> names) {
  Ready ready;
  ready.layout = std::make_shared<const Layout>(layout);
  const auto loaded = MirrorContent::Open(files_, own_ / kIncoming, ready.layout);
  if (!loaded.ok()) {
    // Whatever is wrong with the files, it is what was loaded that is wrong.
    const ErrorCode code = loaded.error().code() == ErrorCode::kIo ? ErrorCode::kIo : ErrorCode::kCorrupt;
    return Error(code, loaded.error().message()).In("cannot use what was loaded");
  }
  ready.digests = loaded.value().DigestInFull(kernels_, pool_);
  if (StateDigest(layout, ready.digests) != held.state) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("what was loaded does not have the digest of version {}; {} is as it was before",
                             held.version, directory_.string()));
  }
  WW_TRY(const std::vector<std::string> owned, OwnedFiles());
  std::set<std::string> gone(owned.begin(), owned.end());
  gone.insert({kSingleFileName, kIndexFileName, kAdapterFileName});
  if (content_.has_value()) {
    for (const CheckpointFile& file : content_->checkpoint().files()) gone.insert(file.name);
  }
  for (const std::string& name : names) gone.erase(name);
  ready.replacement = {held, names, {}, std::move(names)};
  for (const std::string& name : gone) {
    // A file of the user's own whose name no run may use is not ours to remove.
    WW_TRY(const std::optional<FileInfo> there, files_.Stat(directory_ / name));
    if (there.has_value() && CheckFileName(name).ok()) ready.replacement.removed.push_back(name);
  }
  return ready;
}

// Puts the files that lie ready in their places.
Status MirrorInPlace::TakeIntoUse() {
  const Replacement& replacement = ready_->replacement;
  WW_RETURN_IF_ERROR(SaveBeside(*ready_->layout, ready_->digests, replacement.held.state));
  if (!faults_.place_before_list_is_durable) {
    WW_RETURN_IF_ERROR(WriteDurably(files_, own_ / kReplacementFile, ToJson(replacement)));
  }
  WW_TRY(const std::unique_ptr<FileLock> lock, LockContent());
  WW_RETURN_IF_ERROR(
      Save({state_.held, MirrorState::Writing{replacement.held, MirrorState::By::kFiles}, std::nullopt}));
  broken_ = true;
  held_.reset();
  content_.reset();
  updates_.clear();
  undo_.reset();
  journaled_.reset();
  WW_RETURN_IF_ERROR(Place(replacement));
  WW_RETURN_IF_ERROR(Save({replacement.held, std::nullopt, std::nullopt}));
  damage_.reset();
  ready_.reset();
  ++loads_;
  WW_RETURN_IF_ERROR(OpenContent(/*check=*/false));  // what was placed was digested before
  if (damage_.has_value()) return *damage_;
  held_ = state_.held;
  broken_ = false;
  (void)Tidy();  // what is left over does no harm, and goes when the mirror is opened again
  return Ok();
}

Status MirrorInPlace::Place(const Replacement& replacement) {
  WW_RETURN_IF_ERROR(Carry(files_, directory_, own_ / kIncoming, replacement));
  FieldsWriter owned;
  owned.Text("format", kFilesFormat).Texts("files", replacement.owned);
  return WriteDurably(files_, own_ / kMirrorFilesFile, owned.Finish() + "\n");
}

Result<std::vector<std::string>> MirrorInPlace::OwnedFiles() {
  const auto text = files_.Read(own_ / kMirrorFilesFile, kMaxReplacementBytes);
  // Without the list nothing is known to be ours.
  if (!text.ok()) return std::vector<std::string>();
  const auto object = ParseFields(TextOf(text.value()), kMaxReplacementBytes, kFilesFormat);
  if (!object.ok()) return std::vector<std::string>();
  return object.value().Texts("files", kMaxAnchorFiles);
}

// --- adopting ---

Result<Sha256Digest> MirrorInPlace::DigestAs(const Layout& layout) {
  WW_TRY(const MirrorContent content, MirrorContent::Open(files_, directory_, std::make_shared<const Layout>(layout)));
  return StateDigest(layout, content.DigestInFull(kernels_, pool_));
}

Status MirrorInPlace::Adopt(const Held& held, const Layout& layout) {
  WW_RETURN_IF_ERROR(CheckUsable());
  WW_CHECK(!held_.has_value() && layout.hash() == held.layout);
  WW_TRY(MirrorContent content, MirrorContent::Open(files_, directory_, std::make_shared<const Layout>(layout)));
  for (const CheckpointFile& file : content.checkpoint().files()) {
    WW_TRY(const std::optional<FileInfo> info, files_.Stat(directory_ / file.name));
    if (info.has_value() && info->kind == FileKind::kFile) continue;
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("cannot keep {} as it is: it is a link, and others may use what it points to",
                             (directory_ / file.name).string()));
  }
  std::vector<Digest> digests = content.DigestInFull(kernels_, pool_);
  if (StateDigest(layout, digests) != held.state) {
    return Error(ErrorCode::kMismatch, fmt::format("{} does not hold version {}", directory_.string(), held.version));
  }
  // Whoever wrote the files may not have synced them.
  std::vector<std::unique_ptr<UpdateMap>> updates;
  for (const CheckpointFile& file : content.checkpoint().files()) {
    WW_TRY(std::unique_ptr<UpdateMap> update, files_.MapForUpdate(directory_ / file.name));
    WW_RETURN_IF_ERROR(update->Sync());
    updates.push_back(std::move(update));
  }
  WW_TRY(const std::optional<FileInfo> index, files_.Stat(directory_ / kIndexFileName));
  if (index.has_value() && index->kind == FileKind::kFile) {
    WW_TRY(const std::unique_ptr<UpdateMap> map, files_.MapForUpdate(directory_ / kIndexFileName));
    WW_RETURN_IF_ERROR(map->Sync());
  }
  WW_RETURN_IF_ERROR(files_.SyncDirectory(directory_));
  WW_RETURN_IF_ERROR(SaveBeside(layout, digests, held.state));
  WW_RETURN_IF_ERROR(Save({held, std::nullopt, std::nullopt}));
  damage_.reset();
  held_ = held;
  content.set_digests(std::move(digests));
  content_.emplace(std::move(content));
  updates_ = std::move(updates);
  return Ok();
}

}  // namespace

Result<std::unique_ptr<Mirror>> OpenMirror(FileSystem& files, const FileSystem::Path& directory,
                                           const MirrorOptions& options, const Kernels& kernels, ThreadPool& pool,
                                           const MirrorFaults& faults) {
  auto mirror = std::make_unique<MirrorInPlace>(files, directory, options, kernels, pool, faults);
  WW_RETURN_IF_ERROR(mirror->Open());
  return std::unique_ptr<Mirror>(std::move(mirror));
}

}  // namespace weightwire
