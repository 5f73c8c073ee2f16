// The bits of an anchor, put together from its objects by nothing but the specification (spec/PROTOCOL.md, "Anchors"):
// followers pass over an anchor that is wrong, so none of them would tell.
#pragma once

#include <optional>
#include <string>

#include "log/anchor.h"
#include "sim/oracle.h"
#include "sim/sim_bucket.h"

namespace weightwire::sim {

// What is wrong with it; nothing if it is exactly these weights. REQUIRES: all its objects are there.
[[nodiscard]] std::optional<std::string> WrongInAnchor(const Bucket& bucket, const AnchorManifest& manifest,
                                                       const Weights& weights);

}  // namespace weightwire::sim
