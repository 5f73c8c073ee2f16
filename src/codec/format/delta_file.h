// A delta file: index, tables and payload in a safetensors file, under one hash (spec/FORMAT.md, "File").
//
// DeltaFile exists only for bytes whose hash, structure and tables have been checked. What needs the base (digests, the
// contents of tiles) is checked when a change is staged (decoder.h).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "codec/format/delta_index.h"
#include "codec/format/tables.h"

namespace weightwire {

// What a file is put together from. The payload's bytes belong to the caller.
struct DeltaFileContents {
  DeltaIndex index;
  std::vector<TableSet> sets;
  std::vector<std::span<const std::uint8_t>> payload;
};

// A file that is complete but for its hash, which of a large one takes a while. Nobody can read it until it is sealed.
class UnsealedDelta {
 public:
  UnsealedDelta() = default;
  // REQUIRES: `file` has room for the hash at hash_offset.
  UnsealedDelta(std::vector<std::uint8_t> file, std::size_t hash_offset)
      : file_(std::move(file)), hash_offset_(hash_offset) {}

  [[nodiscard]] std::uint64_t size_bytes() const { return file_.size(); }
  // The file.
  [[nodiscard]] std::vector<std::uint8_t> Seal() &&;

 private:
  std::vector<std::uint8_t> file_;
  std::size_t hash_offset_ = 0;
};

// kLimit: more sets, entries, or boxes of one tensor than readers take.
Result<UnsealedDelta> AssembleDeltaFile(const DeltaFileContents& contents);

// Immutable; safe to share between threads. The bytes belong to the caller and must outlive it.
class DeltaFile {
 public:
  // kCorrupt: damaged; kLimit: above a limit (format.h); kUnsupported: from a newer weightwire, or no delta at all.
  static Result<DeltaFile> Parse(std::span<const std::uint8_t> bytes);

  [[nodiscard]] const DeltaIndex& index() const { return index_; }
  [[nodiscard]] const std::vector<TableSet>& sets() const { return sets_; }
  // The bytes of an entry's payload.
  [[nodiscard]] std::span<const std::uint8_t> payload(std::size_t entry) const { return payloads_[entry]; }
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] std::uint64_t index_bytes() const { return index_bytes_; }
  [[nodiscard]] std::uint64_t tables_bytes() const { return tables_bytes_; }

 private:
  DeltaFile() = default;

  DeltaIndex index_;
  std::vector<TableSet> sets_;
  std::vector<std::span<const std::uint8_t>> payloads_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t index_bytes_ = 0;
  std::uint64_t tables_bytes_ = 0;
};

}  // namespace weightwire
