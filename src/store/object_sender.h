// Sends one object of known size whose bytes are made in order: by one request if it is small (kSinglePutBytes),
// otherwise part by part. Memory: one part. For bytes that are in memory already: PutObject (transfer.h).
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/object_hash.h"
#include "base/result.h"
#include "store/store.h"

namespace weightwire {

class ObjectSender {
 public:
  // Gives the next bytes of the object.
  using Fill = std::function<Status(std::span<std::uint8_t> out)>;

  // The store must outlive it. Do not use it again after an error of Begin or Step, because the store may not know the
  // upload.
  ObjectSender(Store& store, std::string key, std::uint64_t size_bytes)
      : store_(store), key_(std::move(key)), size_bytes_(size_bytes) {}

  Status Begin();
  // Sends a piece, or ends the object: true once it is there. REQUIRES: begun.
  Result<bool> Step(const Fill& fill);

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] std::uint64_t bytes_sent() const { return bytes_sent_; }
  // The object hash. REQUIRES: complete. Once.
  [[nodiscard]] Sha256Digest Hash() { return hasher_.Finish(); }

 private:
  Store& store_;
  const std::string key_;
  const std::uint64_t size_bytes_;
  std::unique_ptr<Upload> upload_;  // none: small enough for one request
  std::uint64_t next_part_ = 0;
  std::uint64_t bytes_sent_ = 0;
  ObjectHasher hasher_;
};

}  // namespace weightwire
