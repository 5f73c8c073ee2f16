// anchor.json: what an anchor consists of. The anchor exists when this object does (spec/PROTOCOL.md, "Anchors").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/sha256.h"
#include "log/id.h"
#include "log/keys.h"

namespace weightwire {

struct AnchorFile {
  std::string name;  // within the directory; CheckFileName has passed
  std::uint64_t size_bytes = 0;
  Sha256Digest hash{};  // object hash

  bool operator==(const AnchorFile&) const = default;
};

struct AnchorManifest {
  Id run;
  AnchorName name;
  Sha256Digest layout{};
  Sha256Digest state{};
  std::uint64_t delta_bytes = 0;  // of all parts up to this version
  std::vector<AnchorFile> files;  // no name twice, or within another

  [[nodiscard]] std::uint64_t TotalBytes() const;
  bool operator==(const AnchorManifest&) const = default;
};

[[nodiscard]] std::string ToJson(const AnchorManifest& manifest);
Result<AnchorManifest> ParseAnchorManifest(std::string_view json);

}  // namespace weightwire
