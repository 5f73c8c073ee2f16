// The versions that are decoded and verified, but not yet in the target: a stack of changes over what the target holds.
//
// There may be thousands of them. Every tile that is decoded next is looked up in each change, so the stack folds its
// last changes into one whenever there are kFoldAt of about the same number of versions. Each version is folded a few
// times at most.
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
  static constexpr std::size_t kFoldAt = 16;

  // `target` must outlive the stack.
  explicit StagedVersions(Target& target) : target_(target) {}

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  // The number of versions.
  [[nodiscard]] std::uint64_t count() const;
  // The record of the last version. REQUIRES: !empty().
  [[nodiscard]] const KnownRecord& last() const { return entries_.back().record; }
  // Everything as one change. REQUIRES: !empty().
  [[nodiscard]] std::shared_ptr<const StagedChange> Combined() const;

  // The target's state with everything staged applied. Valid until the next call that is not const, and until the
  // target is written to. REQUIRES: the target holds a version.
  Result<const StateView*> View();
  // REQUIRES: `change` begins at the state that View() shows.
  void Push(KnownRecord record, std::shared_ptr<const StagedChange> change);
  // Drops all versions after `version`, and earlier ones that are folded with them.
  void DropAfter(Version version);
  void Clear();

 private:
  // One version, or several that are folded into one change.
  struct Entry {
    KnownRecord record;  // of the last of them
    std::shared_ptr<const StagedChange> change;
    std::uint64_t versions = 1;
  };

  void Fold();

  Target& target_;
  std::vector<Entry> entries_;
  std::optional<StateView> view_;  // made when it is needed
};

}  // namespace weightwire
