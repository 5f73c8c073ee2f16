#include "cli/told.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "follow/mirror/mirror_state.h"

namespace weightwire {
namespace {

constexpr std::uint64_t kMaxToldBytes = 256;

FileSystem::Path FileOf(const FileSystem::Path& mirror) { return mirror / kMirrorFolder / kToldFile; }

// The number is for people; the hash says which version it is, also after a mirror was made anew from another run.
std::string TextOf(const Held& held) { return fmt::format("version {} {}\n", held.version, ToHex(held.record_hash)); }

}  // namespace

bool WasTold(FileSystem& files, const FileSystem::Path& mirror, const Held& held) {
  const auto there = files.Read(FileOf(mirror), kMaxToldBytes);
  return there.ok() && std::ranges::equal(there.value(), TextOf(held));
}

Status RememberTold(FileSystem& files, const FileSystem::Path& mirror, const Held& held) {
  return WriteDurably(files, FileOf(mirror), TextOf(held));
}

}  // namespace weightwire
