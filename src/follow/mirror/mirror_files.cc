#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "codec/digest/state.h"
#include "follow/mirror/incoming.h"
#include "follow/mirror/mirror_in_place.h"
#include "log/fields.h"
#include "log/limits.h"
#include "tensor/safetensors.h"

namespace weightwire {
namespace {

constexpr std::string_view kFilesFormat = "weightwire-files";

// Tensors are copied through a buffer of this size.
constexpr std::uint64_t kPortionBytes = std::uint64_t{1} << 22;

// True if the change alters nothing in this file of the plan.
bool IsUnchanged(const CheckpointFile& file, const PlannedFile& planned, const StagedChange& change) {
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

}  // namespace

Status MirrorInPlace::ApplyByFiles(const StagedChange& change, const Held& after) {
  if (!prepared_files_.has_value() || !(prepared_files_->replacement.target == after)) {
    prepared_files_.reset();
    ++loads_;  // incoming/ is used for this now
    // Unchanged files stay, so they must be durable.
    WW_RETURN_IF_ERROR(Sync());
    WW_TRY(PreparedFiles prepared, PrepareChangedFiles(change, after));
    prepared_files_ = std::move(prepared);
  }
  return Activate();
}

// Writes the files that the change alters into incoming/, and makes them durable.
Result<MirrorInPlace::PreparedFiles> MirrorInPlace::PrepareChangedFiles(const StagedChange& change, const Held& after) {
  PreparedFiles prepared;
  prepared.replacement.target = after;
  prepared.layout = std::make_shared<const Layout>(change.layout_after());
  prepared.digests = change.digests_after();
  WW_TRY(prepared.replacement.owned, OwnedFiles());
  // The view lives no longer than this function, so it may point to a change that it does not own.
  const StateView view = content_->view().After(std::shared_ptr<const StagedChange>(&change, [](const auto*) {}));
  const Checkpoint& like = content_->checkpoint();
  const CheckpointPlan plan = PlanLike(like, *prepared.layout);
  WW_RETURN_IF_ERROR(RemoveTree(files_, own_ / kIncoming));
  WW_RETURN_IF_ERROR(files_.MakeDirectory(own_ / kIncoming));
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (i < like.files().size() && IsUnchanged(like.files()[i], plan[i], change)) continue;
    WW_RETURN_IF_ERROR(RewriteFile(plan[i], view));
    prepared.replacement.placed.push_back(plan[i].name);
  }
  if (like.has_index()) {
    WW_TRY(const std::unique_ptr<NewFile> index, files_.Create(own_ / kIncoming / kIndexFileName));
    const std::string text = IndexText(plan);
    WW_RETURN_IF_ERROR(index->Append(BytesOf(text)));
    WW_RETURN_IF_ERROR(index->Sync());
    prepared.replacement.placed.emplace_back(kIndexFileName);
  }
  WW_RETURN_IF_ERROR(SyncParents(files_, own_ / kIncoming, prepared.replacement.placed));
  return prepared;
}

Status MirrorInPlace::RewriteFile(const PlannedFile& file, const StateView& after) {
  WW_TRY(const std::unique_ptr<NewFile> out, files_.Create(own_ / kIncoming / file.name));
  WW_TRY(const std::vector<std::uint8_t> header, file.Header());
  WW_RETURN_IF_ERROR(out->Append(header));
  std::vector<std::uint8_t> scratch;
  for (const std::size_t tensor : file.sources) {
    const auto width = static_cast<std::uint64_t>(UnitBytes(after.layout().tensors()[tensor].dtype));
    const std::uint64_t units = after.layout().unit_count(tensor);
    const std::uint64_t portion = kPortionBytes / width;
    for (std::uint64_t first = 0; first < units; first += portion) {
      WW_RETURN_IF_ERROR(out->Append(after.Units(tensor, first, std::min(portion, units - first), scratch)));
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
  Status Prepare(const Held& held, const Layout& layout) override {
    WW_CHECK(number_ == mirror_.loads_ && layout.hash() == held.layout);
    WW_RETURN_IF_ERROR(mirror_.CheckUsable());
    if (mirror_.prepared_files_.has_value()) return Ok();
    WW_RETURN_IF_ERROR(incoming_->Finish());
    WW_TRY(PreparedFiles prepared, mirror_.PrepareLoadedFiles(held, layout, incoming_->names()));
    mirror_.prepared_files_ = std::move(prepared);
    return Ok();
  }
  Result<StateView> View() override {
    WW_RETURN_IF_ERROR(mirror_.CheckUsable());
    WW_CHECK(IsPrepared());
    return mirror_.prepared_files_->content->view();
  }
  Status Commit(const std::shared_ptr<const StagedChange>& change, const Held& after) override {
    WW_RETURN_IF_ERROR(mirror_.CheckUsable());  // a call that failed may have moved the files already
    WW_CHECK(IsPrepared());
    WW_RETURN_IF_ERROR(mirror_.Activate());
    if (change == nullptr) return Ok();
    WW_RETURN_IF_ERROR(mirror_.Apply(change, after));
    mirror_.undo_.reset();  // it would lead to the loaded version, which the caller has never seen
    return Ok();
  }

 private:
  [[nodiscard]] bool IsPrepared() const {
    return number_ == mirror_.loads_ && mirror_.prepared_files_.has_value() &&
           mirror_.prepared_files_->content.has_value();
  }

  MirrorInPlace& mirror_;
  std::uint64_t number_;
  std::unique_ptr<IncomingFiles> incoming_;
};

Result<std::unique_ptr<TargetLoad>> MirrorInPlace::BeginLoad(std::span<const AnchorFile> files) {
  WW_RETURN_IF_ERROR(CheckUsable());
  prepared_files_.reset();
  ++loads_;
  WW_TRY(auto incoming, IncomingFiles::Begin(files_, own_ / kIncoming, files, options_.include_code));
  for (const std::string& name : incoming->names()) {
    WW_TRY(const std::optional<FileInfo> there, files_.Stat(directory_ / name));
    if (there.has_value() && there->kind == FileKind::kDirectory) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("cannot write {}: it is a directory", (directory_ / name).string()));
    }
  }
  return std::unique_ptr<TargetLoad>(std::make_unique<Loading>(*this, std::move(incoming)));
}

// Checks that the files in incoming/ are version `held`, and lists what replaces what.
Result<MirrorInPlace::PreparedFiles> MirrorInPlace::PrepareLoadedFiles(const Held& held, const Layout& layout,
                                                                       std::vector<std::string> names) {
  PreparedFiles prepared;
  prepared.layout = std::make_shared<const Layout>(layout);
  auto loaded = MirrorContent::Open(files_, own_ / kIncoming, prepared.layout);
  if (!loaded.ok()) {
    // Any defect of the files is a defect of what was loaded.
    const ErrorCode code = loaded.error().code() == ErrorCode::kIo ? ErrorCode::kIo : ErrorCode::kCorrupt;
    return Error(code, loaded.error().message()).In("cannot use what was loaded");
  }
  prepared.digests = loaded.value().DigestInFull(kernels_, pool_);
  if (StateDigest(layout, prepared.digests) != held.state) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("what was loaded does not have the digest of version {}; {} is as it was before",
                             held.version, directory_.string()));
  }
  prepared.content = std::move(loaded).value();
  prepared.content->set_digests(prepared.digests);
  WW_TRY(const std::vector<std::string> owned, OwnedFiles());
  std::set<std::string> gone(owned.begin(), owned.end());
  gone.insert({kSingleFileName, kIndexFileName, kAdapterFileName});
  if (content_.has_value()) {
    for (const CheckpointFile& file : content_->checkpoint().files()) gone.insert(file.name);
  }
  for (const std::string& name : names) gone.erase(name);
  prepared.replacement = {held, names, {}, std::move(names)};
  for (const std::string& name : gone) {
    // A file whose name no run may use belongs to the user: do not remove it.
    WW_TRY(const std::optional<FileInfo> there, files_.Stat(directory_ / name));
    if (there.has_value() && CheckFileName(name).ok()) prepared.replacement.removed.push_back(name);
  }
  return prepared;
}

// Moves the prepared files to their places.
Status MirrorInPlace::Activate() {
  const Replacement& replacement = prepared_files_->replacement;
  WW_RETURN_IF_ERROR(
      SaveLayoutAndDigests(*prepared_files_->layout, prepared_files_->digests, replacement.target.state));
  WW_RETURN_IF_ERROR(WriteDurably(files_, own_ / kReplacementFile, ToJson(replacement)));
  WW_TRY(const std::unique_ptr<FileLock> lock, LockContent());
  WW_RETURN_IF_ERROR(
      SaveState({state_.held, MirrorState::Writing{replacement.target, MirrorState::By::kFiles}, std::nullopt}));
  needs_recovery_ = true;
  held_.reset();
  content_.reset();
  updates_.clear();
  undo_.reset();
  prepared_change_.reset();
  prepared_files_->content.reset();
  WW_RETURN_IF_ERROR(Install(replacement));
  WW_RETURN_IF_ERROR(SaveState({replacement.target, std::nullopt, std::nullopt}));
  damage_.reset();
  prepared_files_.reset();
  ++loads_;
  WW_RETURN_IF_ERROR(OpenContent(/*check=*/false));  // what was placed was digested before
  if (damage_.has_value()) return *damage_;
  held_ = state_.held;
  needs_recovery_ = false;
  (void)RemoveStaleFiles();  // stale files are harmless, and opening the mirror removes them
  return Ok();
}

Status MirrorInPlace::Install(const Replacement& replacement) {
  WW_RETURN_IF_ERROR(ExecuteReplacement(files_, directory_, own_ / kIncoming, replacement));
  FieldsWriter owned;
  owned.Text("format", kFilesFormat).Texts("files", replacement.owned);
  return WriteDurably(files_, own_ / kMirrorFilesFile, owned.Finish() + "\n");
}

Result<std::vector<std::string>> MirrorInPlace::OwnedFiles() {
  const auto text = files_.Read(own_ / kMirrorFilesFile, kMaxReplacementBytes);
  // Without the list, the mirror does not know which files are its own.
  if (!text.ok()) return std::vector<std::string>();
  const auto object = ParseFields(TextOf(text.value()), kMaxReplacementBytes, kFilesFormat);
  if (!object.ok()) return std::vector<std::string>();
  return object.value().Texts("files", kMaxAnchorFiles);
}

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
  // The program that wrote the files may not have synced them.
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
  WW_RETURN_IF_ERROR(SaveLayoutAndDigests(layout, digests, held.state));
  WW_RETURN_IF_ERROR(SaveState({held, std::nullopt, std::nullopt}));
  damage_.reset();
  held_ = held;
  content.set_digests(std::move(digests));
  content_.emplace(std::move(content));
  updates_ = std::move(updates);
  return Ok();
}

}  // namespace weightwire
