#include "cli/fetch_version.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "cli/progress.h"
#include "cli/retry.h"
#include "follow/follower.h"
#include "follow/mirror/mirror.h"
#include "follow/mirror/mirror_state.h"
#include "store/transfer.h"

namespace weightwire {
namespace {

std::filesystem::path WithoutSlash(const std::filesystem::path& path) {
  return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

// A mirror of another run is of no use here; nor is what is no mirror any more, since a crash came when all that was
// left to do was to give it its name.
Result<std::unique_ptr<Mirror>> OpenOrBeginAnew(const Run& run, const std::filesystem::path& partial,
                                                const MirrorOptions& options, const Machine& machine,
                                                FileSystem& files) {
  {
    auto mirror = OpenMirror(files, partial, options, *machine.kernels, *machine.pool);
    if (!mirror.ok() && mirror.error().code() != ErrorCode::kInvalidArgument) return mirror.error();
    if (mirror.ok()) {
      const auto held = mirror.value()->held();
      if (!held.has_value() || held->run == run.id()) return mirror;
    }
  }
  WW_RETURN_IF_ERROR(RemoveTree(files, partial));
  return OpenMirror(files, partial, options, *machine.kernels, *machine.pool);
}

// Where a directory lies while it is on its way. Held by one process at a time, also while what is in it is no mirror.
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
  // Another one may just have finished it.
  WW_RETURN_IF_ERROR(CheckNameIsFree(goal));
  return place;
}

}  // namespace

Status FetchVersion(const Run& run, const KnownRecord& version, const std::filesystem::path& directory, bool carry_code,
                    const Machine& machine, const InterruptGuard& interrupt, FileSystem& files) {
  const std::filesystem::path goal = WithoutSlash(directory);
  WW_TRY(const Workplace place, TakeWorkplace(goal, files));
  const std::filesystem::path& partial = place.partial;
  MirrorOptions options;
  options.carry_code = carry_code;
  SystemRandom random;
  SystemClock clock;
  {
    WW_TRY(const auto mirror, OpenOrBeginAnew(run, partial, options, machine, files));
    FollowerOptions follower_options;
    follower_options.name = "checkout";
    follower_options.fetch_threads = TransferOptions().threads;
    Follower follower(run, *mirror, NewId(random), follower_options, {&clock, machine.kernels, machine.pool.get()});
    follower.StandStill(version.record.version, /*back=*/true);
    const Progress progress(fmt::format("fetching version {}", version.record.version));
    const Status fetched = RetryTransient(interrupt, [&]() -> Result<bool> {
      WW_TRY(const FollowerStep step, follower.Step());
      return step == FollowerStep::kUpToDate;
    });
    const Status left = follower.Leave();
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
  // It is there. What is left behind is small, and is used if ever the same is asked for again.
  static_cast<void>(RemoveTree(files, place.directory));
  return Ok();
}

}  // namespace weightwire
