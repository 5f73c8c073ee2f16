#include "follow/mirror/swap_mirror.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/limits.h"
#include "follow/mirror/mirror_state.h"
#include "follow/mirror/replacement.h"

namespace weightwire {
namespace {

using Path = FileSystem::Path;

constexpr std::string_view kCopies = "copies";
constexpr std::string_view kNextLink = "current.next";

// A copy's number, if the text names one.
std::optional<std::uint64_t> NumberOf(std::string_view name) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size() || std::to_string(number) != name) return std::nullopt;
  return number;
}

// True for the files in the mirror's own folder that describe the version held.
bool IsCopied(const std::string& name) {
  return name == kStateFile || name == kMirrorFilesFile || name.starts_with("layout.") || name.starts_with("digests.");
}

// Clones the files of a mirror that no process changes into the empty directory `to`, and makes all of it durable
// except the name of `to`. The clone holds the same version. Of the mirror's own folder it gets what describes that
// version, and nothing that belongs to a change, such as a journal. Where the file system shares blocks (reflinks),
// this costs little.
Status CloneMirror(FileSystem& files, const Path& from, const Path& to, int depth = 0) {
  if (depth > kMaxDirectoryDepth) {
    return Error(ErrorCode::kLimit, fmt::format("cannot copy {}: its folders are nested too deep", from.string()));
  }
  const bool is_own = from.filename() == kMirrorFolder;
  WW_TRY(const std::vector<std::string> names, files.List(from));
  for (const std::string& name : names) {
    if (is_own && !IsCopied(name)) continue;
    WW_TRY(const std::optional<FileInfo> info, files.Stat(from / name));
    if (!info.has_value()) continue;
    if (info->kind == FileKind::kDirectory) {
      WW_RETURN_IF_ERROR(files.MakeDirectory(to / name));
      WW_RETURN_IF_ERROR(CloneMirror(files, from / name, to / name, depth + 1));
    } else if (info->kind == FileKind::kFile) {
      WW_TRY(const std::unique_ptr<NewFile> copy, files.Clone(from / name, to / name));
      WW_RETURN_IF_ERROR(copy->Sync());
    }
  }
  return files.SyncDirectory(to);
}

class SwapMirror final : public Mirror {
 public:
  SwapMirror(FileSystem& files, Path directory, MirrorOptions options, const Kernels& kernels, ThreadPool& pool)
      : files_(files),
        directory_(std::move(directory)),
        own_(directory_ / kMirrorFolder),
        options_(std::move(options)),
        kernels_(kernels),
        pool_(pool) {}

  Status Open();

  [[nodiscard]] const std::optional<Held>& held() const override { return current_ ? current_->held() : nothing_; }
  [[nodiscard]] const std::optional<Error>& damage() const override {
    return current_ ? current_->damage() : no_damage_;
  }
  [[nodiscard]] Result<StateView> View() override { return current_->View(); }
  Status Verify() override {
    if (current_) return current_->Verify();
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} holds no version yet that could be verified", directory_.string()));
  }
  Status Apply(const std::shared_ptr<const StagedChange>& change, const Held& after) override;
  Status Sync() override { return current_ ? current_->Sync() : Ok(); }
  [[nodiscard]] bool synced() const override { return !current_ || current_->synced(); }
  [[nodiscard]] std::optional<Held> undo_target() const override { return previous_held_; }
  Status Undo() override;
  Result<std::unique_ptr<TargetLoad>> BeginLoad(std::span<const AnchorFile> files) override;
  Result<bool> Recover() override;
  Result<bool> RunMaintenance() override { return current_ ? current_->RunMaintenance() : Result<bool>(false); }
  Result<Sha256Digest> DigestAs(const Layout& /*layout*/) override { return CannotAdopt(); }
  Status Adopt(const Held& /*held*/, const Layout& /*layout*/) override { return CannotAdopt(); }

 private:
  class Loading;

  [[nodiscard]] Path CopyPath(std::uint64_t number) const { return directory_ / kCopies / std::to_string(number); }
  [[nodiscard]] Error CannotAdopt() const {
    return {ErrorCode::kInvalidArgument,
            fmt::format("the files in {} cannot be taken over: every version gets a copy of its own there",
                        directory_.string())};
  }
  Status ClaimDirectory();
  Result<std::optional<std::uint64_t>> ReadLink();
  Result<std::unique_ptr<Mirror>> OpenCopy(std::uint64_t number) {
    return OpenMirror(files_, CopyPath(number), options_, kernels_, pool_);
  }
  Result<std::uint64_t> MakeEmptyCopy();
  Status SwapTo(std::uint64_t number, std::unique_ptr<Mirror>& copy);
  Status SyncLink();

  FileSystem& files_;
  const Path directory_;
  const Path own_;
  const MirrorOptions options_;
  const Kernels& kernels_;
  ThreadPool& pool_;

  std::unique_ptr<FileLock> lock_;
  std::uint64_t last_number_ = 0;  // of any copy so far; no name is used twice, because readers may still use it
  std::uint64_t number_ = 0;       // of the current copy, if there is one
  std::unique_ptr<Mirror> current_;
  bool link_unsynced_ = false;             // the link to the current copy may not be durable
  std::optional<std::uint64_t> previous_;  // the number of the copy that Undo leads to
  std::optional<Held> previous_held_;
  const std::optional<Held> nothing_;
  const std::optional<Error> no_damage_;
};

Status SwapMirror::Open() {
  WW_RETURN_IF_ERROR(ClaimDirectory());
  WW_TRY(lock_, LockFollower(files_, directory_));
  // The process that replaced the link may have been killed before the link was durable. Sync it, because a power
  // failure must not bring back a link to a copy that is removed below.
  WW_RETURN_IF_ERROR(files_.SyncDirectory(directory_));
  WW_TRY(const std::optional<std::uint64_t> number, ReadLink());
  if (number.has_value()) {
    number_ = *number;
    WW_TRY(current_, OpenCopy(number_));
  }
  // The previous copy is the newest complete one below the current number. MakeEmptyCopy removes all others.
  WW_TRY(const std::vector<std::string> names, files_.List(directory_ / kCopies));
  for (const std::string& name : names) {
    const std::optional<std::uint64_t> found = NumberOf(name);
    if (!found.has_value()) continue;
    last_number_ = std::max(last_number_, *found);
    if (!number.has_value() || *found >= number_ || previous_ > found) continue;
    const auto state = ReadMirrorState(files_, CopyPath(*found));
    if (!state.ok() || !state.value().held.has_value() || state.value().writing.has_value()) continue;
    previous_ = found;
    previous_held_ = state.value().held;
  }
  return Ok();
}

Status SwapMirror::ClaimDirectory() {
  WW_RETURN_IF_ERROR(MakeDirectories(files_, directory_));
  WW_TRY(const std::vector<std::string> names, files_.List(directory_));
  WW_TRY(const std::optional<FileInfo> mark, files_.Stat(own_ / kSwapMark));
  if (!mark.has_value()) {
    WW_TRY(const std::optional<FileInfo> own, files_.Stat(own_));
    WW_TRY(const std::optional<FileInfo> state, files_.Stat(own_ / kStateFile));
    if (state.has_value() || names.size() > (own.has_value() ? 1U : 0U)) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("{} is not empty and was not made for whole copies; choose an empty directory",
                               directory_.string()));
    }
    // The process that made the parent directories may have been killed before their names were durable.
    WW_RETURN_IF_ERROR(SyncAncestors(files_, directory_));
    if (!own.has_value()) WW_RETURN_IF_ERROR(files_.MakeDirectory(own_));
    WW_RETURN_IF_ERROR(files_.SyncDirectory(directory_));
    WW_RETURN_IF_ERROR(WriteDurably(files_, own_ / kSwapMark, "weightwire\n"));
  }
  WW_TRY(const std::optional<FileInfo> copies, files_.Stat(directory_ / kCopies));
  if (!copies.has_value()) WW_RETURN_IF_ERROR(files_.MakeDirectory(directory_ / kCopies));
  return files_.SyncDirectory(directory_);
}

// Reads the number of the copy that the link leads to.
Result<std::optional<std::uint64_t>> SwapMirror::ReadLink() {
  const Path link = directory_ / kSwapLink;
  WW_TRY(const std::optional<FileInfo> info, files_.Stat(link));
  if (!info.has_value()) return std::optional<std::uint64_t>();
  const auto damaged = [&] {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} does not lead to a copy of ours; remove it, and a version is loaded again", link.string()));
  };
  if (info->kind != FileKind::kLink) return damaged();
  WW_TRY(const std::string target, files_.ReadLink(link));
  const std::string prefix = std::string(kCopies) + "/";
  const auto number = target.starts_with(prefix) ? NumberOf(std::string_view(target).substr(prefix.size()))
                                                 : std::optional<std::uint64_t>();
  if (!number.has_value()) return damaged();
  WW_TRY(const std::optional<FileInfo> copy, files_.Stat(CopyPath(*number)));
  if (!copy.has_value()) return damaged();
  return number;
}

// Creates an empty directory for the next copy, and removes all copies but the current one: there are at most two, and
// those that readers lock (reader.h).
Result<std::uint64_t> SwapMirror::MakeEmptyCopy() {
  WW_RETURN_IF_ERROR(SyncLink());  // a power failure must not bring back a link to a removed copy
  WW_TRY(const std::vector<std::string> names, files_.List(directory_ / kCopies));
  const std::uint64_t number = last_number_ + 1;
  WW_RETURN_IF_ERROR(files_.MakeDirectory(CopyPath(number)));
  last_number_ = number;
  previous_.reset();
  previous_held_.reset();
  for (const std::string& name : names) {
    if (current_ && NumberOf(name) == number_) continue;
    const Path copy = directory_ / kCopies / name;
    const auto lock = files_.Lock(copy / kMirrorFolder / kContentLock, LockMode::kExclusive);
    if (!lock.ok() && lock.error().code() == ErrorCode::kUnavailable) continue;
    WW_RETURN_IF_ERROR(RemoveTree(files_, copy));
  }
  return number;
}

Status SwapMirror::Apply(const std::shared_ptr<const StagedChange>& change, const Held& after) {
  if (!current_ || !current_->held().has_value()) {
    return Error(ErrorCode::kMismatch, fmt::format("{} holds no version to begin at", directory_.string()));
  }
  // The same bits under another version: no file that a reader opens changes.
  if (change->tensors().empty() && change->layout_after() == change->layout_before()) {
    return current_->Apply(change, after);
  }
  WW_RETURN_IF_ERROR(current_->Sync());
  WW_TRY(const std::uint64_t number, MakeEmptyCopy());
  WW_RETURN_IF_ERROR(CloneMirror(files_, CopyPath(number_), CopyPath(number)));
  WW_TRY(std::unique_ptr<Mirror> copy, OpenCopy(number));
  WW_RETURN_IF_ERROR(copy->Apply(change, after));
  return SwapTo(number, copy);
}

// Makes the copy and its name durable, then replaces the link.
Status SwapMirror::SwapTo(std::uint64_t number, std::unique_ptr<Mirror>& copy) {
  WW_RETURN_IF_ERROR(copy->Sync());
  WW_RETURN_IF_ERROR(files_.SyncDirectory(directory_ / kCopies));
  const Path next = directory_ / kNextLink;
  WW_TRY(const std::optional<FileInfo> left, files_.Stat(next));
  if (left.has_value()) WW_RETURN_IF_ERROR(files_.Remove(next));
  WW_RETURN_IF_ERROR(files_.MakeLink(fmt::format("{}/{}", kCopies, number), next));
  WW_RETURN_IF_ERROR(files_.Rename(next, directory_ / kSwapLink));
  // Readers see the new copy from now on, even if the sync fails.
  link_unsynced_ = true;
  previous_.reset();
  previous_held_.reset();
  if (current_ && current_->held().has_value() && number_ < number) {
    previous_ = number_;
    previous_held_ = current_->held();
  }
  current_ = std::move(copy);
  number_ = number;
  return SyncLink();
}

Status SwapMirror::SyncLink() {
  if (link_unsynced_) WW_RETURN_IF_ERROR(files_.SyncDirectory(directory_));
  link_unsynced_ = false;
  return Ok();
}

Result<bool> SwapMirror::Recover() {
  const bool swapped = link_unsynced_;
  WW_RETURN_IF_ERROR(SyncLink());
  WW_TRY(const bool recovered, current_ ? current_->Recover() : Result<bool>(false));
  return swapped || recovered;
}

Status SwapMirror::Undo() {
  if (!previous_.has_value()) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} has no version to go back to: the copy before is not there", directory_.string()));
  }
  const std::uint64_t number = *previous_;
  WW_TRY(std::unique_ptr<Mirror> copy, OpenCopy(number));
  if (copy->held() != previous_held_) {
    return Error(ErrorCode::kCorrupt, fmt::format("the copy before in {} is damaged", directory_.string()));
  }
  return SwapTo(number, copy);
}

// A load into a copy of its own.
class SwapMirror::Loading final : public TargetLoad {
 public:
  Loading(SwapMirror& mirror, std::uint64_t number, std::unique_ptr<Mirror> copy, std::unique_ptr<TargetLoad> load)
      : mirror_(mirror), number_(number), copy_(std::move(copy)), load_(std::move(load)) {}

  Status WriteAt(std::size_t file, std::uint64_t offset, std::span<const std::uint8_t> bytes) override {
    return load_->WriteAt(file, offset, bytes);
  }
  Status Prepare(const Held& held, const Layout& layout) override {
    WW_RETURN_IF_ERROR(RecoverCopy());
    if (copy_->held().has_value()) return Ok();  // an earlier Commit has failed, because of the link
    return load_->Prepare(held, layout);
  }
  Result<StateView> View() override { return load_->View(); }
  Status Commit(const std::shared_ptr<const StagedChange>& change, const Held& after) override {
    WW_RETURN_IF_ERROR(RecoverCopy());
    // No reader sees the copy yet, so it may change in two steps.
    if (!copy_->held().has_value()) {
      WW_RETURN_IF_ERROR(load_->Commit(change, after));
    } else if (copy_->held() != after) {
      WW_RETURN_IF_ERROR(copy_->Apply(change, after));
    }
    return mirror_.SwapTo(number_, copy_);
  }

 private:
  // After an earlier error, the copy may be complete, so that only the link is missing.
  Status RecoverCopy() {
    WW_CHECK(copy_ != nullptr);
    WW_TRY(const bool recovered, copy_->Recover());
    if (!recovered || copy_->held().has_value()) return Ok();
    return Error(ErrorCode::kCorrupt, fmt::format("a copy in {} was damaged by an error of the disk before it was "
                                                  "used; it must be loaded again",
                                                  mirror_.directory_.string()));
  }

  SwapMirror& mirror_;
  const std::uint64_t number_;
  std::unique_ptr<Mirror> copy_;
  std::unique_ptr<TargetLoad> load_;  // into copy_
};

Result<std::unique_ptr<TargetLoad>> SwapMirror::BeginLoad(std::span<const AnchorFile> files) {
  WW_TRY(const std::uint64_t number, MakeEmptyCopy());
  WW_TRY(std::unique_ptr<Mirror> copy, OpenCopy(number));
  WW_TRY(std::unique_ptr<TargetLoad> load, copy->BeginLoad(files));
  return std::unique_ptr<TargetLoad>(std::make_unique<Loading>(*this, number, std::move(copy), std::move(load)));
}

}  // namespace

Result<std::unique_ptr<Mirror>> OpenSwapMirror(FileSystem& files, const FileSystem::Path& directory,
                                               const MirrorOptions& options, const Kernels& kernels, ThreadPool& pool) {
  auto mirror = std::make_unique<SwapMirror>(files, directory, options, kernels, pool);
  WW_RETURN_IF_ERROR(mirror->Open());
  return std::unique_ptr<Mirror>(std::move(mirror));
}

}  // namespace weightwire
