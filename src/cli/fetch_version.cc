#include "cli/fetch_version.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "cli/retry.h"
#include "cli/terminal.h"
#include "follow/mirror/mirror.h"
#include "follow/mirror/mirror_state.h"
#include "follow/rebuild.h"
#include "store/transfer.h"

namespace weightwire {
namespace {

std::filesystem::path WithoutSlash(const std::filesystem::path& path) {
  return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

// Opens the mirror that an earlier call left. Starts again if that is a mirror of a different run, or no longer a
// mirror: a crash came after its own folder was removed and before the directory got its name.
Result<std::unique_ptr<Mirror>> OpenOrStartAgain(const Run& run, const std::filesystem::path& partial,
                                                 const MirrorOptions& options, const Compute& compute,
                                                 FileSystem& files) {
  {
    auto mirror = OpenMirror(files, partial, options, *compute.kernels, *compute.pool);
    if (!mirror.ok() && mirror.error().code() != ErrorCode::kInvalidArgument) return mirror.error();
    if (mirror.ok()) {
      const auto held = mirror.value()->held();
      if (!held.has_value() || held->run == run.id()) return mirror;
    }
  }
  WW_RETURN_IF_ERROR(RemoveTree(files, partial));
  return OpenMirror(files, partial, options, *compute.kernels, *compute.pool);
}

// Where a directory is until it is complete. One process at a time holds the lock, also while there is no mirror in it.
struct Workplace {
  std::filesystem::path directory;
  std::filesystem::path partial;
  std::unique_ptr<FileLock> lock;
};

Result<Workplace> TakeWorkplace(const std::filesystem::path& goal, FileSystem& files) {
  Workplace place;
  place.directory = goal.parent_path() / fmt::format(".{}.weightwire", goal.filename().string());
  place.partial = place.directory / "files";
  WW_TRY(const auto there, files.Stat(place.directory));
  if (!there.has_value()) WW_RETURN_IF_ERROR(files.MakeDirectory(place.directory));
  auto lock = files.Lock(place.directory / "lock", LockMode::kExclusive);
  if (!lock.ok()) {
    if (lock.error().code() != ErrorCode::kUnavailable) return lock.error();
    return Error(ErrorCode::kUnavailable, fmt::format("another process is making {}", goal.string()));
  }
  place.lock = std::move(lock).value();
  // Another process may just have finished it.
  WW_RETURN_IF_ERROR(CheckNameIsFree(goal));
  return place;
}

}  // namespace

Status FetchVersion(const Run& run, const KnownRecord& version, const std::filesystem::path& directory,
                    bool include_code, const Compute& compute, const InterruptGuard& interrupt,
                    const CommandTools& tools) {
  FileSystem& files = *tools.files;
  const std::filesystem::path goal = WithoutSlash(directory);
  WW_TRY(const Workplace place, TakeWorkplace(goal, files));
  const std::filesystem::path& partial = place.partial;
  MirrorOptions options;
  options.include_code = include_code;
  SystemRandom random;
  SystemClock clock;
  {
    WW_TRY(const auto mirror, OpenOrStartAgain(run, partial, options, compute, files));
    FollowerOptions follower_options;
    follower_options.name = "checkout";
    follower_options.fetch_threads = TransferOptions().threads;
    Follower follower(run, *mirror, NewId(random), follower_options, {&clock, compute.kernels, compute.pool.get()});
    const Progress progress(fmt::format("fetching version {}", version.record.version));
    TransientRetries retries(interrupt, tools.options->RetryFor());
    const Status fetched = FollowTo(follower, version.record.version, [&](const Result<FollowerStep>& step) {
      return retries.After(step.ok() ? Ok() : Status(step.error()));
    });
    const Status left = follower.ReleaseLease();
    if (!fetched.ok()) return fetched.error();
    if (!left.ok()) {
      fmt::print(stderr, "weightwire: {}; the lease stays until it expires\n", left.error().message());
    }
    WW_RETURN_IF_ERROR(mirror->Sync());
    const auto held = mirror->held();
    if (!held.has_value() || held->state != version.record.state) {
      return Error(ErrorCode::kCorrupt,
                   fmt::format("{} did not come to version {}", partial.string(), version.record.version));
    }
  }
  WW_RETURN_IF_ERROR(RemoveTree(files, partial / kMirrorFolder));
  WW_RETURN_IF_ERROR(files.SyncDirectory(partial));
  WW_RETURN_IF_ERROR(Rename(partial, goal, Existing::kRefuse));
  // The directory is complete. What cannot be removed is small, and the next call for the same directory uses it.
  static_cast<void>(RemoveTree(files, place.directory));
  return Ok();
}

}  // namespace weightwire
