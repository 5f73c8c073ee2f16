// The version maker owns the base copy and makes versions from states: all of a call of publish that happens on the
// caller's thread.
//
// Make() compares a state with the base copy and encodes the difference, in one pass that also moves the base to the
// new state. It never waits for the network, with one exception: if the base is lost (a restart without a base file, a
// failed write, undo data that is gone), Make() first rebuilds it, which downloads the newest version: up to the whole
// model. Where the version cannot be rebuilt, the next version is a rebase, which has no delta; ranks agree on that
// first, by a call that fails.
//
// Thread safety: one thread, the caller's. Sources made by SourceOf may be read by any thread at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/filesystem.h"
#include "base/result.h"
#include "log/run.h"
#include "publish/anchor_source.h"
#include "publish/base_copy.h"
#include "publish/draft.h"
#include "publish/publisher_options.h"
#include "publish/spool.h"
#include "publish/state_bits.h"

namespace weightwire {

class VersionMaker {
 public:
  // `options` must outlive it.
  VersionMaker(Run run, const PublisherOptions& options, PublisherTools tools);

  // Adopts what an earlier process left: the base file, if its digest is that of `newest` or of a spooled version, or a
  // rebuilt `newest`; then applies the spooled deltas. Afterwards the base may still be lost. For one process only.
  Status Recover(const std::optional<KnownRecord>& newest, std::span<const SpoolEntry> spooled, const Spool* spool);

  // Makes the next version. Returns nullopt if it must wait until nothing is in flight, because it replaces the base.
  // After an error nothing was made.
  Result<std::optional<Draft>> Make(const StateBits& bits, std::uint64_t step, const Admission& admission);

  [[nodiscard]] bool holds_base() const { return base_.holds(); }
  // Reads the bits of a version that is pinned. The version maker must outlive it.
  [[nodiscard]] std::shared_ptr<AnchorSource> SourceOf(const std::shared_ptr<const BasePin>& pin) const {
    return std::make_shared<BaseSource>(base_, pin);
  }

 private:
  // Replaces the base by `version`, from the bucket. False if that is impossible; an error if it may be possible later.
  Result<bool> Rebuild(const KnownRecord& version, const std::shared_ptr<const Shards>& shards, Version serial);
  // kMismatch for a state of another model than the newest version's. REQUIRES: the base is at that version, or lost.
  Status CheckModel(const Layout& published, const Admission& admission) const;
  Result<Draft> MakeWhole(const StateBits& bits, Draft draft, const Admission& admission);
  Result<Draft> MakeDelta(const StateBits& bits, Draft draft, const Admission& admission);
  Status ApplySpooled(std::span<const SpoolEntry> spooled, const Spool& spool);
  [[nodiscard]] Draft Finish(Draft draft);

  const Run run_;
  const PublisherOptions& options_;
  const PublisherTools tools_;
  BaseCopy base_;
  bool called_ = false;  // Make was called before
  std::string note_;     // for the next draft
};

}  // namespace weightwire
