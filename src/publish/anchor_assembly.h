// Makes an anchor of the pieces that ranks have written: checks that they are all of it, then puts the small files and
// anchor.json (spec/PROTOCOL.md, "Anchors").
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "log/run.h"
#include "publish/anchor_writer.h"
#include "publish/contribution.h"
#include "publish/record_maker.h"

namespace weightwire {

// An anchor whose pieces are all in the store.
struct AssembledAnchor {
  AnchorManifest manifest;  // without the files that have not been put yet
  std::string index;        // the text of the index of shards; empty if there is one file
};

// `pieces` by rank; none where a rank has no shard. kLimit or another error of the parser if the manifest would be more
// than readers take.
Result<AssembledAnchor> AssembleAnchor(const Run& run, const AnchorSubject& subject, const Cover& cover,
                                       const std::vector<std::optional<SentPiece>>& pieces,
                                       const CheckpointOptions& files);

Result<KnownAnchor> PutAssembled(const Run& run, const AssembledAnchor& assembled, const AnchorOptions& options);

}  // namespace weightwire
