// The options of a publisher, and the tools that it runs on. Its parts (version_maker.h, committer.h, board_host.h) are
// given the same options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "base/failure_policy.h"
#include "base/filesystem.h"
#include "base/random.h"
#include "base/threads.h"
#include "codec/kernels/kernels.h"
#include "publish/policy.h"
#include "tensor/checkpoint_plan.h"

namespace weightwire {

// Of a publisher that is one of several ranks.
struct GroupOptions {
  std::uint64_t rank = 0;
  std::uint64_t ranks = 1;
  // A rank that sends no heartbeat for this long is declared dead, and the call fails.
  MonotonicTime deadline = kRankDeadline;
  // A stalled upload looks like a slow one. It is called slow for `deadline` plus part size / this rate, and hung after
  // that.
  std::uint64_t slowest_bytes_per_second = kSlowestPartBytesPerSecond;
};

struct PublisherOptions {
  // The publisher is full when this many versions, or bytes of parts, are in flight.
  std::uint64_t max_versions = kMaxWaitingVersions;
  std::uint64_t max_bytes = kMaxWaitingBytes;
  // When it is full, publish returns at once instead of waiting, and the next version covers both steps. For one
  // process.
  bool skip_when_full = false;
  // An anchor is due this many versions after the last one, or when the deltas since add up to this share of the model.
  // 0: never by this rule.
  std::uint64_t anchor_every = kAnchorEveryVersions;
  std::uint64_t anchor_percent = kAnchorEveryPercent;
  // An anchor that takes longer is started again under a new id, because gc deletes old objects without an anchor.json.
  MonotonicTime anchor_age = kMaxAnchorAge;
  // Configuration and tokenizer files for anchors are taken from here, by the process of rank 0.
  std::optional<FileSystem::Path> extra_files;
  bool include_code = false;  // files there that could run as code too
  CheckpointOptions anchor_files;
  // A base that is lost is rebuilt from the bucket. Otherwise the next version is a rebase. The same for all ranks.
  bool rebuild = true;
  // A state that shares no tensor with the newest version is published too (publish/same_model.h).
  bool allow_new_model = false;
  BackoffPolicy retry;
  std::optional<GroupOptions> group;  // this process is one of several ranks

  // --- one process only ---
  // Holds the spool, and the base if `base_on_disk`; locked. Without it both are in memory, and end with the process.
  std::optional<FileSystem::Path> state_directory;
  bool base_on_disk = false;
  // Versions in the spool whose place another writer has taken are discarded, instead of refusing to start.
  bool discard_conflicting = false;
};

// A lock that is injected, so that this folder has none of its own: it keeps the caller's encoding and an anchor's
// reading of the base copy apart. Calls `function` while no other function given to it runs. These functions have no
// effect on a store or a disk, so the lock is never held across one. Programs with one thread pass RunUnlocked().
using RunLocked = std::function<void(const std::function<void()>& function)>;

[[nodiscard]] inline RunLocked RunUnlocked() {
  return [](const std::function<void()>& function) { function(); };
}

// All that it points to must outlive the publisher.
struct PublisherTools {
  const Clock* clock = nullptr;
  Random* random = nullptr;
  FileSystem* files = nullptr;  // only for directories
  const Kernels* kernels = nullptr;
  ThreadPool* pool = nullptr;
  RunLocked run_locked = RunUnlocked();
  std::size_t fetch_threads = 1;  // for a rebuild of the base, as FollowerOptions::fetch_threads
};

}  // namespace weightwire
