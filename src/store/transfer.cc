#include "store/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "base/check.h"
#include "base/object_hash.h"
#include "base/threads.h"

namespace weightwire {
namespace {

// The first error of several threads; the others stop as soon as they see it.
class FirstError {
 public:
  void Note(const Error& error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    failed_ = true;
  }
  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] Status Get() const {
    const std::lock_guard lock(mutex_);
    return error_ ? Status(*error_) : Ok();
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Error> error_;  // guarded by mutex_
  std::atomic<bool> failed_ = false;
};

// Calls piece(index, scratch) for all indices, `threads` at a time, each thread with a scratch buffer of its own.
Status ForAllPieces(std::uint64_t count, std::size_t threads,
                    const std::function<Status(std::uint64_t index, std::vector<std::uint8_t>& scratch)>& piece) {
  WW_CHECK(threads >= 1);
  ThreadPool pool(std::min<std::uint64_t>(threads, std::max<std::uint64_t>(count, 1)));
  std::vector<std::vector<std::uint8_t>> scratch(pool.threads());
  FirstError error;
  pool.ParallelFor(count, [&](std::size_t index, std::size_t worker) {
    if (error.failed()) return;
    if (const Status done = piece(index, scratch[worker]); !done.ok()) error.Note(done.error());
  });
  return error.Get();
}

// The places of a piece's chunks among all; the piece begins at `offset`, a multiple of the chunk size.
std::span<Sha256Digest> ChunksAt(std::span<Sha256Digest> chunks, std::uint64_t offset, std::uint64_t size_bytes) {
  WW_CHECK(offset % kHashChunkBytes == 0);
  return chunks.subspan(offset / kHashChunkBytes, HashChunkCount(size_bytes));
}

Status CompareHash(std::span<const Sha256Digest> chunks, const Sha256Digest& expected, std::string_view what) {
  if (ObjectHashOfChunks(chunks) == expected) return Ok();
  return Error(ErrorCode::kCorrupt, fmt::format("{}: its bytes do not have the hash {}", what, ToHex(expected)));
}

using PartBytes = std::function<Result<std::span<const std::uint8_t>>(std::uint64_t offset, std::uint64_t part_bytes,
                                                                      std::vector<std::uint8_t>& scratch)>;

// Uploads all parts; the object appears if `check` then finds nothing wrong.
Status UploadParts(Store& store, std::string_view key, std::uint64_t size_bytes, const TransferOptions& options,
                   const std::function<Status()>& check, const PartBytes& part) {
  WW_TRY(const std::unique_ptr<Upload> upload, store.StartUpload(key, size_bytes));
  const Status written = ForAllPieces(
      upload->part_count(), options.threads, [&](std::uint64_t index, std::vector<std::uint8_t>& scratch) -> Status {
        WW_TRY(const auto bytes, part(index * upload->part_bytes(), upload->PartSize(index), scratch));
        WW_RETURN_IF_ERROR(upload->WritePart(index, bytes));
        if (options.progress) options.progress(bytes.size());
        return Ok();
      });
  Status right = written.ok() ? check() : written;
  if (!right.ok()) {
    // Whether giving up works changes nothing: services remove old parts themselves.
    (void)upload->Abort();
    return right;
  }
  return upload->Finish();
}

}  // namespace

Result<std::span<const std::uint8_t>> FileSource::Bytes(std::uint64_t offset, std::uint64_t size,
                                                        std::vector<std::uint8_t>& scratch) {
  if (scratch.size() < size) scratch.resize(size);
  const std::span<std::uint8_t> out = std::span(scratch).first(size);
  WW_RETURN_IF_ERROR(file_->ReadAt(offset, out));
  return std::span<const std::uint8_t>(out);
}

std::span<std::uint8_t> FileSink::Room(std::uint64_t /*offset*/, std::uint64_t size,
                                       std::vector<std::uint8_t>& scratch) {
  if (scratch.size() < size) scratch.resize(size);
  return std::span(scratch).first(size);
}

Status UploadObject(Store& store, std::string_view key, ByteSource& source, const Sha256Digest& hash,
                    const TransferOptions& options) {
  const std::uint64_t size = source.size_bytes();
  std::vector<Sha256Digest> chunks(HashChunkCount(size));
  const auto damaged = [&] {
    return options.check_source ? CompareHash(chunks, hash, fmt::format("cannot upload {}", key)) : Ok();
  };

  if (size <= options.single_put_bytes) {
    std::vector<std::uint8_t> scratch;
    WW_TRY(const auto bytes, source.Bytes(0, size, scratch));
    if (options.check_source) HashChunks(bytes, chunks);
    WW_RETURN_IF_ERROR(damaged());
    WW_RETURN_IF_ERROR(store.Put(key, bytes));
    if (options.progress) options.progress(size);
    return Ok();
  }

  const auto there = store.Stat(key);
  if (there.ok() && there.value().size_bytes == size) {
    if (options.progress) options.progress(size);
    return Ok();
  }
  if (!there.ok() && there.error().code() != ErrorCode::kNotFound) return there.error();

  return UploadParts(store, key, size, options, damaged,
                     [&](std::uint64_t offset, std::uint64_t part_bytes,
                         std::vector<std::uint8_t>& scratch) -> Result<std::span<const std::uint8_t>> {
                       WW_TRY(const auto bytes, source.Bytes(offset, part_bytes, scratch));
                       if (options.check_source) HashChunks(bytes, ChunksAt(chunks, offset, bytes.size()));
                       return bytes;
                     });
}

Status PutInParallel(Store& store, std::string_view key, std::span<const std::uint8_t> bytes,
                     const TransferOptions& options) {
  return UploadParts(store, key, bytes.size(), options, Ok,
                     [&](std::uint64_t offset, std::uint64_t part_bytes, std::vector<std::uint8_t>& /*scratch*/)
                         -> Result<std::span<const std::uint8_t>> { return bytes.subspan(offset, part_bytes); });
}

Status DownloadObject(Store& store, std::string_view key, std::uint64_t size_bytes, const Sha256Digest& hash,
                      ByteSink& sink, const TransferOptions& options) {
  WW_CHECK(options.read_bytes >= 1 && options.read_bytes % kHashChunkBytes == 0);
  std::vector<Sha256Digest> chunks(HashChunkCount(size_bytes));
  const std::uint64_t count = (size_bytes + options.read_bytes - 1) / options.read_bytes;
  WW_RETURN_IF_ERROR(
      ForAllPieces(count, options.threads, [&](std::uint64_t index, std::vector<std::uint8_t>& scratch) -> Status {
        const std::uint64_t offset = index * options.read_bytes;
        const std::span<std::uint8_t> room =
            sink.Room(offset, std::min(options.read_bytes, size_bytes - offset), scratch);
        WW_RETURN_IF_ERROR(store.Read(key, offset, room));
        HashChunks(room, ChunksAt(chunks, offset, room.size()));
        WW_RETURN_IF_ERROR(sink.Take(offset, room));
        if (options.progress) options.progress(room.size());
        return Ok();
      }));
  return CompareHash(chunks, hash, fmt::format("object {} in {} is damaged", key, store.Name()));
}

Status ReadInParallel(Store& store, std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out,
                      const TransferOptions& options) {
  const std::uint64_t count = (out.size() + options.read_bytes - 1) / options.read_bytes;
  return ForAllPieces(count, options.threads, [&](std::uint64_t index, std::vector<std::uint8_t>& /*scratch*/) {
    const std::uint64_t start = index * options.read_bytes;
    return store.Read(key, offset + start, out.subspan(start, std::min(options.read_bytes, out.size() - start)));
  });
}

}  // namespace weightwire
