// A store that forwards every request to an inner store: the base of all wrappers.
//
// A wrapper overrides one of two things:
//   DoGet, DoRead, …  if it changes one kind of request;
//   Around            if it does the same about all of them: retries, counts, delays or fails them.
// The requests of an upload go through Around as well.
//
// Thread safety: that of the inner store.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "store/store.h"

namespace weightwire {

enum class StoreOperation : std::uint8_t {
  kNow,
  kGet,
  kRead,
  kPut,
  kPutIfAbsent,
  kStat,
  kList,
  kRemove,
  kStartUpload,
  kWritePart,
  kFinishUpload,
  kAbortUpload,
};

// "get", "put-if-absent", "start-upload", …
[[nodiscard]] std::string_view NameOf(StoreOperation operation);
// True if the operation changes the store, so that its answer may be lost.
[[nodiscard]] bool IsWrite(StoreOperation operation);

struct StoreRequest {
  StoreOperation operation = StoreOperation::kNow;
  std::string_view key = "";       // the prefix of a list; empty for kNow
  std::uint64_t sent_bytes = 0;    // of the object or part that is written
  std::uint64_t wanted_bytes = 0;  // of kRead
  std::uint64_t object_bytes = 0;  // of the requests of an upload: its size
  // Results of the last call of Send.
  std::uint64_t received_bytes = 0;
  bool exists = false;  // kPutIfAbsent found an object
};

class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(std::unique_ptr<Store> inner) : owned_(std::move(inner)), inner_(*owned_) {}
  // `inner` must outlive this store.
  explicit ForwardingStore(Store& inner) : inner_(inner) {}

  [[nodiscard]] std::string Name() const override { return inner_.Name(); }
  Result<WallTime> Now() override;

 protected:
  // Forwards the request to the inner store.
  using Send = std::function<Status()>;

  [[nodiscard]] Store& inner() const { return inner_; }

  Result<std::vector<std::uint8_t>> DoGet(std::string_view key, std::uint64_t max_bytes) override;
  Status DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) override;
  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Result<ObjectInfo> DoStat(std::string_view key) override;
  Result<std::vector<ObjectInfo>> DoList(std::string_view prefix, std::string_view start_after,
                                         std::size_t limit) override;
  Status DoRemove(std::string_view key) override;
  Result<std::unique_ptr<Upload>> DoStartUpload(std::string_view key, std::uint64_t size_bytes) override;

 private:
  class ForwardingUpload;

  // Called for every request; may call `send` any number of times. The caller gets the error that Around returns, or
  // what the last `send` brought. REQUIRES: Around returns success only if the last `send` did.
  virtual Status Around(StoreRequest& request, const Send& send);

  // Makes `call` through Around.
  template <typename T, typename Call>
  Result<T> Forward(StoreRequest request, const Call& call);

  const std::unique_ptr<Store> owned_;  // may be empty
  Store& inner_;
};

}  // namespace weightwire
