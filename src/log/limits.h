// The limits of spec/PROTOCOL.md, "Limits".
#pragma once

#include <cstdint>

namespace weightwire {

inline constexpr std::uint64_t kMaxWireBytes = std::uint64_t{64} << 10;
inline constexpr std::uint64_t kMaxLeaseBytes = std::uint64_t{64} << 10;
inline constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kMaxMarkBytes = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kMaxParts = std::uint64_t{1} << 16;
inline constexpr std::uint64_t kMaxPartBytes = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kMaxAnchorFiles = std::uint64_t{1} << 16;
inline constexpr std::uint64_t kMaxMarkKeys = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kMaxLeases = std::uint64_t{1} << 12;
inline constexpr std::uint64_t kMaxFeatures = 64;
inline constexpr std::uint64_t kMaxFollowerNameBytes = 128;
// The last version there can be: probing adds to versions without fear of overflow.
inline constexpr std::uint64_t kMaxVersion = (std::uint64_t{1} << 63) - 1;

}  // namespace weightwire
