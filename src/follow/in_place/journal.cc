#include "follow/in_place/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/bytes.h"
#include "base/limits.h"
#include "codec/format/units.h"

namespace weightwire {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::size_t kHashBytes = sizeof(Sha256Digest);
// More than any tensor has units; sums of a few do not overflow.
constexpr std::uint64_t kMaxUnitGap = std::uint64_t{1} << 62;

Error Damaged() { return {ErrorCode::kCorrupt, "it is damaged"}; }

// Walks the changes of a block; calls function(unit, old bytes, new bytes). False when they are not as they must be.
template <typename Unit, typename Function>
bool WalkChanges(Bytes coded, std::uint64_t first_unit, std::uint64_t changes, Function&& function) {
  if (changes > coded.size() / (1 + 2 * sizeof(Unit))) return false;
  const std::uint8_t* const gaps = coded.data();
  const std::uint8_t* old_unit = gaps + changes;
  const std::uint8_t* new_unit = old_unit + changes * sizeof(Unit);
  ByteReader long_gaps(coded.subspan(changes * (1 + 2 * sizeof(Unit))));
  std::uint64_t unit = first_unit;
  for (std::uint64_t k = 0; k < changes; ++k) {
    std::uint64_t gap = gaps[k];
    if (gap == kLongJournalGap) {
      const auto more = long_gaps.Varint();
      if (!more.ok() || more.value() > kMaxUnitGap) return false;
      gap += more.value();
    }
    unit += gap;
    if (!function(unit, old_unit, new_unit)) return false;
    old_unit += sizeof(Unit);
    new_unit += sizeof(Unit);
    ++unit;
  }
  return long_gaps.ExpectEnd().ok();
}

}  // namespace

Result<Journal> Journal::Open(FileSystem& files, const FileSystem::Path& path, const Kernels& kernels) {
  Journal journal;
  WW_TRY(journal.map_, files.Map(path));
  if (!journal.Parse(kernels).ok()) {
    return Error(ErrorCode::kCorrupt, fmt::format("the journal {} is damaged", path.string()));
  }
  return journal;
}

Status Journal::Parse(const Kernels& kernels) {
  const Bytes all = map_->bytes();
  if (all.size() < kJournalMagic.size() + 2 * kHashBytes + kDigestBytes) return Damaged();
  const Bytes hashed = all.first(all.size() - kDigestBytes);
  if (DigestOfRange(hashed, 0, kernels) != Digest::FromBytes(all.last<kDigestBytes>())) return Damaged();
  if (std::memcmp(hashed.data(), kJournalMagic.data(), kJournalMagic.size()) != 0) return Damaged();
  ByteReader in(hashed.subspan(kJournalMagic.size()));
  const auto text = [&](std::uint64_t limit, std::string& to) -> Status {
    WW_TRY(const std::uint64_t size, in.Varint());
    if (size > limit) return Damaged();
    WW_TRY(const Bytes bytes, in.Bytes(size));
    to.assign(bytes.begin(), bytes.end());
    return Ok();
  };
  for (Sha256Digest* state : {&state_before_, &state_after_}) {
    WW_TRY(const Bytes bytes, in.Bytes(kHashBytes));
    std::copy(bytes.begin(), bytes.end(), state->begin());
  }
  WW_RETURN_IF_ERROR(text(kMaxJournalNoteBytes, note_));
  WW_TRY(const std::uint64_t tensors, in.Varint());
  if (tensors > kMaxTensors) return Damaged();
  for (std::vector<Digest>* digests : {&digests_before_, &digests_after_}) {
    WW_TRY(const Bytes bytes, in.Bytes(tensors * kDigestBytes));
    for (std::size_t i = 0; i < tensors; ++i) {
      digests->push_back(Digest::FromBytes(bytes.subspan(i * kDigestBytes).first<kDigestBytes>()));
    }
  }
  WW_TRY(const std::uint64_t files, in.Varint());
  if (files > kMaxTensors) return Damaged();
  for (std::uint64_t i = 0; i < files; ++i) {
    ChangedFile file;
    WW_RETURN_IF_ERROR(text(kMaxNameBytes, file.name));
    WW_TRY(file.size_bytes, in.Varint());
    const FileSystem::Path relative(file.name);
    if (relative.is_absolute() || std::find(relative.begin(), relative.end(), "..") != relative.end()) return Damaged();
    files_.push_back(std::move(file));
  }
  while (true) {
    WW_TRY(const std::uint64_t size, in.Varint());
    if (size == 0) return in.ExpectEnd();
    WW_TRY(const Bytes body, in.Bytes(size));
    WW_TRY(const Block block, ParseBlock(body));
    blocks_.push_back(block);
  }
}

Result<Journal::Block> Journal::ParseBlock(Bytes body) const {
  Block block;
  ByteReader in(body);
  WW_TRY(block.file, in.Varint());
  WW_TRY(const std::uint8_t width, in.U8());
  WW_TRY(block.offset, in.Varint());
  WW_TRY(block.first_unit, in.Varint());
  WW_TRY(block.changes, in.Varint());
  if (block.file >= files_.size() || (width != 1 && width != 2 && width != 4 && width != 8)) return Damaged();
  block.unit_bytes = width;
  block.coded = body.subspan(in.position());
  const std::uint64_t size = files_[block.file].size_bytes;
  if (block.offset > size) return Damaged();
  // So that nothing which uses the block can go wrong: every unit within the file, and all bytes used.
  const std::uint64_t units = (size - block.offset) / width;
  const bool whole = WithUnit(width, [&]<typename Unit>() {
    return WalkChanges<Unit>(
        block.coded, block.first_unit, block.changes,
        [&](std::uint64_t unit, const std::uint8_t*, const std::uint8_t*) { return unit < units; });
  });
  if (!whole) return Damaged();
  return block;
}

Status Journal::CheckFile(std::size_t file, Bytes bytes, ThreadPool& pool) const {
  std::atomic<bool> bits_match = bytes.size() == files_[file].size_bytes;
  if (bits_match) {
    pool.ParallelFor(blocks_.size(), [&](std::size_t i, std::size_t) {
      const Block& block = blocks_[i];
      if (block.file != file) return;
      const bool matches = WithUnit(block.unit_bytes, [&]<typename Unit>() {
        return WalkChanges<Unit>(block.coded, block.first_unit, block.changes,
                                 [&](std::uint64_t unit, const std::uint8_t* old_unit, const std::uint8_t* new_unit) {
                                   const std::uint8_t* at = bytes.data() + block.offset + unit * sizeof(Unit);
                                   for (std::size_t k = 0; k < sizeof(Unit); ++k) {
                                     if (at[k] != old_unit[k] && at[k] != new_unit[k]) return false;
                                   }
                                   return true;
                                 });
      });
      if (!matches) bits_match = false;
    });
  }
  if (bits_match) return Ok();
  return Error(ErrorCode::kMismatch,
               fmt::format("{} was changed by something else since its update began", files_[file].name));
}

void Journal::Write(std::size_t file, std::span<std::uint8_t> bytes, Direction direction, ThreadPool& pool) const {
  pool.ParallelFor(blocks_.size(), [&](std::size_t i, std::size_t) {
    const Block& block = blocks_[i];
    if (block.file != file) return;
    WithUnit(block.unit_bytes, [&]<typename Unit>() {
      std::uint8_t* to = bytes.data() + block.offset;
      return WalkChanges<Unit>(
          block.coded, block.first_unit, block.changes,
          [&](std::uint64_t unit, const std::uint8_t* old_unit, const std::uint8_t* new_unit) {
            StoreUnit<Unit>(to, unit, LoadUnit<Unit>(direction == Direction::kForward ? new_unit : old_unit, 0));
            return true;
          });
    });
  });
}

Status ReplayJournal(FileSystem& files, const FileSystem::Path& directory, const Journal& journal,
                     Journal::Direction direction, ThreadPool& pool) {
  std::vector<std::unique_ptr<UpdateMap>> maps;
  for (std::size_t i = 0; i < journal.files().size(); ++i) {
    const FileSystem::Path path = directory / journal.files()[i].name;
    WW_TRY(std::unique_ptr<UpdateMap> map, files.MapForUpdate(path));
    WW_TRY(const std::unique_ptr<FileMap> current, files.Map(path));
    WW_RETURN_IF_ERROR(journal.CheckFile(i, current->bytes(), pool));
    maps.push_back(std::move(map));
  }
  for (std::size_t i = 0; i < maps.size(); ++i) {
    WW_TRY(const std::span<std::uint8_t> bytes, maps[i]->ForWriting(0, maps[i]->size_bytes()));
    journal.Write(i, bytes, direction, pool);
  }
  for (const std::unique_ptr<UpdateMap>& map : maps) WW_RETURN_IF_ERROR(map->Sync());
  return Ok();
}

}  // namespace weightwire
