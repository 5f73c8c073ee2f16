#include "cli/checkpoints.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/real_file_system.h"
#include "cli/terminal.h"
#include "codec/digest/state.h"
#include "codec/format/format.h"
#include "follow/in_place/in_place_update.h"

namespace weightwire {

Result<Checkpoint> OpenCheckpoint(const std::filesystem::path& path) {
  RealFileSystem files;
  WW_TRY(const auto pending, PendingUpdate(files, path));
  if (pending.has_value()) {
    return Error(ErrorCode::kMismatch,
                 fmt::format("{} is in the middle of an update; run 'weightwire apply --in-place {}' to finish it",
                             path.string(), pending->string()));
  }
  WW_TRY(Checkpoint checkpoint, Checkpoint::Open(path));
  for (const CheckpointFile& file : checkpoint.files()) {
    // Both are safetensors files.
    const auto format = file.metadata.find("format");
    if (format == file.metadata.end() || format->second != kDeltaFormatName) continue;
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} is a delta, not a checkpoint: see 'weightwire inspect' and 'weightwire apply'", path.string()));
  }
  return checkpoint;
}

std::vector<std::span<const std::uint8_t>> TensorBytes(const Checkpoint& checkpoint) {
  std::vector<std::span<const std::uint8_t>> bytes;
  bytes.reserve(checkpoint.layout().size());
  for (std::size_t i = 0; i < checkpoint.layout().size(); ++i) bytes.push_back(checkpoint.bytes(i));
  return bytes;
}

std::vector<Digest> DigestInFull(const Checkpoint& checkpoint, const std::string& what, const Compute& compute) {
  // In groups of tensors, for the sake of progress; large enough that the threads seldom wait for each other.
  constexpr std::uint64_t kGroupBytes = std::uint64_t{1} << 28;
  const std::vector<std::span<const std::uint8_t>> tensors = TensorBytes(checkpoint);
  Progress progress(what, checkpoint.layout().total_bytes());
  std::vector<Digest> digests;
  digests.reserve(tensors.size());
  for (std::size_t begin = 0; begin < tensors.size();) {
    std::size_t end = begin;
    std::uint64_t group_bytes = 0;
    while (end < tensors.size() && (end == begin || group_bytes + tensors[end].size() <= kGroupBytes)) {
      group_bytes += tensors[end++].size();
    }
    const auto group = DigestTensors(std::span(tensors).subspan(begin, end - begin), *compute.kernels, *compute.pool);
    digests.insert(digests.end(), group.begin(), group.end());
    progress.Add(group_bytes);
    begin = end;
  }
  return digests;
}

namespace {

// Reads all of standard input, which may be a pipe, into memory that can be mapped.
Result<MappedFile> MapStandardInput() {
  const int memory = ::memfd_create("standard input", MFD_CLOEXEC);
  if (memory < 0) return SystemError("make room for", "standard input", errno);
  Status status;
  std::vector<char> buffer(std::size_t{1} << 20);
  for (;;) {
    const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) status = SystemError("read", "standard input", errno);
    if (count <= 0) break;
    for (ssize_t written = 0; written < count && status.ok();) {
      const ssize_t now = ::write(memory, buffer.data() + written, static_cast<std::size_t>(count - written));
      if (now < 0) status = SystemError("keep", "standard input", errno);
      written += std::max<ssize_t>(now, 0);
    }
    if (!status.ok()) break;
  }
  auto map =
      status.ok() ? MappedFile::Open(fmt::format("/proc/self/fd/{}", memory)) : Result<MappedFile>(status.error());
  ::close(memory);
  return map;
}

}  // namespace

Result<LoadedDelta> LoadDelta(const std::filesystem::path& path) {
  const bool is_input = path == "-";
  const std::string name = is_input ? "standard input" : path.string();
  WW_TRY(MappedFile map, is_input ? MapStandardInput() : MappedFile::Open(path));
  const Progress progress("checking " + name);
  auto file = DeltaFile::Parse(map.bytes());
  if (!file.ok()) return file.error().In(name);
  return LoadedDelta{name, std::move(map), std::move(file).value()};
}

Status CheckNameIsFree(const std::filesystem::path& output) {
  // "out/" and "out" mean the same.
  const std::filesystem::path name = output.has_filename() || !output.has_parent_path() ? output : output.parent_path();
  std::error_code ignored;
  if (std::filesystem::symlink_status(name, ignored).type() == std::filesystem::file_type::not_found) return Ok();
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("{} already exists; remove it or choose another name", output.string()));
}

}  // namespace weightwire
