#include "follow/mirror/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/limits.h"
#include "codec/format/units.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::string_view kJournalMagic = "WWJRNL03";
constexpr std::size_t kHashBytes = sizeof(Sha256Digest);
// Units of a new tensor, or changes of another, that one block covers at most: a block stays below 5 MiB.
constexpr std::uint64_t kBlockUnits = std::uint64_t{1} << 18;
// Blocks are made at the same time until they may have so many bytes together.
constexpr std::uint64_t kBatchBytes = std::uint64_t{4} << 20;
// Blocks that a thread digests at once.
constexpr std::size_t kDigestedAtOnce = 32;
// A gap that does not fit into its byte.
constexpr std::uint64_t kLongGap = 255;
// More than any tensor has units; sums of a few do not overflow.
constexpr std::uint64_t kMaxUnitGap = std::uint64_t{1} << 62;

Error Damaged() { return {ErrorCode::kCorrupt, "it is damaged"}; }

// What becomes one block: a stretch of a new tensor, or some of the changes of a chunk, at one of the tensor's places.
struct Piece {
  const StagedTensor* staged = nullptr;
  const StagedChunk* chunk = nullptr;  // none: the tensor is new
  TensorPlace place;
  std::uint64_t begin = 0;  // units of the tensor, or changes of the chunk
  std::uint64_t end = 0;

  // As many bytes as it can take, about.
  [[nodiscard]] std::uint64_t MostBytes() const {
    return (end - begin) * (2 + 2 * static_cast<std::uint64_t>(staged->unit_bytes())) + kMaxVarintBytes;
  }
};

// A block as it is written. The room at the front is for its size and its head, which are known last.
class CodedPiece {
 public:
  bool as_expected = true;

  // Empty if nothing changes.
  [[nodiscard]] Bytes block() const { return Bytes(bytes_).subspan(begin_); }

  // Room for the lists of so many changes, one after another. Invalidates block().
  std::uint8_t* Begin(std::uint64_t changes, std::size_t unit_bytes) {
    bytes_.resize(kFrontBytes + changes * (1 + 2 * unit_bytes));
    return bytes_.data() + kFrontBytes;
  }
  void LongGap(std::uint64_t gap) { ByteWriter(bytes_).Varint(gap - kLongGap); }
  void Finish(const Piece& piece, std::uint64_t first_unit, std::uint64_t changes) {
    front_.clear();
    ByteWriter head(front_);
    head.Varint(piece.place.file);
    head.U8(static_cast<std::uint8_t>(piece.staged->unit_bytes()));
    head.Varint(piece.place.offset);
    head.Varint(first_unit);
    head.Varint(changes);
    const std::size_t head_bytes = front_.size();
    head.Varint(head_bytes + bytes_.size() - kFrontBytes);
    std::rotate(front_.begin(), front_.begin() + static_cast<std::ptrdiff_t>(head_bytes), front_.end());
    begin_ = kFrontBytes - front_.size();
    std::copy(front_.begin(), front_.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
  }
  void FinishEmpty() { begin_ = bytes_.size(); }

 private:
  static constexpr std::size_t kFrontBytes = std::size_t{5} * kMaxVarintBytes + 1;

  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint8_t> front_;
  std::size_t begin_ = 0;
};

template <typename Unit>
void CodeStretch(const Piece& piece, Bytes held, CodedPiece& coded) {
  // Removed by one delta and added again by a later one: all of it may differ.
  const std::uint8_t* all_new = piece.staged->new_bytes().data();
  std::vector<std::uint64_t> units;
  for (std::uint64_t unit = piece.begin; unit < piece.end; ++unit) {
    if (LoadUnit<Unit>(held.data(), unit) != LoadUnit<Unit>(all_new, unit)) units.push_back(unit);
  }
  if (units.empty()) return coded.FinishEmpty();
  std::uint8_t* gaps = coded.Begin(units.size(), sizeof(Unit));
  std::uint8_t* old_units = gaps + units.size();
  std::uint8_t* new_units = old_units + units.size() * sizeof(Unit);
  const auto gap_before = [&](std::size_t k) { return units[k] - (k == 0 ? piece.begin : units[k - 1] + 1); };
  for (std::size_t k = 0; k < units.size(); ++k) {
    gaps[k] = static_cast<std::uint8_t>(std::min(gap_before(k), kLongGap));
    StoreUnit<Unit>(old_units, k, LoadUnit<Unit>(held.data(), units[k]));
    StoreUnit<Unit>(new_units, k, LoadUnit<Unit>(all_new, units[k]));
  }
  for (std::size_t k = 0; k < units.size(); ++k) {
    if (gap_before(k) >= kLongGap) coded.LongGap(gap_before(k));
  }
  coded.Finish(piece, piece.begin, units.size());
}

template <typename Unit>
void CodeChanges(const Piece& piece, Bytes held, bool check_held, CodedPiece& coded) {
  const StagedChunk& chunk = *piece.chunk;
  const std::uint32_t* offsets = chunk.offsets.data() + piece.begin;
  const std::size_t count = piece.end - piece.begin;
  const std::uint8_t* old_units = chunk.old_units.data() + piece.begin * sizeof(Unit);
  const std::uint8_t* new_units = chunk.new_units.data() + piece.begin * sizeof(Unit);
  std::uint8_t* gaps = coded.Begin(count, sizeof(Unit));
  std::uint32_t longest = 0;
  gaps[0] = 0;
  for (std::size_t k = 1; k < count; ++k) {
    const std::uint32_t gap = offsets[k] - offsets[k - 1] - 1;
    gaps[k] = static_cast<std::uint8_t>(std::min<std::uint32_t>(gap, kLongGap));
    longest = std::max(longest, gap);
  }
  std::copy_n(old_units, count * sizeof(Unit), gaps + count);
  std::copy_n(new_units, count * sizeof(Unit), gaps + count * (1 + sizeof(Unit)));
  if (longest >= kLongGap) {
    for (std::size_t k = 1; k < count; ++k) {
      const std::uint32_t gap = offsets[k] - offsets[k - 1] - 1;
      if (gap >= kLongGap) coded.LongGap(gap);
    }
  }
  coded.Finish(piece, chunk.first_unit + offsets[0], count);
  if (!check_held) return;
  for (std::size_t k = 0; k < count; ++k) {
    const std::uint64_t unit = chunk.first_unit + offsets[k];
    if (LoadUnit<Unit>(held.data(), unit) != LoadUnit<Unit>(old_units, k)) coded.as_expected = false;
  }
}

void CodePiece(const Piece& piece, Bytes held, bool check_held, CodedPiece& coded) {
  coded.as_expected = true;
  WithUnit(piece.staged->unit_bytes(), [&]<typename Unit>() {
    if (piece.chunk == nullptr) {
      CodeStretch<Unit>(piece, held, coded);
    } else {
      CodeChanges<Unit>(piece, held, check_held, coded);
    }
  });
}

std::vector<Piece> PiecesOf(const JournalRequest& request) {
  std::vector<Piece> pieces;
  const auto add = [&](const Piece& whole, std::uint64_t count) {
    for (std::uint64_t begin = 0; begin < count; begin += kBlockUnits) {
      pieces.push_back(whole);
      pieces.back().begin = begin;
      pieces.back().end = std::min(begin + kBlockUnits, count);
    }
  };
  for (const TensorPlace& place : request.places) {
    const StagedTensor* staged = request.change->Find(place.tensor);
    if (staged == nullptr) continue;
    if (staged->is_new()) {
      add({staged, nullptr, place, 0, 0}, request.change->layout_after().unit_count(place.tensor));
    }
    for (const StagedChunk& chunk : staged->chunks()) add({staged, &chunk, place, 0, 0}, chunk.offsets.size());
  }
  return pieces;
}

// Appends to the file, and to the digest over it.
class DigestedFile {
 public:
  DigestedFile(NewFile& file, const Kernels& kernels) : file_(file), kernels_(kernels) {}

  Status Append(Bytes bytes) {
    Count(DigestOf(bytes, 0), bytes.size());
    return file_.Append(bytes);
  }
  // The same for many bytes, step by step, so that threads can share the work: what they add to the digest at an offset
  // from the end, the writing, and, once both are done, what it came to.
  [[nodiscard]] Digest DigestOf(Bytes bytes, std::uint64_t offset) const {
    return DigestOfRange(bytes, size_ + offset, kernels_);
  }
  Status Write(Bytes bytes) { return file_.Append(bytes); }
  void Count(const Digest& digest, std::uint64_t size) {
    digest_ += digest;
    size_ += size;
  }

  Status Finish() { return file_.Append(digest_.ToBytes()); }

 private:
  NewFile& file_;
  const Kernels& kernels_;
  std::uint64_t size_ = 0;
  Digest digest_;
};

std::vector<std::uint8_t> Header(const JournalRequest& request) {
  std::vector<std::uint8_t> header;
  ByteWriter out(header);
  const auto text = [&](std::string_view value) {
    out.Varint(value.size());
    out.Bytes(BytesOf(value));
  };
  out.Bytes(BytesOf(kJournalMagic));
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

// Codes the pieces in batches. While one is coded, the one before is digested and written: only one thread can write.
class BlockWriter {
 public:
  BlockWriter(const JournalRequest& request, ThreadPool& pool, DigestedFile& out)
      : request_(request), pool_(pool), out_(out) {}

  Status Run() {
    const std::vector<Piece> pieces = PiecesOf(request_);
    for (std::size_t first = 0; first < pieces.size();) {
      std::size_t count = 0;
      for (std::uint64_t bytes = 0; first + count < pieces.size() && bytes < kBatchBytes; ++count) {
        bytes += pieces[first + count].MostBytes();
      }
      WW_RETURN_IF_ERROR(Batch(std::span(pieces).subspan(first, count)));
      first += count;
    }
    return Batch({});
  }

 private:
  // Codes these and writes those of the call before.
  Status Batch(std::span<const Piece> pieces) {
    if (coded_.size() < pieces.size()) coded_.resize(pieces.size());
    std::vector<std::uint64_t> offsets;
    std::uint64_t size = 0;
    for (std::size_t i = 0; i < finished_; ++i) {
      offsets.push_back(size);
      size += before_[i].block().size();
    }
    std::vector<Digest> digests((finished_ + kDigestedAtOnce - 1) / kDigestedAtOnce);
    Status written;
    // The first task writes: it takes longest.
    pool_.ParallelFor(1 + digests.size() + pieces.size(), [&](std::size_t i, std::size_t) {
      if (i == 0) {
        written = Write();
      } else if (i <= digests.size()) {
        for (std::size_t k = (i - 1) * kDigestedAtOnce; k < std::min(i * kDigestedAtOnce, finished_); ++k) {
          digests[i - 1] += out_.DigestOf(before_[k].block(), offsets[k]);
        }
      } else {
        const std::size_t k = i - 1 - digests.size();
        CodePiece(pieces[k], request_.held[pieces[k].place.tensor], request_.check_held, coded_[k]);
      }
    });
    if (!written.ok()) return written.error();
    for (const Digest& digest : digests) out_.Count(digest, 0);
    out_.Count(Digest(), size);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (coded_[i].as_expected) continue;
      return Error(ErrorCode::kMismatch, fmt::format("{} was changed by something else meanwhile; nothing was written",
                                                     request_.files[pieces[i].place.file].name));
    }
    std::swap(before_, coded_);
    finished_ = pieces.size();
    return Ok();
  }

  Status Write() {
    for (std::size_t i = 0; i < finished_; ++i) {
      if (!before_[i].block().empty()) WW_RETURN_IF_ERROR(out_.Write(before_[i].block()));
    }
    return Ok();
  }

  const JournalRequest& request_;
  ThreadPool& pool_;
  DigestedFile& out_;
  std::vector<CodedPiece> coded_;
  std::vector<CodedPiece> before_;  // of the batch before, the first `finished_` of them
  std::size_t finished_ = 0;
};

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
    if (gap == kLongGap) {
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

Result<std::unique_ptr<NewFile>> WriteJournal(FileSystem& files, const FileSystem::Path& path,
                                              const JournalRequest& request, const Kernels& kernels, ThreadPool& pool) {
  WW_CHECK(request.note.size() <= kMaxJournalNoteBytes);
  WW_TRY(const std::optional<FileInfo> left, files.Stat(path));
  if (left.has_value()) WW_RETURN_IF_ERROR(files.Remove(path));
  WW_TRY(std::unique_ptr<NewFile> file, files.Create(path));
  const auto write = [&]() -> Status {
    DigestedFile out(*file, kernels);
    WW_RETURN_IF_ERROR(out.Append(Header(request)));
    WW_RETURN_IF_ERROR(BlockWriter(request, pool, out).Run());
    WW_RETURN_IF_ERROR(out.Append(std::vector<std::uint8_t>{0}));
    return out.Finish();
  };
  if (const Status written = write(); !written.ok()) {
    file.reset();
    (void)files.Remove(path);  // it is of no value, and the error says more than a second one would
    return written.error();
  }
  return file;
}

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

}  // namespace weightwire
