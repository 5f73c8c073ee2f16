// A store whose large reads and writes are done in parts, several at a time.
//
// For callers that have no threads of their own: Read and Put of many bytes become ranged reads and an upload, and an
// upload takes several of the inner store's parts as one of its own, which are then sent at a time. Small ones, and all
// other calls, go through as they are. A large PutIfAbsent stays one request, since an upload cannot be
// made conditional. A large Put is for keys that hold a hash, as all large objects of a run do: after a lost answer an
// object of the same size counts as written (retry_store.h).
#pragma once

#include <memory>

#include "store/store.h"
#include "store/transfer.h"

namespace weightwire {

class ParallelStore final : public Store {
 public:
  ParallelStore(std::unique_ptr<Store> inner, TransferOptions options);

  [[nodiscard]] std::string Name() const override { return inner_->Name(); }
  Result<WallTime> Now() override { return inner_->Now(); }

 private:
  Result<std::vector<std::uint8_t>> DoGet(std::string_view key, std::uint64_t max_bytes) override;
  Status DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) override;
  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Result<ObjectInfo> DoStat(std::string_view key) override;
  Result<std::vector<ObjectInfo>> DoList(std::string_view prefix, std::string_view start_after,
                                         std::size_t limit) override;
  Status DoRemove(std::string_view key) override;
  Result<std::unique_ptr<Upload>> DoStartUpload(std::string_view key, std::uint64_t size_bytes) override;

  const std::unique_ptr<Store> inner_;
  const TransferOptions options_;
};

}  // namespace weightwire
