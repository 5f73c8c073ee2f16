#include "runner/checkout.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/failure_policy.h"
#include "base/file.h"
#include "follow/mirror/mirror.h"
#include "follow/mirror/mirror_state.h"
#include "log/available_versions.h"
#include "runner/run_report.h"
#include "store/policy.h"

namespace weightwire {
namespace {

using Path = std::filesystem::path;

Path WithoutSlash(const Path& path) {
  return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

Status CheckIsFree(const Path& goal, FileSystem& files) {
  WW_TRY(const auto there, files.Stat(goal));
  if (!there.has_value()) return Ok();
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("{} already exists; remove it or choose another name", goal.string()));
}

// Opens the mirror that an earlier call left. Starts again if that is a mirror of a different run, or no longer a
// mirror: a crash came after its own folder was removed and before the directory got its name.
Result<std::unique_ptr<Mirror>> OpenOrStartAgain(const Run& run, const Path& partial, const MirrorOptions& options,
                                                 const CheckoutTools& tools) {
  const Kernels& kernels = *tools.follower.kernels;
  {
    auto mirror = OpenMirror(*tools.files, partial, options, kernels, *tools.follower.pool);
    if (!mirror.ok() && mirror.error().code() != ErrorCode::kInvalidArgument) return mirror.error();
    if (mirror.ok()) {
      const auto held = mirror.value()->held();
      if (!held.has_value() || held->run == run.id()) return mirror;
    }
  }
  WW_RETURN_IF_ERROR(RemoveTree(*tools.files, partial));
  return OpenMirror(*tools.files, partial, options, kernels, *tools.follower.pool);
}

// Where a directory is until it is complete. One process at a time holds the lock, also while there is no mirror in it.
struct WorkingFolder {
  Path directory;
  Path partial;
  std::unique_ptr<FileLock> lock;
};

Result<WorkingFolder> TakeWorkingFolder(const Path& goal, FileSystem& files) {
  WorkingFolder folder;
  folder.directory = goal.parent_path() / fmt::format(".{}.weightwire", goal.filename().string());
  folder.partial = folder.directory / "files";
  WW_RETURN_IF_ERROR(CheckIsFree(goal, files));
  WW_TRY(const auto there, files.Stat(folder.directory));
  if (!there.has_value()) WW_RETURN_IF_ERROR(files.MakeDirectory(folder.directory));
  auto lock = files.Lock(folder.directory / "lock", LockMode::kExclusive);
  if (!lock.ok()) {
    if (lock.error().code() != ErrorCode::kUnavailable) return lock.error();
    return Error(ErrorCode::kUnavailable, fmt::format("another process is making {}", goal.string()));
  }
  folder.lock = std::move(lock).value();
  // Another process may just have finished it.
  WW_RETURN_IF_ERROR(CheckIsFree(goal, files));
  return folder;
}

// Explains why a version cannot be fetched, if gc has deleted what led to it: then a later version has an anchor. A
// version that only lost its deltas has the error as it was.
Error Explain(const Run& run, const Record& version, Error error) {
  if (error.code() != ErrorCode::kNotFound) return error;
  auto available = AvailableVersions::List(run, version, version.version);
  if (!available.ok() || available.value().Next(version)) return error;
  const auto next = available.value().NextAnchor(version.version);
  if (!next.has_value()) return error;
  return {ErrorCode::kNotFound,
          fmt::format("version {} of {} cannot be fetched any more: the deltas and anchors that led to it have been "
                      "removed, as gc does with old versions; the next one that can be fetched is version {}",
                      version.version, run.store().Name(), *next)};
}

// Brings the mirror in the working folder to the version. `held` is what it holds, also after an error.
Status Fetch(const Run& run, const KnownRecord& version, const WorkingFolder& folder, bool include_code,
             const CheckoutTools& tools, const AfterStep& after_step, std::optional<Version>& held) {
  MirrorOptions options;
  options.include_code = include_code;
  WW_TRY(const auto mirror, OpenOrStartAgain(run, folder.partial, options, tools));
  FollowerOptions follower_options;
  follower_options.name = "checkout";
  follower_options.fetch_threads = kTransferThreads;
  Follower follower(run, *mirror, NewId(*tools.random), follower_options, tools.follower);
  const Status fetched = FollowTo(follower, version.record.version, after_step);
  // A lease that cannot be removed expires.
  static_cast<void>(follower.ReleaseLease());
  if (mirror->held().has_value()) held = mirror->held()->version;
  if (!fetched.ok()) return Explain(run, version.record, fetched.error());
  WW_RETURN_IF_ERROR(mirror->Sync());
  if (mirror->held().has_value() && mirror->held()->state == version.record.state) return Ok();
  return Error(ErrorCode::kCorrupt,
               fmt::format("{} did not come to version {}", folder.partial.string(), version.record.version));
}

Status Finish(const WorkingFolder& folder, const Path& goal, FileSystem& files) {
  WW_RETURN_IF_ERROR(RemoveTree(files, folder.partial / kMirrorFolder));
  WW_RETURN_IF_ERROR(files.SyncDirectory(folder.partial));
  WW_RETURN_IF_ERROR(Rename(folder.partial, goal, Existing::kRefuse));
  // The directory is complete. What cannot be removed is small, and the next call for the same directory uses it.
  static_cast<void>(RemoveTree(files, folder.directory));
  return Ok();
}

}  // namespace

Status CheckOut(const Run& run, const KnownRecord& version, const Path& directory, bool include_code,
                const CheckoutTools& tools, const AfterStep& after_step) {
  const Path goal = WithoutSlash(directory);
  WW_TRY(const WorkingFolder folder, TakeWorkingFolder(goal, *tools.files));
  std::optional<Version> held;
  const Status fetched = Fetch(run, version, folder, include_code, tools, after_step, held);
  if (fetched.ok()) return Finish(folder, goal, *tools.files);
  const Error& error = fetched.error();
  if (held.has_value() && (IsTransient(error) || error.code() == ErrorCode::kIo)) {
    return Error(error.code(), fmt::format("{}; {} holds version {}, and the next checkout into {} continues from it",
                                           error.message(), folder.directory.string(), *held, goal.string()));
  }
  static_cast<void>(RemoveTree(*tools.files, folder.directory));
  return error;
}

Status Load(const Run& run, std::optional<Version> version, Target& target, const FollowerTools& tools, Random& random,
            const AfterStep& after_step) {
  FollowerOptions options;
  options.keep_lease = false;
  options.fetch_threads = kTransferThreads;
  Follower follower(run, target, NewId(random), options, tools);
  Status loaded = FollowTo(follower, version, after_step);
  if (loaded.ok() || !version.has_value() || loaded.error().code() != ErrorCode::kNotFound) return loaded;
  const auto record = run.ReadRecord(*version);
  if (!record.ok() || !record.value().has_value()) return loaded;
  return Explain(run, record.value()->record, loaded.error());
}

}  // namespace weightwire
