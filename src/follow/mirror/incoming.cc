#include "follow/mirror/incoming.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/limits.h"
#include "follow/mirror/replacement.h"
#include "log/keys.h"
#include "log/limits.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

// So many files are open at a time: an anchor may have more than a process can open.
constexpr std::size_t kMaxOpenFiles = 64;

Status CheckNames(std::span<const AnchorFile> anchor) {
  if (anchor.size() > kMaxAnchorFiles) {
    return Error(ErrorCode::kLimit,
                 fmt::format("a checkpoint of {} files is above the limit of {}", anchor.size(), kMaxAnchorFiles));
  }
  std::set<std::string> names;
  std::set<std::string> folders;
  for (const AnchorFile& file : anchor) {
    WW_RETURN_IF_ERROR(CheckFileName(file.name));
    if (file.size_bytes > kMaxTensorBytes) {
      return Error(ErrorCode::kLimit, fmt::format("{} is above the limit of {} bytes", file.name, kMaxTensorBytes));
    }
    if (!names.insert(file.name).second) {
      return Error(ErrorCode::kCorrupt, fmt::format("{} is named twice", Quoted(file.name)));
    }
    for (auto parent = FileSystem::Path(file.name).parent_path(); !parent.empty(); parent = parent.parent_path()) {
      folders.insert(parent.string());
    }
  }
  for (const std::string& folder : folders) {
    if (names.contains(folder)) {
      return Error(ErrorCode::kCorrupt, fmt::format("{} is a file, and a folder of another", Quoted(folder)));
    }
  }
  return Ok();
}

}  // namespace

Result<std::unique_ptr<IncomingFiles>> IncomingFiles::Begin(FileSystem& files, const FileSystem::Path& folder,
                                                            std::span<const AnchorFile> anchor, bool include_code) {
  WW_RETURN_IF_ERROR(CheckNames(anchor));
  WW_RETURN_IF_ERROR(RemoveTree(files, folder));
  WW_RETURN_IF_ERROR(files.MakeDirectory(folder));
  auto incoming = std::unique_ptr<IncomingFiles>(new IncomingFiles(files, folder));
  for (const AnchorFile& file : anchor) {
    incoming->incoming_.push_back(
        {file.name, file.size_bytes, MayBeCode(file.name) && !include_code, false, false, nullptr});
  }
  return incoming;
}

std::vector<std::string> IncomingFiles::names() const {
  std::vector<std::string> names;
  for (const Incoming& file : incoming_) {
    if (!file.passed_over) names.push_back(file.name);
  }
  return names;
}

Result<NewFile*> IncomingFiles::Open(std::size_t index) {
  Incoming& file = incoming_[index];
  if (file.open != nullptr) {
    const auto at = std::find(open_.begin(), open_.end(), index);
    std::rotate(at, at + 1, open_.end());
  } else {
    if (open_.size() == kMaxOpenFiles) {
      // Not synced: what was written is synced at the end, whoever has written it.
      incoming_[open_.front()].open.reset();
      open_.erase(open_.begin());
    }
    const FileSystem::Path path = folder_ / file.name;
    if (file.created) {
      WW_TRY(file.open, files_.Reopen(path));
    } else {
      WW_RETURN_IF_ERROR(MakeParents(files_, folder_, file.name));
      WW_TRY(file.open, files_.Create(path));
      file.created = true;
    }
    open_.push_back(index);
  }
  // On its own: a disk that was full for this may have room when it is tried again.
  if (!file.sized) {
    WW_RETURN_IF_ERROR(file.open->Resize(file.size_bytes));
    file.sized = true;
  }
  return file.open.get();
}

Status IncomingFiles::WriteAt(std::size_t index, std::uint64_t offset, std::span<const std::uint8_t> bytes) {
  WW_CHECK(index < incoming_.size());
  Incoming& file = incoming_[index];
  if (offset > file.size_bytes || bytes.size() > file.size_bytes - offset) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} has {} bytes, and there are some for a place after its end", file.name, file.size_bytes));
  }
  if (file.passed_over) return Ok();
  WW_TRY(NewFile* const open, Open(index));
  return open->WriteAt(offset, bytes);
}

Status IncomingFiles::Finish() {
  for (std::size_t index = 0; index < incoming_.size(); ++index) {
    if (incoming_[index].passed_over) continue;
    WW_TRY(NewFile* const open, Open(index));
    WW_RETURN_IF_ERROR(open->Sync());
  }
  for (Incoming& file : incoming_) file.open.reset();
  open_.clear();
  return SyncParents(files_, folder_, names());
}

}  // namespace weightwire
