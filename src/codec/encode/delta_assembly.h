// Assembles encoded entries to a delta file: its index, its tables, its payload and the states that it names.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "codec/encode/encoder.h"
#include "codec/encode/entry_work.h"
#include "codec/format/tables.h"

namespace weightwire {

// The request's entries after all tiles are encoded. `streams` has the bytes of each worker's streams.
struct EncodedEntries {
  std::span<const EntryWork> works;
  std::span<const std::vector<std::uint8_t>* const> streams;
  std::span<const TableSet> sets;
};

// Fills EncodedDelta except `replaced`, `kept` and `file`. Reads whole entries from their readers again; the only
// errors are theirs, and kLimit of AssembleDeltaFile.
Result<EncodedDelta> AssembleDelta(const EncodeRequest& request, const EncodedEntries& entries);

}  // namespace weightwire
