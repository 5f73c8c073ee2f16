// Verifying a run: reads all of it and recomputes everything that its records promise.
//
// Every record is read and compared with the one before, every part and every anchor's file is hashed, every delta is
// replayed, and at every anchor and at the newest version the replayed state is digested in full. What gc has removed
// is no damage, as long as something leads to the newest version: replaying then goes on from the next anchor.
//
// A step function, as the follower is (follower.h). It holds the model in memory, twice at an anchor.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "codec/kernels/kernels.h"
#include "follow/anchor_load.h"
#include "follow/targets/memory_target.h"
#include "log/run.h"

namespace weightwire {

struct VerifyReport {
  std::optional<Version> newest;
  std::uint64_t records = 0;
  std::uint64_t parts = 0;
  std::uint64_t anchors = 0;
  std::uint64_t bytes = 0;  // of parts and anchors
  // Versions whose state was replayed, or loaded from an anchor.
  std::uint64_t states = 0;
  // Versions whose delta gc has removed.
  std::uint64_t pruned = 0;
  // What is wrong, one sentence each.
  std::vector<std::string> damage;
};

class Verifier {
 public:
  // From version `from` on. `kernels` and `pool` must outlive it.
  Verifier(Run run, Version from, const Kernels& kernels, ThreadPool& pool);

  // One thing: a record, a part, a portion of an anchor. True once everything is done. An error is not damage but
  // something that kept it from looking; stepping again tries that thing again.
  Result<bool> Step();

  [[nodiscard]] const VerifyReport& report() const { return report_; }
  // The version it is at.
  [[nodiscard]] Version at() const { return version_; }

 private:
  enum class Phase : std::uint8_t { kBegin, kRecord, kDelta, kAnchor, kEnd };
  Status Begin();
  Status ReadRecord();
  Status ReadDelta();
  // All parts are here: replays them, if there is a state to do it on.
  void Replay();
  Status ReadAnchor();
  Status BeginAnchor(const AnchorName& name);
  Status LoadPortion();
  // The object that is being loaded is missing or damaged.
  Status SkipLostObject(const Error& lost);
  void FinishAnchor();
  void DropAnchor();
  void EndVersion();
  void CheckReplayed();
  // That the anchor is the one the record saw, if the record names it.
  bool CheckNamed(const Record& record, const KnownAnchor& anchor);
  void Damaged(std::string sentence);

  const Run run_;
  const Version from_;
  const Kernels& kernels_;
  ThreadPool& pool_;

  Phase phase_ = Phase::kBegin;
  VerifyReport report_;
  Version version_ = 0;
  std::vector<AnchorName> anchors_;  // from version_ on, as far as they are not done
  std::optional<KnownRecord> before_;
  std::optional<KnownRecord> record_;
  std::shared_ptr<const Layout> layout_;  // of record_; none if it cannot be read
  std::vector<std::vector<std::uint8_t>> parts_;
  bool parts_complete_ = true;
  bool parts_gone_ = false;                    // some of them, not damaged
  std::map<AnchorName, KnownAnchor> unnamed_;  // anchors read; later records may still name them
  std::unique_ptr<MemoryTarget> replayed_;     // holds the state of version_, or nothing
  std::unique_ptr<MemoryTarget> loaded_;       // the target of load_
  std::unique_ptr<AnchorLoad> load_;           // of anchors_.front()
  bool load_is_damaged_ = false;
};

}  // namespace weightwire
