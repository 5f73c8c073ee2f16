// A bucket of Hugging Face, read over the Hub's own HTTP interface: with a token, or without if it is public. Writing
// needs the S3 gateway (s3_store.h) and its keys; here it is refused with a sentence that says how to get them.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/secret.h"
#include "store/http/http.h"
#include "store/http/server_date.h"
#include "store/store.h"

namespace weightwire {

// How to get keys for the gateway, for messages.
extern const char* const kHowToGetHfKeys;

struct HfHubOptions {
  // "https://huggingface.co".
  std::string endpoint;
  // "owner/name".
  std::string bucket;
  // Where in the bucket the run is: empty, or a key.
  std::string prefix;
  // What messages call the store.
  std::string name;
  Secret token;  // empty: none
  HttpOptions http;
};

class HfHubStore final : public Store {
 public:
  // `clock` must outlive the store.
  HfHubStore(HfHubOptions options, const Clock* clock);

  [[nodiscard]] std::string Name() const override { return options_.name; }
  Result<WallTime> Now() override;

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

  [[nodiscard]] std::string FullKey(std::string_view key) const;
  // Sends with the token and, for reads of objects, goes on to where it is redirected, without.
  Result<HttpAnswer> Send(HttpRequest request, std::string_view doing, std::string_view key);
  [[nodiscard]] Error ClassifyAnswer(std::string_view doing, std::string_view key, const HttpAnswer& answer) const;
  [[nodiscard]] Error ReadOnly(std::string_view doing, std::string_view key) const;
  // Entries of an answer in JSON, with the run's prefix taken off; those that are no objects of ours are left out.
  Result<std::vector<ObjectInfo>> ParseEntries(std::string_view json) const;

  const HfHubOptions options_;
  HttpClient http_;
  ServerDate date_;
};

}  // namespace weightwire
