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

// Where the next bytes of a piece belong: `rows` times `row_bytes` bytes, the first at byte `at` of an assembled file,
// each other one `stride` bytes after the one before. A box of a tensor is one of these, or a few.
struct Place {
  std::uint64_t file = 0;  // in AnchorManifest::assembled
  std::uint64_t at = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 0;
  std::uint64_t stride = 0;

  bool operator==(const Place&) const = default;
};

// An object of the anchor.
struct AnchorFile {
  std::string name;  // within the directory; CheckFileName has passed
  std::uint64_t size_bytes = 0;
  Sha256Digest hash{};  // object hash
  // None: a file of the directory. Otherwise a piece, whose bytes go to these places, one after another.
  std::vector<Place> places = {};

  bool operator==(const AnchorFile&) const = default;
};

// A file of the directory that is no object of its own: pieces, which ranks wrote, are put together to it.
struct AssembledFile {
  std::string name;  // CheckFileName has passed
  std::uint64_t size_bytes = 0;

  bool operator==(const AssembledFile&) const = default;
};

struct AnchorManifest {
  Id run;
  AnchorName name;
  Sha256Digest layout{};
  Sha256Digest state{};
  std::uint64_t delta_bytes = 0;  // of all parts up to this version
  std::vector<AnchorFile> files;  // all objects; no name twice, or within another, those of `assembled` included
  std::vector<AssembledFile> assembled = {};

  [[nodiscard]] std::uint64_t TotalBytes() const;
  bool operator==(const AnchorManifest&) const = default;
};

[[nodiscard]] std::string ToJson(const AnchorManifest& manifest);
Result<AnchorManifest> ParseAnchorManifest(std::string_view json);

}  // namespace weightwire
