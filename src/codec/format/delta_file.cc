#include "codec/format/delta_file.h"

#include <algorithm>

#include "base/sha256.h"
#include "codec/format/format.h"
#include "tensor/safetensors.h"

namespace weightwire {

namespace {

constexpr std::size_t kHashBytes = sizeof(Sha256Digest);

Error DamagedFile(const std::string& what) { return {ErrorCode::kCorrupt, "the delta file is damaged: " + what}; }

// The hash of everything but itself: it is the first thing in the index.
Sha256Digest HashAround(std::span<const std::uint8_t> file, std::size_t hash_offset) {
  Sha256 hash;
  hash.Update(file.first(hash_offset));
  hash.Update(file.subspan(hash_offset + kHashBytes));
  return hash.Finish();
}

// What readers would refuse is not written.
Status CheckLimits(const DeltaFileContents& contents) {
  const auto beyond = [](const char* what, std::uint64_t limit) {
    return Error(ErrorCode::kLimit,
                 "cannot put the delta file together: it has more than " + std::to_string(limit) + " " + what);
  };
  if (contents.sets.size() > kMaxTableSets) return beyond("table sets", kMaxTableSets);
  const std::vector<IndexEntry>& entries = contents.index.entries;
  if (entries.size() > kMaxEntries) return beyond("entries", kMaxEntries);
  for (std::size_t begin = 0; begin + kMaxBoxesPerTensor < entries.size(); ++begin) {
    // They are in the order of their tensors.
    if (entries[begin].tensor == entries[begin + kMaxBoxesPerTensor].tensor) {
      return beyond("boxes of one tensor", kMaxBoxesPerTensor);
    }
  }
  return Ok();
}

TensorSpec BytesEntry(const char* name, std::uint64_t size) { return {name, DType::kU8, {size}}; }

}  // namespace

Result<UnsealedDelta> AssembleDeltaFile(const DeltaFileContents& contents) {
  WW_RETURN_IF_ERROR(CheckLimits(contents));
  std::vector<std::uint8_t> index(kHashBytes);
  ByteWriter index_writer(index);
  contents.index.Write(index_writer);
  std::vector<std::uint8_t> tables;
  ByteWriter tables_writer(tables);
  tables_writer.Varint(contents.sets.size());
  for (const TableSet& set : contents.sets) set.Write(tables_writer);
  std::uint64_t payload_bytes = 0;
  for (const auto& stream : contents.payload) payload_bytes += stream.size();

  const std::vector<TensorSpec> specs = {BytesEntry(kIndexEntry, index.size()), BytesEntry(kTablesEntry, tables.size()),
                                         BytesEntry(kPayloadEntry, payload_bytes)};
  const Metadata metadata = {{"format", kDeltaFormatName}, {"version", kDeltaFormatVersion}};
  WW_TRY(std::vector<std::uint8_t> file, SafetensorsHeader(specs, metadata));
  const std::size_t hash_offset = file.size();
  file.reserve(file.size() + index.size() + tables.size() + payload_bytes);
  ByteWriter writer(file);
  writer.Bytes(index);
  writer.Bytes(tables);
  for (const auto& stream : contents.payload) writer.Bytes(stream);
  return UnsealedDelta(std::move(file), hash_offset);
}

std::vector<std::uint8_t> UnsealedDelta::Seal() && {
  const Sha256Digest hash = HashAround(file_, hash_offset_);
  std::copy(hash.begin(), hash.end(), file_.begin() + static_cast<std::ptrdiff_t>(hash_offset_));
  return std::move(file_);
}

Result<DeltaFile> DeltaFile::Parse(std::span<const std::uint8_t> bytes) {
  const Result<SafetensorsView> view = SafetensorsView::Parse(bytes);
  if (!view.ok()) return DamagedFile(view.error().message());
  const Metadata& metadata = view.value().metadata();
  const auto format = metadata.find("format");
  const auto version = metadata.find("version");
  if (format == metadata.end() || format->second != kDeltaFormatName || version == metadata.end()) {
    return Error(ErrorCode::kUnsupported, "this is a safetensors file, but not a weightwire delta");
  }
  if (version->second != kDeltaFormatVersion) {
    return Error(ErrorCode::kUnsupported, "this delta has format version " + version->second +
                                              ", and this weightwire knows version " + kDeltaFormatVersion +
                                              " only; use a newer one");
  }
  const std::vector<TensorView>& entries = view.value().tensors();
  const auto is = [&](std::size_t i, const char* name) {
    return entries[i].spec == BytesEntry(name, entries[i].bytes.size());
  };
  if (metadata.size() != 2 || entries.size() != 3 || !is(0, kIndexEntry) || !is(1, kTablesEntry) ||
      !is(2, kPayloadEntry)) {
    return DamagedFile("it must hold index, tables and payload, and nothing else");
  }
  const std::span<const std::uint8_t> index = entries[0].bytes;
  const std::span<const std::uint8_t> tables = entries[1].bytes;
  const std::span<const std::uint8_t> payload = entries[2].bytes;
  if (index.size() < kHashBytes) return DamagedFile("the index is too short");
  const Sha256Digest hash = HashAround(bytes, static_cast<std::size_t>(index.data() - bytes.data()));
  if (!std::equal(hash.begin(), hash.end(), index.begin())) {
    return DamagedFile("its bytes are not those its hash was made of; fetch it again");
  }

  DeltaFile file;
  file.size_bytes_ = bytes.size();
  file.index_bytes_ = index.size();
  file.tables_bytes_ = tables.size();
  ByteReader index_reader(index.subspan(kHashBytes));
  WW_TRY(file.index_, DeltaIndex::Read(index_reader, payload.size()));
  if (!index_reader.ExpectEnd().ok()) return DamagedFile("there are stray bytes after the index");

  ByteReader tables_reader(tables);
  WW_TRY(const std::uint64_t set_count, tables_reader.Varint());
  if (set_count > kMaxTableSets) {
    return Error(ErrorCode::kLimit, "the delta has " + std::to_string(set_count) + " table sets, above the limit of " +
                                        std::to_string(kMaxTableSets));
  }
  for (std::uint64_t i = 0; i < set_count; ++i) {
    WW_TRY(TableSet set, TableSet::Read(tables_reader));
    file.sets_.push_back(std::move(set));
  }
  if (!tables_reader.ExpectEnd().ok()) return DamagedFile("there are stray bytes after the tables");

  std::size_t offset = 0;
  for (const IndexEntry& entry : file.index_.entries) {
    const std::uint64_t size = entry.PayloadBytes();
    file.payloads_.push_back(payload.subspan(offset, size));
    offset += size;
    if (!HasTables(entry.mode)) continue;
    if (entry.table_set >= file.sets_.size()) return DamagedFile("an entry names a table set that is not there");
    if (file.sets_[entry.table_set].dense != (entry.mode == EntryMode::kDense)) {
      return DamagedFile("an entry names a table set of the other mode");
    }
  }
  return file;
}

}  // namespace weightwire
