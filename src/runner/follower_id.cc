#include "runner/follower_id.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "follow/mirror/mirror_state.h"
#include "log/limits.h"

namespace weightwire {
namespace {

constexpr std::string_view kFollowerIdFile = "follower.id";
constexpr std::uint64_t kMaxIdFileBytes = 256;

}  // namespace

Result<Id> FollowerIdOf(FileSystem& files, const FileSystem::Path& mirror, Random& random) {
  const FileSystem::Path path = mirror / kMirrorFolder / kFollowerIdFile;
  const auto bytes = files.Read(path, kMaxIdFileBytes);
  if (bytes.ok()) {
    std::string text(bytes.value().begin(), bytes.value().end());
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (const auto id = IdFromHex(text); id.has_value()) return *id;
  } else if (bytes.error().code() != ErrorCode::kNotFound && bytes.error().code() != ErrorCode::kLimit) {
    return bytes.error();
  }
  // Missing or damaged: a new one costs no more than a lease that expires.
  const Id id = NewId(random);
  WW_RETURN_IF_ERROR(WriteDurably(files, path, ToHex(id) + "\n"));
  return id;
}

std::string DefaultFollowerName(const FileSystem::Path& mirror) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {"?"};
  std::error_code ignored;
  const auto absolute = std::filesystem::absolute(mirror, ignored).lexically_normal();
  const auto name = absolute.has_filename() ? absolute.filename() : absolute.parent_path().filename();
  std::string text = fmt::format("{}:{}", host.data(), name.string());
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  text.resize(std::min<std::size_t>(text.size(), kMaxFollowerNameBytes));
  return text;
}

}  // namespace weightwire
