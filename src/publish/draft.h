// One call of publish on the caller's thread: what admits it, and what it makes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "codec/format/delta_bytes.h"
#include "log/record.h"
#include "publish/base_copy.h"
#include "publish/contribution.h"
#include "publish/shards.h"
#include "tensor/layout.h"

namespace weightwire {

// Whether a call may go on, and what its version is made from. Serials are the base copy's numbers of versions: with
// one process they are the versions' own numbers.
struct Admission {
  std::optional<Error> stopped;       // the publisher publishes nothing any more
  std::optional<Error> disconnected;  // rank 0 cannot be reached: the call counts, and fails
  bool full = false;                  // wait, or skip
  bool empty = false;                 // no version of this process is in flight
  // The last version that exists or is in flight. A base that is ahead must be rolled back to it, because what came
  // after it has failed.
  std::optional<Version> newest_serial;
  std::optional<std::uint64_t> newest_step;   // its step, with one process
  std::optional<Sha256Digest> newest_layout;  // its layout
  Version safe = 0;                           // serials up to this one will not be rolled back
  std::optional<KnownRecord> newest;          // its record, if nothing is in flight
  bool whole = false;                         // the ranks have agreed to make a version without a delta
  std::uint64_t epoch = 0;                    // how many failures have rolled something back
};

// What a call has made: digests are by shard, or by tensor (before: of layout_before). The base copy is at this version
// already.
struct Draft : RankChange {
  bool nothing_new = false;  // the state and the step are those of the newest version
  std::string time;
  std::uint64_t epoch = 0;  // of its admission
  Version serial = 0;
  std::shared_ptr<const Layout> layout;         // of the whole state
  std::shared_ptr<const Layout> layout_before;  // of the base
  std::shared_ptr<const Shards> shards;         // what this rank holds; none if it is the whole state
  std::shared_ptr<const DeltaBytes> part;       // none if nothing changed
  std::shared_ptr<const BasePin> pin;           // of this version
  std::string note;                             // a warning for the user, if not empty

  [[nodiscard]] std::uint64_t part_bytes() const { return part != nullptr ? part->size_bytes() : 0; }
};

}  // namespace weightwire
