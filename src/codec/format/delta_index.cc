#include "codec/format/delta_index.h"

#include <algorithm>
#include <bit>
#include <set>

#include "base/bytes.h"
#include "base/limits.h"

namespace weightwire {

namespace {

constexpr std::uint64_t kFlagState = 1;
constexpr std::uint64_t kFlagLayoutChange = 2;
constexpr std::uint64_t kFlagAliases = 4;
constexpr std::uint8_t kModeMask = 3;
constexpr std::uint8_t kModeHasBox = 4;

Error DamagedIndex(const std::string& what) { return {ErrorCode::kCorrupt, "the delta's index is damaged: " + what}; }

Error AboveLimit(std::uint64_t value, std::uint64_t limit, const char* what) {
  return {ErrorCode::kLimit, "the delta's index has " + std::to_string(value) + " " + what + ", above the limit of " +
                                 std::to_string(limit)};
}

Result<std::uint64_t> LimitedVarint(ByteReader& in, std::uint64_t limit, const char* what) {
  WW_TRY(const std::uint64_t value, in.Varint());
  if (value > limit) return AboveLimit(value, limit, what);
  return value;
}

void WriteString(const std::string& text, ByteWriter& out) {
  out.Varint(text.size());
  out.Bytes(BytesOf(text));
}

Result<std::string> ReadName(ByteReader& in) {
  WW_TRY(const std::uint64_t size, LimitedVarint(in, kMaxNameBytes, "bytes in a name"));
  WW_TRY(const auto bytes, in.Bytes(size));
  std::string name(bytes.begin(), bytes.end());
  if (const Status named = CheckName(name); !named.ok()) return DamagedIndex(named.error().message());
  return name;
}

Result<Sha256Digest> ReadHash(ByteReader& in) {
  WW_TRY(const auto bytes, in.Bytes(sizeof(Sha256Digest)));
  Sha256Digest hash;
  std::copy(bytes.begin(), bytes.end(), hash.begin());
  return hash;
}

Result<Digest> ReadDigest(ByteReader& in) {
  WW_TRY(const auto bytes, in.Bytes(kDigestBytes));
  const Digest digest = Digest::FromBytes(bytes.first<kDigestBytes>());
  for (const std::uint64_t sum : digest.sums) {
    if (sum >= kDigestPrime) return DamagedIndex("a digest is out of range");
  }
  return digest;
}

void WriteAliases(const Aliases& aliases, ByteWriter& out) {
  out.Varint(aliases.size());
  for (const auto& [alias, kept] : aliases) {
    WriteString(alias, out);
    WriteString(kept, out);
  }
}

Result<Aliases> ReadAliases(ByteReader& in) {
  Aliases aliases;
  WW_TRY(const std::uint64_t count, LimitedVarint(in, kMaxTensors, "aliases"));
  for (std::uint64_t i = 0; i < count; ++i) {
    WW_TRY(std::string alias, ReadName(in));
    WW_TRY(std::string kept, ReadName(in));
    if (!aliases.empty() && aliases.rbegin()->first >= alias) return DamagedIndex("aliases are not in order");
    aliases.emplace_hint(aliases.end(), std::move(alias), std::move(kept));
  }
  return aliases;
}

void WriteLayoutChange(const LayoutChange& change, ByteWriter& out) {
  out.Bytes(change.after_hash);
  out.Varint(change.removed.size());
  std::size_t previous = 0;
  for (const std::size_t index : change.removed) {
    out.Varint(index - previous);
    previous = index;
  }
  out.Varint(change.added.size());
  for (const TensorSpec& spec : change.added) {
    WriteString(spec.name, out);
    out.U8(static_cast<std::uint8_t>(spec.dtype));
    out.Varint(spec.shape.size());
    for (const std::uint64_t extent : spec.shape) out.Varint(extent);
  }
  WriteAliases(change.aliases, out);
}

Result<LayoutChange> ReadLayoutChange(ByteReader& in) {
  LayoutChange change;
  WW_TRY(change.after_hash, ReadHash(in));
  WW_TRY(const std::uint64_t removed, LimitedVarint(in, kMaxTensors, "removed tensors"));
  std::uint64_t previous = 0;
  for (std::uint64_t i = 0; i < removed; ++i) {
    WW_TRY(const std::uint64_t gap, LimitedVarint(in, kMaxTensors, "tensors"));
    if (i > 0 && gap == 0) return DamagedIndex("a tensor is removed twice");
    previous += gap;
    change.removed.push_back(previous);
  }
  WW_TRY(const std::uint64_t added, LimitedVarint(in, kMaxTensors, "added tensors"));
  for (std::uint64_t i = 0; i < added; ++i) {
    TensorSpec spec;
    WW_TRY(spec.name, ReadName(in));
    WW_TRY(const std::uint8_t number, in.U8());
    const std::optional<DType> dtype = DTypeNumbered(number);
    if (!dtype.has_value()) return Error(ErrorCode::kUnsupported, "the delta adds a tensor of an unknown type");
    spec.dtype = *dtype;
    WW_TRY(const std::uint64_t rank, LimitedVarint(in, kMaxRank, "dimensions"));
    for (std::uint64_t d = 0; d < rank; ++d) {
      WW_TRY(const std::uint64_t extent, in.Varint());
      spec.shape.push_back(extent);
    }
    WW_RETURN_IF_ERROR(CheckedByteSize(spec));
    change.added.push_back(std::move(spec));
  }
  WW_TRY(change.aliases, ReadAliases(in));
  return change;
}

// Lengths are written as the smallest and, in as few bits as the largest needs, what each has more than that.
void WriteTileBytes(const std::vector<std::uint32_t>& lengths, ByteWriter& out) {
  out.Varint(lengths.size());
  if (lengths.empty()) return;
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  const auto width = static_cast<int>(std::bit_width(*most - *least));
  out.Varint(*least);
  out.U8(static_cast<std::uint8_t>(width));
  std::uint64_t bits = 0;
  int count = 0;
  for (const std::uint32_t length : lengths) {
    bits |= std::uint64_t{length - *least} << count;
    for (count += width; count >= 8; count -= 8, bits >>= 8) out.U8(static_cast<std::uint8_t>(bits));
  }
  if (count > 0) out.U8(static_cast<std::uint8_t>(bits));
}

// `budget` is what is left of the payload; it is checked before anything is allocated, since with no bits each any
// number of lengths fits into no bytes.
Status ReadTileBytes(ByteReader& in, std::uint64_t& budget, std::vector<std::uint32_t>& lengths) {
  WW_TRY(const std::uint64_t tiles, in.Varint());
  if (tiles == 0) return Ok();
  WW_TRY(const std::uint64_t least, LimitedVarint(in, kMaxTileBytes, "bytes in a tile"));
  WW_TRY(const std::uint8_t width, in.U8());
  if (width > 24) return DamagedIndex("impossible tile lengths");
  if (tiles > kMaxTilesPerEntry) return AboveLimit(tiles, kMaxTilesPerEntry, "tiles in an entry");
  if (least * tiles > budget || (least == 0 && width == 0)) {
    return DamagedIndex("impossible tile lengths");
  }
  WW_TRY(const auto packed, in.Bytes((tiles * width + 7) / 8));
  lengths.reserve(tiles);
  std::uint64_t bits = 0;
  int count = 0;
  std::size_t next = 0;
  for (std::uint64_t i = 0; i < tiles; ++i) {
    for (; count < width; count += 8) bits |= std::uint64_t{packed[next++]} << count;
    const std::uint64_t length = least + (bits & ((std::uint64_t{1} << width) - 1));
    if (length > kMaxTileBytes) return AboveLimit(length, kMaxTileBytes, "bytes in a tile");
    if (length > budget) return DamagedIndex("a tile is longer than the payload");
    budget -= length;
    lengths.push_back(static_cast<std::uint32_t>(length));
    bits >>= width;
    count -= width;
  }
  if (bits != 0) return DamagedIndex("stray bits after the tile lengths");
  return Ok();
}

void WriteEntry(const IndexEntry& entry, ByteWriter& out) {
  out.U8(static_cast<std::uint8_t>(static_cast<std::uint8_t>(entry.mode) | (entry.box.has_value() ? kModeHasBox : 0)));
  if (entry.box.has_value()) {
    out.Varint(entry.box->start.size());
    for (std::size_t d = 0; d < entry.box->start.size(); ++d) {
      out.Varint(entry.box->start[d]);
      out.Varint(entry.box->extent[d]);
    }
  }
  if (entry.mode == EntryMode::kWhole) {
    out.Varint(entry.whole_bytes);
  } else {
    if (HasTables(entry.mode)) out.Varint(entry.table_set);
    if (entry.mode == EntryMode::kSparse) out.U8(static_cast<std::uint8_t>(entry.scale + kScaleBias));
    out.U8(static_cast<std::uint8_t>(entry.tile_log2));
    out.Varint(entry.changed);
    WriteTileBytes(entry.tile_bytes, out);
  }
  out.Bytes(entry.before.ToBytes());
  out.Bytes(entry.after.ToBytes());
}

Result<IndexEntry> ReadEntry(ByteReader& in, std::uint64_t& budget) {
  IndexEntry entry;
  WW_TRY(const std::uint8_t mode, in.U8());
  if ((mode & ~(kModeMask | kModeHasBox)) != 0) return DamagedIndex("an entry of an unknown mode");
  entry.mode = static_cast<EntryMode>(mode & kModeMask);
  if ((mode & kModeHasBox) != 0) {
    Box box;
    WW_TRY(const std::uint64_t rank, LimitedVarint(in, kMaxRank, "dimensions"));
    for (std::uint64_t d = 0; d < rank; ++d) {
      WW_TRY(const std::uint64_t start, in.Varint());
      WW_TRY(const std::uint64_t extent, in.Varint());
      box.start.push_back(start);
      box.extent.push_back(extent);
    }
    entry.box = std::move(box);
  }
  if (entry.mode == EntryMode::kWhole) {
    WW_TRY(entry.whole_bytes, in.Varint());
    if (entry.whole_bytes > budget) return DamagedIndex("a tensor is longer than the payload");
    budget -= entry.whole_bytes;
  } else {
    if (HasTables(entry.mode)) {
      WW_TRY(entry.table_set, LimitedVarint(in, kMaxTableSets, "table sets"));
    }
    if (entry.mode == EntryMode::kSparse) {
      WW_TRY(const std::uint8_t scale, in.U8());
      entry.scale = scale - kScaleBias;
    }
    WW_TRY(const std::uint8_t tile_log2, in.U8());
    if (tile_log2 < kMinTileLog2 || tile_log2 > kMaxTileLog2) return DamagedIndex("an impossible tile size");
    entry.tile_log2 = tile_log2;
    WW_TRY(entry.changed, LimitedVarint(in, kMaxTensorBytes, "changes"));
    WW_RETURN_IF_ERROR(ReadTileBytes(in, budget, entry.tile_bytes));
  }
  WW_TRY(entry.before, ReadDigest(in));
  WW_TRY(entry.after, ReadDigest(in));
  return entry;
}

}  // namespace

std::uint64_t IndexEntry::PayloadBytes() const {
  std::uint64_t bytes = whole_bytes;
  for (const std::uint32_t tile : tile_bytes) bytes += tile;
  return bytes;
}

void DeltaIndex::Write(ByteWriter& out) const {
  out.Varint((state.has_value() ? kFlagState : 0) | (layout_change.has_value() ? kFlagLayoutChange : 0) |
             (aliases.empty() ? 0 : kFlagAliases));
  out.Bytes(layout_hash);
  if (state.has_value()) {
    out.Bytes(state->before);
    out.Bytes(state->after);
  }
  if (!aliases.empty()) WriteAliases(aliases, out);
  if (layout_change.has_value()) WriteLayoutChange(*layout_change, out);
  out.Varint(entries.size());
  std::size_t previous = 0;
  for (const IndexEntry& entry : entries) {
    WW_CHECK(entry.tensor >= previous);
    out.Varint(entry.tensor - previous);
    previous = entry.tensor;
    WriteEntry(entry, out);
  }
}

Result<DeltaIndex> DeltaIndex::Read(ByteReader& in, std::uint64_t payload_bytes) {
  std::uint64_t budget = payload_bytes;
  DeltaIndex index;
  WW_TRY(const std::uint64_t flags, in.Varint());
  if ((flags & ~(kFlagState | kFlagLayoutChange | kFlagAliases)) != 0) {
    return Error(ErrorCode::kUnsupported,
                 "the delta uses a feature this weightwire does not know; a newer one can read it");
  }
  WW_TRY(index.layout_hash, ReadHash(in));
  if ((flags & kFlagState) != 0) {
    StateDigests state;
    WW_TRY(state.before, ReadHash(in));
    WW_TRY(state.after, ReadHash(in));
    index.state = state;
  }
  if ((flags & kFlagAliases) != 0) {
    WW_TRY(index.aliases, ReadAliases(in));
    if (index.aliases.empty()) return DamagedIndex("an empty list of aliases");
  }
  if ((flags & kFlagLayoutChange) != 0) {
    WW_TRY(index.layout_change, ReadLayoutChange(in));
  }
  WW_TRY(const std::uint64_t count, LimitedVarint(in, kMaxEntries, "entries"));
  std::uint64_t tensor = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    WW_TRY(const std::uint64_t gap, LimitedVarint(in, kMaxTensors, "tensors"));
    tensor += gap;
    if (tensor >= kMaxTensors) return AboveLimit(tensor + 1, kMaxTensors, "tensors");
    WW_TRY(IndexEntry entry, ReadEntry(in, budget));
    entry.tensor = tensor;
    index.entries.push_back(std::move(entry));
  }
  if (budget != 0) return DamagedIndex("the payload is longer than its tiles");
  return index;
}

Result<Layout> ApplyLayoutChange(const Layout& before, const std::optional<LayoutChange>& change) {
  if (!change.has_value()) return before;
  const std::set<std::size_t> removed(change->removed.begin(), change->removed.end());
  if (!removed.empty() && *removed.rbegin() >= before.size())
    return DamagedIndex("it removes a tensor that is not there");
  std::vector<TensorSpec> tensors;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (!removed.contains(i)) tensors.push_back(before.tensors()[i]);
  }
  tensors.insert(tensors.end(), change->added.begin(), change->added.end());
  WW_TRY(Layout after, Layout::Make(std::move(tensors), change->aliases));
  if (after.hash() != change->after_hash) return DamagedIndex("the layout after the change is not the promised one");
  return after;
}

LayoutChange CompareLayouts(const Layout& before, const Layout& after) {
  LayoutChange change;
  change.after_hash = after.hash();
  change.aliases = after.aliases();
  // A tensor of another type or shape is removed and added.
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (!after.FindSame(before.tensors()[i]).has_value()) change.removed.push_back(i);
  }
  for (const TensorSpec& spec : after.tensors()) {
    if (!before.FindSame(spec).has_value()) change.added.push_back(spec);
  }
  return change;
}

}  // namespace weightwire
