#include "runner/mirror_follower.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "follow/mirror/mirror_state.h"
#include "log/find_version.h"
#include "log/limits.h"
#include "store/policy.h"
#include "store/store_url.h"

namespace weightwire {
namespace {

constexpr std::string_view kFollowerIdFile = "follower.id";
constexpr std::uint64_t kMaxIdFileBytes = 256;

// may_differ(error): whether the target just has other bits, if its digest cannot be computed.
template <typename AnyTarget, typename MayDiffer>
Status Adopt(const Run& run, AnyTarget& target, const MayDiffer& may_differ) {
  if (target.held().has_value()) return Ok();
  WW_TRY(const auto newest, run.FindNewest(std::nullopt));
  if (!newest.has_value()) return Ok();
  WW_TRY(const Layout layout, run.ReadLayout(newest->record.layout));
  const auto state = target.DigestAs(layout);
  if (!state.ok()) return may_differ(state.error()) ? Ok() : Status(state.error());
  WW_TRY(const auto version, FindVersionByState(run, state.value()));
  if (!version.has_value()) return Ok();
  return target.Adopt(HeldOf(*version), layout);
}

// REQUIRES: the mirror is open, so that no other process makes an id.
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

// "host:directory", printable.
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

}  // namespace

Status AdoptByDigest(const Run& run, Mirror& mirror) {
  if (mirror.damage().has_value()) return Ok();
  return Adopt(run, mirror, [](const Error& error) { return error.code() != ErrorCode::kIo; });
}

Status AdoptByDigest(const Run& run, ArrayTarget& arrays) {
  return Adopt(run, arrays, [](const Error&) { return false; });
}

Status CheckApart(std::string_view run, const FileSystem::Path& directory) {
  const auto url = ParseStoreUrl(run);
  if (!url.ok() || url.value().kind != StoreUrl::Kind::kFile) return Ok();
  std::error_code failed;
  const auto real_run = std::filesystem::weakly_canonical(std::filesystem::absolute(url.value().path), failed);
  if (failed) return Ok();
  const auto real_mirror = std::filesystem::weakly_canonical(std::filesystem::absolute(directory), failed);
  if (failed) return Ok();
  const auto contains = [](const std::filesystem::path& outer, const std::filesystem::path& inner) {
    const std::string relative = inner.lexically_relative(outer).generic_string();
    return !relative.empty() && relative != ".." && !relative.starts_with("../");
  };
  if (!contains(real_run, real_mirror) && !contains(real_mirror, real_run)) return Ok();
  return Error(
      ErrorCode::kInvalidArgument,
      fmt::format("cannot keep the mirror {} of the run at {}: one of these directories is in the other; choose "
                  "a directory of its own for the mirror",
                  directory.string(), run));
}

Result<std::unique_ptr<Follower>> MakeMirrorFollower(const Run& run, Mirror& mirror, const FileSystem::Path& directory,
                                                     FollowerOptions options, const FollowerTools& tools,
                                                     FileSystem& files, Random& random) {
  WW_TRY(const Id id, FollowerIdOf(files, directory, random));
  if (options.name.empty()) options.name = DefaultFollowerName(directory);
  options.fetch_threads = kTransferThreads;
  return std::make_unique<Follower>(run, mirror, id, std::move(options), tools);
}

}  // namespace weightwire
