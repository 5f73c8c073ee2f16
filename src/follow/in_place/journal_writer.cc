#include "follow/in_place/journal_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "codec/digest/digest.h"
#include "codec/format/units.h"
#include "follow/in_place/journal.h"

namespace weightwire {
namespace {

using Bytes = std::span<const std::uint8_t>;

// Units of a new tensor, or changes of another, that one block covers at most: a block stays below 5 MiB.
constexpr std::uint64_t kBlockUnits = std::uint64_t{1} << 18;
// Blocks are coded together until their sizes may add up to this.
constexpr std::uint64_t kBatchBytes = std::uint64_t{4} << 20;
// Blocks that a thread digests at once.
constexpr std::size_t kDigestedAtOnce = 32;

// The content of one block: a range of a new tensor, or some of the changes of a chunk, at one of the tensor's
// locations.
struct BlockContent {
  const StagedTensor* staged = nullptr;
  const StagedChunk* chunk = nullptr;  // none: the tensor is new
  TensorLocation location;
  std::uint64_t begin = 0;  // units of the tensor, or changes of the chunk
  std::uint64_t end = 0;

  // About the largest size that the block can have.
  [[nodiscard]] std::uint64_t MaxBytes() const {
    return (end - begin) * (2 + 2 * static_cast<std::uint64_t>(staged->unit_bytes())) + kMaxVarintBytes;
  }
};

// A block as it is written. The room at the front is for its size and its head, which are known last.
class CodedBlock {
 public:
  bool bits_match = true;

  // Empty if nothing changes.
  [[nodiscard]] Bytes block() const { return Bytes(bytes_).subspan(begin_); }

  // Makes room for the lists of `changes` changes, one after another. Invalidates block().
  std::uint8_t* Begin(std::uint64_t changes, std::size_t unit_bytes) {
    bytes_.resize(kFrontBytes + changes * (1 + 2 * unit_bytes));
    return bytes_.data() + kFrontBytes;
  }
  void LongGap(std::uint64_t gap) { ByteWriter(bytes_).Varint(gap - kLongJournalGap); }
  void Finish(const BlockContent& content, std::uint64_t first_unit, std::uint64_t changes) {
    front_.clear();
    ByteWriter head(front_);
    head.Varint(content.location.file);
    head.U8(static_cast<std::uint8_t>(content.staged->unit_bytes()));
    head.Varint(content.location.offset);
    head.Varint(first_unit);
    head.Varint(changes);
    const std::size_t head_bytes = front_.size();
    head.Varint(head_bytes + bytes_.size() - kFrontBytes);
    std::rotate(front_.begin(), front_.begin() + static_cast<std::ptrdiff_t>(head_bytes), front_.end());
    begin_ = kFrontBytes - front_.size();
    std::copy(front_.begin(), front_.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
  }
  void SetEmpty() { begin_ = bytes_.size(); }

 private:
  static constexpr std::size_t kFrontBytes = std::size_t{5} * kMaxVarintBytes + 1;

  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint8_t> front_;
  std::size_t begin_ = 0;
};

template <typename Unit>
void CodeNewTensor(const BlockContent& content, Bytes current, CodedBlock& coded) {
  // Removed by one delta and added again by a later one: all of it may differ.
  const std::uint8_t* all_new = content.staged->new_bytes().data();
  std::vector<std::uint64_t> units;
  for (std::uint64_t unit = content.begin; unit < content.end; ++unit) {
    if (LoadUnit<Unit>(current.data(), unit) != LoadUnit<Unit>(all_new, unit)) units.push_back(unit);
  }
  if (units.empty()) return coded.SetEmpty();
  std::uint8_t* gaps = coded.Begin(units.size(), sizeof(Unit));
  std::uint8_t* old_units = gaps + units.size();
  std::uint8_t* new_units = old_units + units.size() * sizeof(Unit);
  const auto gap_before = [&](std::size_t k) { return units[k] - (k == 0 ? content.begin : units[k - 1] + 1); };
  for (std::size_t k = 0; k < units.size(); ++k) {
    gaps[k] = static_cast<std::uint8_t>(std::min(gap_before(k), kLongJournalGap));
    StoreUnit<Unit>(old_units, k, LoadUnit<Unit>(current.data(), units[k]));
    StoreUnit<Unit>(new_units, k, LoadUnit<Unit>(all_new, units[k]));
  }
  for (std::size_t k = 0; k < units.size(); ++k) {
    if (gap_before(k) >= kLongJournalGap) coded.LongGap(gap_before(k));
  }
  coded.Finish(content, content.begin, units.size());
}

template <typename Unit>
void CodeChanges(const BlockContent& content, Bytes current, bool check_tensors, CodedBlock& coded) {
  const StagedChunk& chunk = *content.chunk;
  const std::uint32_t* offsets = chunk.offsets.data() + content.begin;
  const std::size_t count = content.end - content.begin;
  const std::uint8_t* old_units = chunk.old_units.data() + content.begin * sizeof(Unit);
  const std::uint8_t* new_units = chunk.new_units.data() + content.begin * sizeof(Unit);
  std::uint8_t* gaps = coded.Begin(count, sizeof(Unit));
  std::uint32_t longest = 0;
  gaps[0] = 0;
  for (std::size_t k = 1; k < count; ++k) {
    const std::uint32_t gap = offsets[k] - offsets[k - 1] - 1;
    gaps[k] = static_cast<std::uint8_t>(std::min<std::uint32_t>(gap, kLongJournalGap));
    longest = std::max(longest, gap);
  }
  std::copy_n(old_units, count * sizeof(Unit), gaps + count);
  std::copy_n(new_units, count * sizeof(Unit), gaps + count * (1 + sizeof(Unit)));
  if (longest >= kLongJournalGap) {
    for (std::size_t k = 1; k < count; ++k) {
      const std::uint32_t gap = offsets[k] - offsets[k - 1] - 1;
      if (gap >= kLongJournalGap) coded.LongGap(gap);
    }
  }
  coded.Finish(content, chunk.first_unit + offsets[0], count);
  if (!check_tensors) return;
  for (std::size_t k = 0; k < count; ++k) {
    const std::uint64_t unit = chunk.first_unit + offsets[k];
    if (LoadUnit<Unit>(current.data(), unit) != LoadUnit<Unit>(old_units, k)) coded.bits_match = false;
  }
}

void CodeBlock(const BlockContent& content, Bytes current, bool check_tensors, CodedBlock& coded) {
  coded.bits_match = true;
  WithUnit(content.staged->unit_bytes(), [&]<typename Unit>() {
    if (content.chunk == nullptr) {
      CodeNewTensor<Unit>(content, current, coded);
    } else {
      CodeChanges<Unit>(content, current, check_tensors, coded);
    }
  });
}

std::vector<BlockContent> ContentsOfBlocks(const JournalRequest& request) {
  std::vector<BlockContent> blocks;
  const auto add = [&](const BlockContent& whole, std::uint64_t count) {
    for (std::uint64_t begin = 0; begin < count; begin += kBlockUnits) {
      blocks.push_back(whole);
      blocks.back().begin = begin;
      blocks.back().end = std::min(begin + kBlockUnits, count);
    }
  };
  for (const TensorLocation& location : request.locations) {
    const StagedTensor* staged = request.change->Find(location.tensor);
    if (staged == nullptr) continue;
    if (staged->is_new()) {
      add({staged, nullptr, location, 0, 0}, request.change->layout_after().unit_count(location.tensor));
    }
    for (const StagedChunk& chunk : staged->chunks()) add({staged, &chunk, location, 0, 0}, chunk.offsets.size());
  }
  return blocks;
}

// Appends to the file, and to the digest over it.
class DigestedFile {
 public:
  DigestedFile(NewFile& file, const Kernels& kernels) : file_(file), kernels_(kernels) {}

  Status Append(Bytes bytes) {
    Count(DigestOf(bytes, 0), bytes.size());
    return file_.Append(bytes);
  }
  // The three steps of Append, so that threads can share the work: digest bytes at an offset from the end, write them,
  // and count both once they are done.
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

// Codes the blocks in batches. While a batch is coded, the previous one is digested, and written by one thread.
class BlockWriter {
 public:
  BlockWriter(const JournalRequest& request, ThreadPool& pool, DigestedFile& out)
      : request_(request), pool_(pool), out_(out) {}

  Status Run() {
    const std::vector<BlockContent> blocks = ContentsOfBlocks(request_);
    for (std::size_t first = 0; first < blocks.size();) {
      std::size_t count = 0;
      for (std::uint64_t bytes = 0; first + count < blocks.size() && bytes < kBatchBytes; ++count) {
        bytes += blocks[first + count].MaxBytes();
      }
      WW_RETURN_IF_ERROR(Batch(std::span(blocks).subspan(first, count)));
      first += count;
    }
    return Batch({});
  }

 private:
  // Codes these and writes those of the previous call.
  Status Batch(std::span<const BlockContent> blocks) {
    if (coded_.size() < blocks.size()) coded_.resize(blocks.size());
    std::vector<std::uint64_t> offsets;
    std::uint64_t size = 0;
    for (std::size_t i = 0; i < finished_; ++i) {
      offsets.push_back(size);
      size += previous_[i].block().size();
    }
    std::vector<Digest> digests((finished_ + kDigestedAtOnce - 1) / kDigestedAtOnce);
    Status written;
    // The first task writes: it takes longest.
    pool_.ParallelFor(1 + digests.size() + blocks.size(), [&](std::size_t i, std::size_t) {
      if (i == 0) {
        written = Write();
      } else if (i <= digests.size()) {
        for (std::size_t k = (i - 1) * kDigestedAtOnce; k < std::min(i * kDigestedAtOnce, finished_); ++k) {
          digests[i - 1] += out_.DigestOf(previous_[k].block(), offsets[k]);
        }
      } else {
        const std::size_t k = i - 1 - digests.size();
        CodeBlock(blocks[k], request_.tensors[blocks[k].location.tensor], request_.check_tensors, coded_[k]);
      }
    });
    if (!written.ok()) return written.error();
    for (const Digest& digest : digests) out_.Count(digest, 0);
    out_.Count(Digest(), size);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (coded_[i].bits_match) continue;
      return Error(ErrorCode::kMismatch, fmt::format("{} was changed by something else meanwhile; nothing was written",
                                                     request_.files[blocks[i].location.file].name));
    }
    std::swap(previous_, coded_);
    finished_ = blocks.size();
    return Ok();
  }

  Status Write() {
    for (std::size_t i = 0; i < finished_; ++i) {
      if (!previous_[i].block().empty()) WW_RETURN_IF_ERROR(out_.Write(previous_[i].block()));
    }
    return Ok();
  }

  const JournalRequest& request_;
  ThreadPool& pool_;
  DigestedFile& out_;
  std::vector<CodedBlock> coded_;
  std::vector<CodedBlock> previous_;  // of the previous batch, the first `finished_` of them
  std::size_t finished_ = 0;
};

}  // namespace

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
    (void)files.Remove(path);  // an incomplete journal has no effect, so an error of Remove is not reported
    return written.error();
  }
  return file;
}

}  // namespace weightwire
