// Tells which versions of a run can still be fetched, and what their anchors take, from a listing of the store.
//
// A record stays after gc has deleted the deltas and anchors that led to its version. A listing shows what is left
// without reading it, so a damaged object counts as present; `weightwire verify` finds those.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>

#include "base/result.h"
#include "log/record.h"
#include "log/run.h"

namespace weightwire {

class AvailableVersions {
 public:
  // Lists what leads to the versions from `first` up to `last`. Costs requests in proportion to the objects between
  // the newest anchor up to `first` and `last`, and reads records only of versions between that anchor and `first`
  // that have no parts.
  static Result<AvailableVersions> List(const Run& run, const Record& first, Version last);

  // The bytes of the version's anchor, of the smallest if it has several. nullopt if it has none.
  [[nodiscard]] std::optional<std::uint64_t> AnchorBytes(Version version) const;
  // The first version after this one that has an anchor.
  [[nodiscard]] std::optional<Version> NextAnchor(Version version) const;

  // Returns true if the version can be fetched. REQUIRES: called for every version, in order, from `first` on.
  [[nodiscard]] bool Next(const Record& record);

 private:
  AvailableVersions() = default;

  Status ListAnchors(const Run& run, Version from);
  Status ListDeltas(const Run& run, Version from, Version last);
  [[nodiscard]] bool HasParts(const Record& record) const;

  std::map<Version, std::uint64_t> anchors_;  // the bytes of each complete one
  std::unordered_set<std::string> parts_;     // keys
  std::set<Version> with_parts_;              // versions that any of these lead to
  bool before_ = false;                       // the version before the next one can be fetched
};

}  // namespace weightwire
