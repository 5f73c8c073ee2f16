#include "cli/exec_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "follow/mirror/mirror_state.h"

namespace weightwire {
namespace {

constexpr std::string_view kFileName = "told";
constexpr std::uint64_t kMaxBytes = 256;

FileSystem::Path FileOf(const FileSystem::Path& mirror) { return mirror / kMirrorFolder / kFileName; }

// The number is for people. The hash names the version, also after the mirror was loaded again from a different run.
std::string TextOf(const Held& held) { return fmt::format("version {} {}\n", held.version, ToHex(held.record_hash)); }

}  // namespace

bool ExecSucceeded(FileSystem& files, const FileSystem::Path& mirror, const Held& held) {
  const auto there = files.Read(FileOf(mirror), kMaxBytes);
  return there.ok() && std::ranges::equal(there.value(), TextOf(held));
}

Status RememberExecSuccess(FileSystem& files, const FileSystem::Path& mirror, const Held& held) {
  return WriteDurably(files, FileOf(mirror), TextOf(held));
}

}  // namespace weightwire
