// run.json: what a run is, and what one must understand to use it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "log/id.h"

namespace weightwire {

struct RunManifest {
  Id run;
  // The store does not honour put-if-absent, and whoever made the run vouches for a single writer.
  bool single_writer = false;
  // Features that one must know to read, and to write.
  std::vector<std::string> read;
  std::vector<std::string> write;

  bool operator==(const RunManifest&) const = default;
};

[[nodiscard]] std::string ToJson(const RunManifest& manifest);
// kUnsupported for another format version, or if reading needs a feature that is not known here.
Result<RunManifest> ParseRunManifest(std::string_view json);

// A version that may take an anchor in pieces to get to (spec/PROTOCOL.md, "Anchors").
inline constexpr std::string_view kPiecesFeature = "pieces";

// kUnsupported, naming it, if one of the features is not known here.
Status CheckFeatures(const std::vector<std::string>& features, std::string_view to_do_what);

}  // namespace weightwire
