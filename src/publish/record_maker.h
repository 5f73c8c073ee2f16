// Makes records: checks that what all ranks contribute to a call fits together, and makes the version's record of it.
//
// Checked before there is a record: that all ranks mean the same step and layout, that their shards cover the state
// exactly once, that the digests of their bases add up to the state of the previous version, and that a reader can
// parse the record. So a rank that is behind, or whose base has wrong bits, cannot get into a version. The new state's
// digest is the sum over all ranks. A single process is a group of one, which covers the state by itself.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "codec/digest/digest.h"
#include "codec/format/delta_bytes.h"
#include "log/record.h"
#include "log/run.h"
#include "publish/contribution.h"
#include "publish/shards.h"
#include "tensor/layout.h"

namespace weightwire {

// The shards of all ranks, once they have been checked. Equal texts need no second check.
struct Cover {
  std::shared_ptr<const Layout> layout;
  std::vector<std::string> texts;
  std::vector<std::shared_ptr<const Shards>> shards;  // empty if a group of one has the whole state
};

// What the committer's own process knows of a call, besides what all ranks contribute.
struct CallContext {
  std::string time;
  std::shared_ptr<const Layout> layout;         // of the state
  std::shared_ptr<const Layout> layout_before;  // of its base
  // Of a group of one: what is sent by the committer, or has been sent already.
  std::shared_ptr<const DeltaBytes> part;
  std::optional<KnownAnchor> anchor;  // the version's own, if it has no delta
};

// What a record is made from.
struct RecordRequest {
  Id run;
  Id writer;
  std::optional<KnownRecord> parent;       // none for version 0
  std::optional<AnchorRef> newest_anchor;  // that a version with a delta names
  bool in_shards = false;                  // ranks hold the state in shards, and write anchors in pieces
  CallContext context;
  std::vector<Contribution> contributions;

  [[nodiscard]] Version version() const { return parent.has_value() ? parent->record.version + 1 : 0; }
  [[nodiscard]] bool whole() const { return contributions.front().whole; }
};

// A call whose contributions fit together.
struct CheckedCall {
  std::shared_ptr<const Cover> cover;
  Sha256Digest state{};
  bool same = false;  // it would be the newest version again
};

// `known` is the cover of an earlier call, if there was one. kMismatch, naming a rank, if ranks disagree.
Result<CheckedCall> CheckContributions(const RecordRequest& request, const std::shared_ptr<const Cover>& known);

// The digests of whole tensors, from those of all ranks' shards.
[[nodiscard]] std::vector<Digest> AddUp(const Layout& layout, const std::vector<std::shared_ptr<const Shards>>& shards,
                                        const std::vector<const std::vector<Digest>*>& digests);

struct MadeRecord {
  KnownRecord known;
  std::string json;
};
// `own_anchor` is the anchor of a version without a delta.
Result<MadeRecord> MakeRecord(const RecordRequest& request, const CheckedCall& checked,
                              const std::optional<AnchorRef>& own_anchor);

}  // namespace weightwire
