#include "follow/incoming.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/limits.h"
#include "follow/replacement.h"
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
                                                            std::span<const AnchorFile> anchor, bool carry_code) {
  WW_RETURN_IF_ERROR(CheckNames(anchor));
  WW_RETURN_IF_ERROR(RemoveTree(files, folder));
  WW_RETURN_IF_ERROR(files.MakeDirectory(folder));
  auto incoming = std::unique_ptr<IncomingFiles>(new IncomingFiles(files, folder));
  for (const AnchorFile& file : anchor) {
    incoming->incoming_.push_back({file.name, file.size_bytes, MayBeCode(file.name) && !carry_code, false, nullptr});
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

Status IncomingFiles::Create(Incoming& file) {
  if (open_count_ >= kMaxOpenFiles) WW_RETURN_IF_ERROR(CloseAll(true));
  WW_RETURN_IF_ERROR(MakeParents(files_, folder_, file.name));
  WW_TRY(file.open, files_.Create(folder_ / file.name));
  file.created = true;
  ++open_count_;
  return file.open->Resize(file.size_bytes);
}

Status IncomingFiles::CloseAll(bool sync) {
  for (Incoming& file : incoming_) {
    if (file.open == nullptr) continue;
    if (sync) WW_RETURN_IF_ERROR(file.open->Sync());
    file.open.reset();
  }
  open_count_ = 0;
  return Ok();
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
  if (!file.created) WW_RETURN_IF_ERROR(Create(file));
  if (file.open != nullptr) return file.open->WriteAt(offset, bytes);
  // Closed to make room, and now a piece of it comes again.
  WW_TRY(const std::unique_ptr<UpdateMap> map, files_.MapForUpdate(folder_ / file.name));
  WW_TRY(const std::span<std::uint8_t> to, map->ForWriting(offset, bytes.size()));
  std::copy(bytes.begin(), bytes.end(), to.begin());
  return map->Sync();
}

Status IncomingFiles::Finish(bool sync) {
  for (Incoming& file : incoming_) {
    if (!file.passed_over && !file.created) WW_RETURN_IF_ERROR(Create(file));
  }
  WW_RETURN_IF_ERROR(CloseAll(sync));
  return sync ? SyncParents(files_, folder_, names()) : Ok();
}

}  // namespace weightwire
