// A record: the small object whose existence is the existence of a version (spec/PROTOCOL.md, "Records").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/sha256.h"
#include "log/id.h"
#include "log/keys.h"

namespace weightwire {

struct PartRef {
  std::string key;
  std::uint64_t size_bytes = 0;
  Sha256Digest hash{};  // object hash

  bool operator==(const PartRef&) const = default;
};

struct AnchorRef {
  AnchorName name;
  std::uint64_t bytes = 0;       // of all its files
  Sha256Digest manifest_hash{};  // SHA-256 of its anchor.json

  bool operator==(const AnchorRef&) const = default;
};

struct Record {
  Id run;
  Version version = 0;
  std::optional<Sha256Digest> parent;  // SHA-256 of the bytes of the record before
  std::uint64_t step = 0;
  std::string time;  // by the writer's clock; for people
  Id writer;
  Sha256Digest layout{};
  Sha256Digest state{};
  std::optional<std::vector<PartRef>> delta;  // none: version 0 or a rebase
  std::uint64_t changed = 0;
  std::uint64_t delta_bytes = 0;  // of all parts up to this version
  Version chain = 0;              // the last version up to this one without a delta
  std::optional<AnchorRef> anchor;
  std::vector<std::string> read;

  // Bytes of this version's own parts.
  [[nodiscard]] std::uint64_t OwnDeltaBytes() const;
  bool operator==(const Record&) const = default;
};

[[nodiscard]] std::string ToJson(const Record& record);

// Checks everything that can be checked of a record alone; the run, the parent and what it names are the caller's to
// compare. kUnsupported if the version needs a feature that is not known here.
Result<Record> ParseRecord(std::string_view json);

// A record with its bytes, which the next one's `parent` is a hash of.
struct KnownRecord {
  Record record;
  Sha256Digest hash{};
};

}  // namespace weightwire
