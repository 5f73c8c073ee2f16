// Where everything in a run lies (spec/PROTOCOL.md, "Keys"): the one place that spells keys, and reads them back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/sha256.h"
#include "log/id.h"

namespace weightwire {

using Version = std::uint64_t;

inline constexpr std::string_view kRunManifestKey = "run.json";
inline constexpr std::string_view kDeltasPrefix = "deltas/";
inline constexpr std::string_view kAnchorsPrefix = "anchors/";
inline constexpr std::string_view kLeasesPrefix = "leases/";
inline constexpr std::string_view kMarksPrefix = "gc/";

// The name of an anchor: its version, and which of the version's anchors it is.
struct AnchorName {
  Version version = 0;
  Id id;

  auto operator<=>(const AnchorName&) const = default;  // NOLINT(modernize-use-nullptr): as in id.h
};

[[nodiscard]] std::string RecordKey(Version version);
// The folder of the parts that lead from one version to another; ends with "/".
[[nodiscard]] std::string DeltaFolder(Version from, Version to);
[[nodiscard]] std::string PartKey(Version from, Version to, const Sha256Digest& object_hash);
[[nodiscard]] std::string LayoutKey(const Sha256Digest& layout_hash);
[[nodiscard]] std::string AnchorFolder(const AnchorName& anchor);  // ends with "/"
[[nodiscard]] std::string AnchorManifestKey(const AnchorName& anchor);
[[nodiscard]] std::string LeaseKey(const Id& follower);
[[nodiscard]] std::string MarkKey(const Id& mark);
// Whether it is a mark's. Whatever else lies there names nothing.
[[nodiscard]] bool IsMarkKey(std::string_view key);

// The name of a delta: the versions that it leads from and to.
struct DeltaName {
  Version from = 0;
  Version to = 0;
};
// The delta or anchor that a key belongs to. nullopt for keys of another form.
[[nodiscard]] std::optional<DeltaName> DeltaOfKey(std::string_view key);
[[nodiscard]] std::optional<AnchorName> AnchorOfKey(std::string_view key);
[[nodiscard]] bool IsAnchorManifestKey(std::string_view key);

// The name of a file in an anchor, which will become a path: relative, no "..", no hidden segment, only the characters
// of keys. kCorrupt otherwise.
Status CheckFileName(std::string_view name);
// Whether a file could run as code when loaded (.py, pickles, shared objects; also packed, as a.pkl.gz): such are
// carried only when asked for.
[[nodiscard]] bool MayBeCode(std::string_view name);

}  // namespace weightwire
