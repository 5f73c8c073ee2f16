// Moves large objects in parts, several at a time. What is written is sent from where it lies, and what is read comes
// to where it is to be: no other memory is needed.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/sha256.h"
#include "store/policy.h"
#include "store/store.h"

namespace weightwire {

struct TransferOptions {
  // Requests at a time.
  std::size_t threads = kTransferThreads;
  // An object up to this size is written by one Put.
  std::uint64_t single_put_bytes = kSinglePutBytes;
  // What one request reads: a multiple of kHashChunkBytes.
  std::uint64_t read_bytes = kRangedReadBytes;
};

// Writes bytes that are some of an upload's parts, from `first_part` on, `threads` at a time. REQUIRES: they are parts
// as a whole.
Status WritePartsInParallel(Upload& upload, std::uint64_t first_part, std::span<const std::uint8_t> bytes,
                            std::size_t threads);

// Writes an object of any size, replacing one of the same name: by one Put if it is small, otherwise by an upload, of
// which several parts are sent at a time. If the upload fails, aborts it in the store too. For keys that hold a hash.
Status PutObject(Store& store, std::string_view key, std::span<const std::uint8_t> bytes,
                 const TransferOptions& options = {});
// Reads like Store::Read, in parts, several at a time.
Status ReadInParallel(Store& store, std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out,
                      const TransferOptions& options);

// Reads an object of which size and object hash (base/object_hash.h) are known, and hashes it on the way. The hash can
// be compared only at the end: until this returns success, what is in `out` must not be used. Another size or hash is
// kCorrupt. REQUIRES: `out` is as large as the object.
Status DownloadObject(Store& store, std::string_view key, const Sha256Digest& hash, std::span<std::uint8_t> out,
                      const TransferOptions& options);

}  // namespace weightwire
