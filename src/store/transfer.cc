#include "store/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

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

// For all indices, `threads` at a time.
Status ForAllParts(std::uint64_t count, std::size_t threads, const std::function<Status(std::uint64_t index)>& part) {
  WW_CHECK(threads >= 1);
  ThreadPool pool(std::min<std::uint64_t>(threads, std::max<std::uint64_t>(count, 1)));
  FirstError error;
  pool.ParallelFor(count, [&](std::size_t index, std::size_t) {
    if (error.failed()) return;
    if (const Status done = part(index); !done.ok()) error.Note(done.error());
  });
  return error.Get();
}

// Reads all parts; then(offset, part) is called for each once it is there.
template <typename Then>
Status ReadParts(Store& store, std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out,
                 const TransferOptions& options, Then&& then) {
  WW_CHECK(options.read_bytes >= 1);
  const std::uint64_t count = (out.size() + options.read_bytes - 1) / options.read_bytes;
  return ForAllParts(count, options.threads, [&](std::uint64_t index) -> Status {
    const std::uint64_t start = index * options.read_bytes;
    const std::span<std::uint8_t> part = out.subspan(start, std::min(options.read_bytes, out.size() - start));
    WW_RETURN_IF_ERROR(store.Read(key, offset + start, part));
    then(start, part);
    return Ok();
  });
}

}  // namespace

Status WritePartsInParallel(Upload& upload, std::uint64_t first_part, std::span<const std::uint8_t> bytes,
                            std::size_t threads) {
  const std::uint64_t count = (bytes.size() + upload.part_bytes() - 1) / upload.part_bytes();
  return ForAllParts(count, threads, [&](std::uint64_t i) {
    return upload.WritePart(first_part + i, bytes.subspan(i * upload.part_bytes(), upload.PartSize(first_part + i)));
  });
}

Status PutObject(Store& store, std::string_view key, std::span<const std::uint8_t> bytes,
                 const TransferOptions& options) {
  if (bytes.size() <= options.single_put_bytes) return store.Put(key, bytes);
  WW_TRY(const std::unique_ptr<Upload> upload, store.StartUpload(key, bytes.size()));
  Status written = WritePartsInParallel(*upload, 0, bytes, options.threads);
  if (!written.ok()) {
    // Whether giving up works changes nothing: services remove old parts themselves.
    (void)upload->Abort();
    return written;
  }
  return upload->Finish();
}

Status ReadInParallel(Store& store, std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out,
                      const TransferOptions& options) {
  return ReadParts(store, key, offset, out, options, [](std::uint64_t, std::span<const std::uint8_t>) {});
}

Status DownloadObject(Store& store, std::string_view key, const Sha256Digest& hash, std::span<std::uint8_t> out,
                      const TransferOptions& options) {
  WW_CHECK(options.read_bytes % kHashChunkBytes == 0);
  std::vector<Sha256Digest> chunks(HashChunkCount(out.size()));
  const auto hash_part = [&](std::uint64_t start, std::span<const std::uint8_t> part) {
    HashChunks(part, std::span(chunks).subspan(start / kHashChunkBytes, HashChunkCount(part.size())));
  };
  WW_RETURN_IF_ERROR(ReadParts(store, key, 0, out, options, hash_part));
  if (ObjectHashOfChunks(chunks) == hash) return Ok();
  return Error(ErrorCode::kCorrupt, fmt::format("object {} in {} is damaged: its bytes do not have the hash {}", key,
                                                store.Name(), ToHex(hash)));
}

}  // namespace weightwire
