// A publisher: makes versions of a run from the states it is given, and brings them to the bucket in order.
//
// Publishing has two sides. The caller's thread compares the state with the base copy, encodes the difference, brings
// the base up to date, and goes on with a ticket. Everything else (spool, upload, commit, anchors) is jobs, which
// others execute. There is no thread, lock or wait in here: runner/publisher_runner.h runs one with threads, Publish
// and Work run one with none.
//
// With a state directory a publisher that dies goes on where it was: what was spooled is published, and the base is the
// one in its file if its digest, computed in full, is that of the last version. Otherwise the base is rebuilt from the
// bucket. Where that is not possible either, the next version is a rebase.
//
// Thread safety: calls marked [guarded] exclude each other; Make is called by one thread; Execute by any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/filesystem.h"
#include "base/random.h"
#include "base/result.h"
#include "base/threads.h"
#include "codec/kernels/kernels.h"
#include "log/planted_bugs.h"
#include "log/run.h"
#include "publish/base_copy.h"
#include "publish/jobs.h"
#include "publish/pipeline.h"
#include "publish/spool.h"
#include "publish/state_bits.h"

namespace weightwire {

struct PublisherOptions {
  PipelineOptions pipeline;
  // When the spool is full, publish says so at once instead of waiting, and the next version covers both steps.
  bool skip_when_full = false;
  // Holds the spool, and the base if `base_in_file`; locked. Without it both are in memory, and end with the process.
  std::optional<FileSystem::Path> state_directory;
  bool base_in_file = false;
  // Versions in the spool whose place another writer has taken are dropped, instead of refusing to start.
  bool drop_lost_versions = false;
  // Configuration and tokenizer files for anchors are taken from here.
  std::optional<FileSystem::Path> carried_directory;
  bool carry_code = false;  // files there that could run as code too
  CheckpointOptions anchor_files;
  // A base that is lost is rebuilt from the bucket. Otherwise the next version is a rebase.
  bool rebuild = true;
  PlantedBugs bugs;
};

// What a publisher runs on; all must outlive it. `files` is needed only for directories, `exclusion` only with threads.
struct PublisherTools {
  const Clock* clock = nullptr;
  Random* random = nullptr;
  FileSystem* files = nullptr;
  const Kernels* kernels = nullptr;
  ThreadPool* pool = nullptr;
  Exclusion exclusion = OneThreadOnly();
  // For what is rebuilt from the bucket: as FollowerOptions has it.
  std::size_t fetch_threads = 1;
};

struct PublisherStatus {
  PipelineStatus pipeline;
  std::vector<std::string> warnings;  // one sentence each
};

class Publisher {
 public:
  // Looks for the newest version and takes up what an earlier process has left. kMismatch if another writer has
  // published in its place; kUnavailable if another process holds the state directory.
  static Result<std::unique_ptr<Publisher>> Open(Run run, PublisherOptions options, const PublisherTools& tools);

  // --- the caller's side, in this order ---

  // [guarded] What stands in the way. If it is stopped or full, the caller goes no further.
  [[nodiscard]] Admission Admit();
  // Makes the next version from the state; nothing if it is the newest version already, with the same step. After an
  // error nothing was made.
  Result<std::optional<Draft>> Make(const StateBits& bits, std::uint64_t step, const Admission& admission);
  // [guarded]
  Ticket Enqueue(Draft draft);
  // A ticket of a call that made no version.
  [[nodiscard]] Ticket TicketWithoutVersion(TicketStage stage, std::uint64_t step) const;

  // --- the other side ---

  [[nodiscard]] std::optional<Job> Next(Lane lane);  // [guarded]
  void Execute(Job& job) const { weightwire::Execute(job, job_tools_); }
  void Finish(Job job);                                             // [guarded]
  [[nodiscard]] std::optional<MonotonicTime> Due(Lane lane) const;  // [guarded]
  [[nodiscard]] bool idle() const { return pipeline_->idle(); }     // [guarded]
  [[nodiscard]] PublisherStatus status() const;                     // [guarded]
  [[nodiscard]] bool skips_when_full() const { return options_.skip_when_full; }

  // --- both, for one thread ---

  // Nothing if the spool is full and one would have to wait.
  Result<std::optional<Ticket>> Publish(const StateBits& bits, std::uint64_t step);
  // Does one job that is due; false if none is.
  bool Work();

 private:
  Publisher(Run run, PublisherOptions options, PublisherTools tools);

  Status Start();
  Status LockStateDirectory();
  // What the spool holds and the bucket does not, in order.
  Result<std::vector<SpoolEntry>> RecoverSpool(const std::optional<KnownRecord>& newest);
  Status RecoverBase(const std::optional<KnownRecord>& newest, const std::vector<SpoolEntry>& waiting);
  // The bits of `version` into the base, from the bucket; false if that is not possible. An error if it may be later.
  Result<bool> Rebuild(const KnownRecord& version);
  Result<std::optional<Draft>> MakeWhole(const StateBits& bits, std::uint64_t step, const Admission& admission);
  void Describe(Draft& draft, std::uint64_t step);

  const PublisherOptions options_;
  const PublisherTools tools_;
  JobTools job_tools_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<Spool> spool_;
  std::unique_ptr<BaseMaker> base_maker_;
  std::unique_ptr<BaseCopy> base_;
  std::vector<CarriedFile> carried_;
  std::vector<std::string> warnings_;
  std::string note_;  // for the next draft
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace weightwire
