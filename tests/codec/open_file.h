// Delta files taken apart, changed, and sealed again under a hash that fits: how a test makes a file with one defect.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "codec/format/delta_file.h"
#include "codec/format/format.h"
#include "support/safetensors_file.h"
#include "tensor/safetensors.h"

namespace weightwire::testing {

// The three byte strings of a file, the index without its hash.
struct OpenFile {
  std::vector<std::uint8_t> index;
  std::vector<std::uint8_t> tables;
  std::vector<std::uint8_t> payload;
  Metadata metadata = {{"format", kDeltaFormatName}, {"version", kDeltaFormatVersion}};
};

// A file that is a safetensors file with an index. REQUIRES: it is one.
inline OpenFile Open(std::span<const std::uint8_t> file) {
  const auto view = SafetensorsView::Parse(file);
  WW_CHECK(view.ok());
  OpenFile open;
  const auto copy = [&](const char* name, std::size_t from, std::vector<std::uint8_t>& to) {
    const auto bytes = view.value().Find(name)->bytes.subspan(from);
    to.assign(bytes.begin(), bytes.end());
  };
  copy(kIndexEntry, sizeof(Sha256Digest), open.index);
  copy(kTablesEntry, 0, open.tables);
  copy(kPayloadEntry, 0, open.payload);
  open.metadata = view.value().metadata();
  return open;
}

// The hash of a file in place, over whatever its bytes are now. REQUIRES: the hash's offset is within the file.
inline void SealAt(std::vector<std::uint8_t>& file, std::size_t hash_offset) {
  Sha256 hash;
  hash.Update(std::span(file).first(hash_offset));
  hash.Update(std::span(file).subspan(hash_offset + sizeof(Sha256Digest)));
  const Sha256Digest digest = hash.Finish();
  std::copy(digest.begin(), digest.end(), file.begin() + static_cast<std::ptrdiff_t>(hash_offset));
}

// Where the hash of a file lies: at the beginning of the data, if the header is long as it says.
inline std::size_t HashOffset(std::span<const std::uint8_t> file) {
  if (file.size() < 8) return 0;
  const std::uint64_t header = LoadU64(file.data());
  return header > file.size() ? 0 : static_cast<std::size_t>(8 + header);
}

// Seals a file again if it has a place for a hash at all.
inline void Reseal(std::vector<std::uint8_t>& file) {
  const std::size_t offset = HashOffset(file);
  if (offset + sizeof(Sha256Digest) <= file.size()) SealAt(file, offset);
}

inline std::vector<std::uint8_t> Seal(const OpenFile& open) {
  std::vector<std::uint8_t> index(sizeof(Sha256Digest));
  index.insert(index.end(), open.index.begin(), open.index.end());
  const auto vector_of = [](const char* name, const std::vector<std::uint8_t>& bytes) {
    return TensorView{{name, DType::kU8, {bytes.size()}}, bytes};
  };
  auto file = testing::WriteSafetensors(
      std::vector<TensorView>{vector_of(kIndexEntry, index), vector_of(kTablesEntry, open.tables),
                              vector_of(kPayloadEntry, open.payload)},
      open.metadata);
  WW_CHECK(file.ok());
  Reseal(file.value());
  return std::move(file).value();
}

// The index and the tables of a good file, as what they mean; the payload as bytes.
struct FileContents {
  DeltaIndex index;
  std::vector<TableSet> sets;
  std::vector<std::uint8_t> payload;
};

inline FileContents ContentsOf(std::span<const std::uint8_t> file) {
  const auto delta = DeltaFile::Parse(file);
  WW_CHECK(delta.ok());
  return {delta.value().index(), delta.value().sets(), Open(file).payload};
}

inline std::vector<std::uint8_t> FileOf(const FileContents& contents) {
  auto file = AssembleDeltaFile({contents.index, contents.sets, {contents.payload}});
  WW_CHECK(file.ok());
  return std::move(file).value().Seal();
}

}  // namespace weightwire::testing
