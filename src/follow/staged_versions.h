// The versions that are verified, but not yet in the target: a stack of changes over what the target holds, or over a
// loaded anchor that the target does not hold yet.
//
// There may be thousands of them. Every tile that is decoded next is looked up in each change, so Push folds the last
// changes into one whenever there are kFoldAt of the same number of versions. A version is folded log(k) times if there
// are k. Combine folds what is left, so that the target gets one change.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "codec/decode/staged_change.h"
#include "codec/decode/state_view.h"
#include "codec/kernels/kernels.h"
#include "follow/anchor_load.h"
#include "follow/targets/target.h"
#include "log/record.h"

namespace weightwire {

// Decodes the delta of `record` from its parts, and checks that it leads from the state `before`, which `view` shows,
// to the one in the record. kCorrupt, kMismatch or kLimit if it does not.
Result<std::shared_ptr<const StagedChange>> DecodeVersion(const Record& record, const Sha256Digest& before,
                                                          std::span<const std::vector<std::uint8_t>> parts,
                                                          const StateView& view, const Kernels& kernels,
                                                          ThreadPool& pool);

class StagedVersions {
 public:
  static constexpr std::size_t kFoldAt = 8;

  // `target` and `pool` must outlive the stack.
  StagedVersions(Target& target, ThreadPool& pool) : target_(target), pool_(pool) {}

  [[nodiscard]] bool empty() const { return load_ == nullptr && entries_.empty(); }
  // The number of changes, without the load.
  [[nodiscard]] std::uint64_t count() const;
  // The record of the last version. REQUIRES: !empty().
  [[nodiscard]] const KnownRecord& last() const { return entries_.empty() ? load_->record() : entries_.back().record; }
  // The load that everything else is staged over; nullptr if that is what the target holds.
  [[nodiscard]] const AnchorLoad* load() const { return load_.get(); }
  // Folds all changes into one. Call it when there is nothing more to push for now.
  void Combine();
  [[nodiscard]] bool is_combined() const { return entries_.size() <= 1; }
  // All changes as one, which is there already if is_combined(); nullptr if there are none.
  std::shared_ptr<const StagedChange> Combined();

  // The state after everything staged. Valid until the next call that is not const, and until the target is written
  // to. REQUIRES: there is a load, or the target holds a version.
  Result<const StateView*> View();
  // Replaces everything staged by a load. REQUIRES: it is prepared.
  void BeginWith(std::unique_ptr<AnchorLoad> load);
  // REQUIRES: `change` begins at the state that View() shows.
  void Push(KnownRecord record, std::shared_ptr<const StagedChange> change);
  // Drops all versions after `version`, and earlier ones that are folded with them.
  void DropAfter(Version version);
  void Clear();

  // Makes the target hold the last version. After an error everything is still staged; or only the changes, if the
  // target holds the loaded version. The caller clears. REQUIRES: !empty().
  Status WriteToTarget();

 private:
  // One version, or several that are folded into one change.
  struct Entry {
    KnownRecord record;  // of the last of them
    std::shared_ptr<const StagedChange> change;
    std::uint64_t versions = 1;
  };

  // Folds the last `count` entries into one.
  void FoldLast(std::size_t count);

  Target& target_;
  ThreadPool& pool_;
  std::unique_ptr<AnchorLoad> load_;
  std::vector<Entry> entries_;
  std::optional<StateView> view_;  // made when it is needed
};

}  // namespace weightwire
