#include "follow/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/limits.h"
#include "codec/units.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::string_view kMagic = "WWJRNL02";
constexpr std::size_t kHashBytes = sizeof(Sha256Digest);
// Units of a tensor that one block covers at most: a block of a tensor that changes all over stays below 5 MiB.
constexpr std::uint64_t kBlockUnits = std::uint64_t{1} << 18;
// Blocks that are made at the same time.
constexpr std::size_t kBlocksAtOnce = 16;

Bytes BytesOf(std::string_view text) { return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}; }

Error Damaged() { return {ErrorCode::kCorrupt, "it is damaged"}; }

// A stretch of a tensor at one of its places, and its changes once they are coded.
struct Piece {
  const StagedTensor* staged = nullptr;
  TensorPlace place;
  std::uint64_t begin = 0;  // units
  std::uint64_t end = 0;
};

struct CodedPiece {
  std::vector<std::uint8_t> changes;
  std::uint64_t count = 0;
  bool as_expected = true;
};

std::uint8_t* PutVarint(std::uint8_t* to, std::uint64_t value) {
  while (value >= 0x80) {
    *to++ = static_cast<std::uint8_t>(value | 0x80);
    value >>= 7;
  }
  *to++ = static_cast<std::uint8_t>(value);
  return to;
}

template <typename Unit>
class ChangeCoder {
 public:
  ChangeCoder(std::vector<std::uint8_t>& out, std::uint64_t begin) : out_(out), next_(begin) {}

  void Add(std::uint64_t unit, const std::uint8_t* old_unit, const std::uint8_t* new_unit) {
    if (out_.size() - size_ < kMaxVarintBytes + 2 * sizeof(Unit)) out_.resize(2 * out_.size() + 4096);
    std::uint8_t* to = PutVarint(out_.data() + size_, unit - next_);
    std::memcpy(to, old_unit, sizeof(Unit));
    std::memcpy(to + sizeof(Unit), new_unit, sizeof(Unit));
    size_ = static_cast<std::size_t>(to - out_.data()) + 2 * sizeof(Unit);
    next_ = unit + 1;
    ++count_;
  }
  std::uint64_t Finish() {
    out_.resize(size_);
    return count_;
  }

 private:
  std::vector<std::uint8_t>& out_;  // longer than what is coded, so that a change needs one check
  std::size_t size_ = 0;
  std::uint64_t next_;
  std::uint64_t count_ = 0;
};

void CodePiece(const Piece& piece, Bytes held, bool check_held, CodedPiece& coded) {
  coded.changes.clear();
  coded.as_expected = true;
  coded.count = WithUnit(piece.staged->unit_bytes(), [&]<typename Unit>() {
    ChangeCoder<Unit> coder(coded.changes, piece.begin);
    if (piece.staged->is_new()) {
      // Removed by one delta and added again by a later one: all of it may differ.
      const std::uint8_t* all_new = piece.staged->new_bytes().data();
      for (std::uint64_t unit = piece.begin; unit < piece.end; ++unit) {
        const std::uint8_t* old_unit = held.data() + unit * sizeof(Unit);
        const std::uint8_t* new_unit = all_new + unit * sizeof(Unit);
        if (std::memcmp(old_unit, new_unit, sizeof(Unit)) != 0) coder.Add(unit, old_unit, new_unit);
      }
      return coder.Finish();
    }
    piece.staged->ForEachChanged(
        piece.begin, piece.end, [&](std::uint64_t unit, const std::uint8_t* new_unit, const std::uint8_t* old_unit) {
          if (check_held && std::memcmp(held.data() + unit * sizeof(Unit), old_unit, sizeof(Unit)) != 0) {
            coded.as_expected = false;
          }
          coder.Add(unit, old_unit, new_unit);
        });
    return coder.Finish();
  });
}

// Appends to the file and to the hash over it.
class HashedFile {
 public:
  explicit HashedFile(NewFile& file) : file_(file) {}

  Status Append(Bytes bytes) {
    hash_.Update(bytes);
    return file_.Append(bytes);
  }
  Status Finish() { return file_.Append(hash_.Finish()); }

 private:
  NewFile& file_;
  Sha256 hash_;
};

std::vector<std::uint8_t> Header(const JournalRequest& request) {
  std::vector<std::uint8_t> header;
  ByteWriter out(header);
  const auto text = [&](std::string_view value) {
    out.Varint(value.size());
    out.Bytes(BytesOf(value));
  };
  out.Bytes(BytesOf(kMagic));
  out.Bytes(request.change->state_before());
  out.Bytes(request.change->state_after());
  text(request.note);
  WW_CHECK(request.change->digests_before().size() == request.change->digests_after().size());
  out.Varint(request.change->digests_before().size());
  for (const Digest& digest : request.change->digests_before()) out.Bytes(digest.ToBytes());
  for (const Digest& digest : request.change->digests_after()) out.Bytes(digest.ToBytes());
  out.Varint(request.files.size());
  for (const CheckpointFile& file : request.files) {
    text(file.name);
    out.Varint(file.size_bytes);
  }
  return header;
}

Status WriteBlocks(const JournalRequest& request, ThreadPool& pool, HashedFile& out) {
  std::vector<Piece> pieces;
  for (const TensorPlace& place : request.places) {
    const StagedTensor* staged = request.change->Find(place.tensor);
    if (staged == nullptr) continue;
    const std::uint64_t units = request.change->layout_after().unit_count(place.tensor);
    for (std::uint64_t begin = 0; begin < units; begin += kBlockUnits) {
      pieces.push_back({staged, place, begin, std::min(begin + kBlockUnits, units)});
    }
  }
  std::vector<CodedPiece> coded(kBlocksAtOnce);
  std::vector<std::uint8_t> buffer;
  for (std::size_t first = 0; first < pieces.size(); first += kBlocksAtOnce) {
    const std::size_t count = std::min(kBlocksAtOnce, pieces.size() - first);
    pool.ParallelFor(count, [&](std::size_t i, std::size_t) {
      const Piece& piece = pieces[first + i];
      CodePiece(piece, request.held[piece.place.tensor], request.check_held, coded[i]);
    });
    buffer.clear();
    for (std::size_t i = 0; i < count; ++i) {
      const Piece& piece = pieces[first + i];
      if (!coded[i].as_expected) {
        return Error(ErrorCode::kMismatch,
                     fmt::format("{} was changed by something else meanwhile; nothing was written",
                                 request.files[piece.place.file].name));
      }
      if (coded[i].count == 0) continue;
      std::vector<std::uint8_t> head;
      ByteWriter head_out(head);
      head_out.Varint(piece.place.file);
      head_out.U8(static_cast<std::uint8_t>(piece.staged->unit_bytes()));
      head_out.Varint(piece.place.offset);
      head_out.Varint(piece.begin);
      head_out.Varint(coded[i].count);
      ByteWriter block(buffer);
      block.Varint(head.size() + coded[i].changes.size());
      block.Bytes(head);
      block.Bytes(coded[i].changes);
    }
    if (!buffer.empty()) WW_RETURN_IF_ERROR(out.Append(buffer));
  }
  return Ok();
}

// Walks the changes of a block; calls function(place in the file, old bytes, new bytes). False when they are not as
// they must be.
template <typename Unit, typename Function>
bool WalkChanges(Bytes coded, std::uint64_t first_unit, std::uint64_t changes, Function&& function) {
  const std::uint8_t* at = coded.data();
  const std::uint8_t* const end = at + coded.size();
  std::uint64_t unit = first_unit;
  for (std::uint64_t k = 0; k < changes; ++k) {
    std::uint64_t gap = 0;
    for (int shift = 0;; shift += 7) {
      if (at == end || shift > 56) return false;
      const std::uint8_t byte = *at++;
      gap |= std::uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) break;
    }
    if (static_cast<std::size_t>(end - at) < 2 * sizeof(Unit)) return false;
    unit += gap;
    if (!function(unit, at, at + sizeof(Unit))) return false;
    at += 2 * sizeof(Unit);
    ++unit;
  }
  return at == end;
}

}  // namespace

Result<std::vector<TensorPlace>> PlacesIn(std::span<const CheckpointFile> files, const Layout& layout) {
  std::vector<TensorPlace> places;
  for (std::size_t file = 0; file < files.size(); ++file) {
    for (std::size_t i = 0; i < files[file].tensors.size(); ++i) {
      const std::optional<std::size_t> tensor = layout.Resolve(files[file].tensors[i]);
      if (!tensor.has_value()) {
        return Error(ErrorCode::kMismatch, fmt::format("{} holds tensor {}, which should not be there",
                                                       files[file].name, Quoted(files[file].tensors[i])));
      }
      places.push_back({file, files[file].offsets[i], *tensor});
    }
  }
  return places;
}

Status WriteJournal(FileSystem& files, const FileSystem::Path& path, const JournalRequest& request, ThreadPool& pool,
                    const JournalFaults& faults) {
  WW_CHECK(request.note.size() <= kMaxJournalNoteBytes);
  const FileSystem::Path temporary = path.string() + ".tmp";
  WW_TRY(const std::optional<FileInfo> left, files.Stat(temporary));
  if (left.has_value()) WW_RETURN_IF_ERROR(files.Remove(temporary));
  const auto write = [&]() -> Status {
    WW_TRY(const std::unique_ptr<NewFile> file, files.Create(temporary));
    HashedFile out(*file);
    WW_RETURN_IF_ERROR(out.Append(Header(request)));
    WW_RETURN_IF_ERROR(WriteBlocks(request, pool, out));
    WW_RETURN_IF_ERROR(out.Append(std::vector<std::uint8_t>{0}));
    WW_RETURN_IF_ERROR(out.Finish());
    if (faults.no_sync) return Ok();
    return file->Sync();
  };
  if (Status written = write(); !written.ok()) {
    (void)files.Remove(temporary);  // it is of no value, and the error says more than a second one would
    return written;
  }
  WW_RETURN_IF_ERROR(files.Rename(temporary, path));
  return faults.no_sync ? Ok() : files.SyncDirectory(path.parent_path());
}

Result<Journal> Journal::Open(FileSystem& files, const FileSystem::Path& path) {
  Journal journal;
  WW_TRY(journal.map_, files.Map(path));
  if (!journal.Parse().ok()) return Error(ErrorCode::kCorrupt, fmt::format("the journal {} is damaged", path.string()));
  return journal;
}

Status Journal::Parse() {
  const Bytes all = map_->bytes();
  if (all.size() < kMagic.size() + 3 * kHashBytes) return Damaged();
  const Bytes hashed = all.first(all.size() - kHashBytes);
  const Sha256Digest hash = Sha256Of(hashed);
  if (!std::equal(hash.begin(), hash.end(), all.end() - kHashBytes)) return Damaged();
  if (std::memcmp(hashed.data(), kMagic.data(), kMagic.size()) != 0) return Damaged();
  ByteReader in(hashed.subspan(kMagic.size()));
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

Status Journal::CheckHeld(std::size_t file, Bytes bytes, ThreadPool& pool) const {
  std::atomic<bool> as_expected = bytes.size() == files_[file].size_bytes;
  if (as_expected) {
    pool.ParallelFor(blocks_.size(), [&](std::size_t i, std::size_t) {
      const Block& block = blocks_[i];
      if (block.file != file) return;
      const bool held = WithUnit(block.unit_bytes, [&]<typename Unit>() {
        return WalkChanges<Unit>(block.coded, block.first_unit, block.changes,
                                 [&](std::uint64_t unit, const std::uint8_t* old_unit, const std::uint8_t* new_unit) {
                                   const std::uint8_t* at = bytes.data() + block.offset + unit * sizeof(Unit);
                                   for (std::size_t k = 0; k < sizeof(Unit); ++k) {
                                     if (at[k] != old_unit[k] && at[k] != new_unit[k]) return false;
                                   }
                                   return true;
                                 });
      });
      if (!held) as_expected = false;
    });
  }
  if (as_expected) return Ok();
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

void Journal::AddSteps(std::size_t file, std::span<std::uint8_t> bytes) const {
  for (const Block& block : blocks_) {
    if (block.file != file) continue;
    WithUnit(block.unit_bytes, [&]<typename Unit>() {
      std::uint8_t* to = bytes.data() + block.offset;
      return WalkChanges<Unit>(block.coded, block.first_unit, block.changes,
                               [&](std::uint64_t unit, const std::uint8_t* old_unit, const std::uint8_t* new_unit) {
                                 const auto step =
                                     static_cast<Unit>(LoadUnit<Unit>(new_unit, 0) - LoadUnit<Unit>(old_unit, 0));
                                 StoreUnit<Unit>(to, unit, static_cast<Unit>(LoadUnit<Unit>(to, unit) + step));
                                 return true;
                               });
    });
  }
}

}  // namespace weightwire
