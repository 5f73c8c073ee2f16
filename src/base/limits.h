// A named limit for every size and count that comes from outside. Each is checked before anything of that size is
// allocated or computed with, and breaking one is ErrorCode::kLimit with the limit's value in the sentence.
#pragma once

#include <cstdint>

namespace weightwire {

// The safetensors format's own limit on its JSON header, in bytes.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

// Tensors in one checkpoint. The largest public models have about a hundred thousand.
inline constexpr std::uint64_t kMaxTensors = std::uint64_t{1} << 20;

// Dimensions of one tensor. The format has no limit; torch stops at 64, models at 6.
inline constexpr std::uint64_t kMaxRank = 32;

// Bytes of one tensor name, and of one key or value that names a tensor.
inline constexpr std::uint64_t kMaxNameBytes = 4096;

// Entries of a safetensors file's __metadata__.
inline constexpr std::uint64_t kMaxMetadataEntries = std::uint64_t{1} << 20;

// Bytes of one tensor's data: keeps sums of sizes and offsets far from 2^64.
inline constexpr std::uint64_t kMaxTensorBytes = std::uint64_t{1} << 56;

// Bytes of model.safetensors.index.json. One entry names a tensor and a shard; a hundred bytes each is usual.
inline constexpr std::uint64_t kMaxIndexBytes = 200'000'000;

// Bytes of a layout's canonical JSON text.
inline constexpr std::uint64_t kMaxLayoutBytes = 200'000'000;

// Extra files of one checkpoint directory that are copied, and how deep its sub-directories go.
inline constexpr std::uint64_t kMaxExtraFiles = 100'000;
inline constexpr int kMaxDirectoryDepth = 16;

// Names in one directory that we list.
inline constexpr std::uint64_t kMaxDirectoryEntries = std::uint64_t{1} << 20;

// Nesting of any JSON text we read; ours and safetensors' need four levels.
inline constexpr int kMaxJsonDepth = 16;

}  // namespace weightwire
