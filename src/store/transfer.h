// Moves large objects in parts, several at a time, with bounded memory, and computes the object hash
// (base/object_hash.h) on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/sha256.h"
#include "store/store.h"

namespace weightwire {

struct TransferOptions {
  // Requests at a time. Memory for buffers is at most this many parts.
  std::size_t threads = 4;
  // An object up to this size is written by one Put: one request instead of three.
  std::uint64_t single_put_bytes = std::uint64_t{16} << 20;
  // What one request of a download reads: a multiple of kHashChunkBytes.
  std::uint64_t read_bytes = std::uint64_t{8} << 20;
  // Whether an upload hashes its source again and compares. Not needed for bytes that were hashed where they lie now;
  // it costs about as much as sending them over a fast line.
  bool check_source = true;
  // Told of bytes as they are done, by any of the threads; may be empty.
  std::function<void(std::uint64_t bytes)> progress;
};

// What is uploaded: bytes that can be read at any offset, by several threads at once, and always the same.
class ByteSource {
 public:
  ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  virtual ~ByteSource() = default;

  [[nodiscard]] virtual std::uint64_t size_bytes() const = 0;
  // The bytes [offset, offset + size): either where they are, or read into `scratch`.
  virtual Result<std::span<const std::uint8_t>> Bytes(std::uint64_t offset, std::uint64_t size,
                                                      std::vector<std::uint8_t>& scratch) = 0;
};

// Bytes in memory; not owned.
class SpanSource final : public ByteSource {
 public:
  explicit SpanSource(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  [[nodiscard]] std::uint64_t size_bytes() const override { return bytes_.size(); }
  Result<std::span<const std::uint8_t>> Bytes(std::uint64_t offset, std::uint64_t size,
                                              std::vector<std::uint8_t>& /*scratch*/) override {
    return bytes_.subspan(offset, size);
  }

 private:
  const std::span<const std::uint8_t> bytes_;
};

// The first `size_bytes` of a file, which must outlive it.
class FileSource final : public ByteSource {
 public:
  FileSource(const File* file, std::uint64_t size_bytes) : file_(file), size_bytes_(size_bytes) {}
  [[nodiscard]] std::uint64_t size_bytes() const override { return size_bytes_; }
  Result<std::span<const std::uint8_t>> Bytes(std::uint64_t offset, std::uint64_t size,
                                              std::vector<std::uint8_t>& scratch) override;

 private:
  const File* const file_;
  const std::uint64_t size_bytes_;
};

// Where a download goes: any place that can be written at offsets, by several threads at once.
class ByteSink {
 public:
  ByteSink() = default;
  ByteSink(const ByteSink&) = delete;
  ByteSink& operator=(const ByteSink&) = delete;
  virtual ~ByteSink() = default;

  // Room for the bytes [offset, offset + size): either where they are to be, or `scratch`, made large enough.
  virtual std::span<std::uint8_t> Room(std::uint64_t offset, std::uint64_t size,
                                       std::vector<std::uint8_t>& scratch) = 0;
  // `bytes` is what Room gave for this offset, now filled.
  virtual Status Take(std::uint64_t offset, std::span<const std::uint8_t> bytes) = 0;
};

// Memory; not owned. REQUIRES: as large as the object.
class SpanSink final : public ByteSink {
 public:
  explicit SpanSink(std::span<std::uint8_t> bytes) : bytes_(bytes) {}
  std::span<std::uint8_t> Room(std::uint64_t offset, std::uint64_t size,
                               std::vector<std::uint8_t>& /*scratch*/) override {
    return bytes_.subspan(offset, size);
  }
  Status Take(std::uint64_t /*offset*/, std::span<const std::uint8_t> /*bytes*/) override { return Ok(); }

 private:
  const std::span<std::uint8_t> bytes_;
};

// A file open for writing, which must outlive it.
class FileSink final : public ByteSink {
 public:
  explicit FileSink(const File* file) : file_(file) {}
  std::span<std::uint8_t> Room(std::uint64_t offset, std::uint64_t size, std::vector<std::uint8_t>& scratch) override;
  Status Take(std::uint64_t offset, std::span<const std::uint8_t> bytes) override {
    return file_->WriteAt(offset, bytes);
  }

 private:
  const File* const file_;
};

// Uploads the source under a key that holds its object hash, `hash`. A large object that is there already with the same
// size is not uploaded again. If the source turns out to have another hash (see check_source), that is kCorrupt and no
// object appears.
// A failed upload is given up in the store as well.
Status UploadObject(Store& store, std::string_view key, ByteSource& source, const Sha256Digest& hash,
                    const TransferOptions& options);

// Downloads an object of which size and object hash are known. The hash can be compared only at the end: until this
// returns success, what is in the sink must not be used. Another size or hash is kCorrupt.
Status DownloadObject(Store& store, std::string_view key, std::uint64_t size_bytes, const Sha256Digest& hash,
                      ByteSink& sink, const TransferOptions& options);

// The same without a hash to compare with: what a store's Put and Read do, in parts.
Status PutInParallel(Store& store, std::string_view key, std::span<const std::uint8_t> bytes,
                     const TransferOptions& options);
Status ReadInParallel(Store& store, std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out,
                      const TransferOptions& options);

}  // namespace weightwire
