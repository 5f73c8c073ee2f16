// A store whose large reads and writes are done in parts, several at a time.
//
// For callers that have no threads of their own: Read and Put of many bytes become ranged reads and an upload, and an
// upload takes several of the inner store's parts as one of its own, which are then sent at a time. Small ones, and all
// other calls, go through as they are. A large PutIfAbsent stays one request, since an upload cannot be
// made conditional. A large Put is for keys that hold a hash, as all large objects of a run do: after a lost answer an
// object of the same size counts as written (retry_store.h).
#pragma once

#include <memory>

#include "store/transfer.h"
#include "store/wrappers/forwarding_store.h"

namespace weightwire {

class ParallelStore final : public ForwardingStore {
 public:
  ParallelStore(std::unique_ptr<Store> inner, TransferOptions options);

 private:
  Status DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) override;
  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Result<std::unique_ptr<Upload>> DoStartUpload(std::string_view key, std::uint64_t size_bytes) override;

  const TransferOptions options_;
};

}  // namespace weightwire
