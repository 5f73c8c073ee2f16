// The limits of spec/PROTOCOL.md, "Limits".
#pragma once

#include <cstddef>
#include <cstdint>

namespace weightwire {

inline constexpr std::uint64_t kMaxRunManifestBytes = std::uint64_t{64} << 10;
inline constexpr std::uint64_t kMaxLeaseBytes = std::uint64_t{64} << 10;
inline constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kMaxAnchorManifestBytes = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kMaxMarkBytes = std::uint64_t{64} << 20;
// As many as fit into a record.
inline constexpr std::uint64_t kMaxParts = std::uint64_t{1} << 14;
inline constexpr std::uint64_t kMaxPartBytes = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kMaxAnchorFiles = std::uint64_t{1} << 16;
inline constexpr std::uint64_t kMaxMarkKeys = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kMaxLeases = std::uint64_t{1} << 12;        // active ones
inline constexpr std::uint64_t kMaxLeaseObjects = std::uint64_t{1} << 20;  // and those of followers long gone
// Values of one JSON object, all levels together: a value takes more memory than its text.
inline constexpr std::uint64_t kMaxJsonValues = std::uint64_t{1} << 22;
inline constexpr std::uint64_t kMaxFeatures = 64;
inline constexpr std::uint64_t kMaxFollowerNameBytes = 128;
// The last version there can be: probing adds to versions without fear of overflow.
inline constexpr std::uint64_t kMaxVersion = (std::uint64_t{1} << 63) - 1;

// Objects that one request lists: as many as every back end gives at once.
inline constexpr std::size_t kPageEntries = 1000;

}  // namespace weightwire
