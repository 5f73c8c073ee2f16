// A store in a bucket of S3 or of a service that speaks its protocol.
//
// Requests are signed by libcurl (SigV4). Objects are written by single PutObject calls, those that must not exist yet
// under "If-None-Match: *"; large ones in parts. What services do differently is in S3Service, as data.
//
// A read that is answered with a redirect (302) is repeated at the given address, with nothing but the range: no
// credentials travel to another host.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "store/credentials/credentials.h"
#include "store/http/http.h"
#include "store/http/server_date.h"
#include "store/store.h"

namespace weightwire {

// Where a service is and what it does in its own way.
struct S3Service {
  // "https://host[:port][/path]", without a "/" at the end.
  std::string endpoint;
  std::string region = "us-east-1";
  // The bucket as the first part of the host's name instead of the path.
  bool bucket_in_host = false;
  // Lists only one folder at a time, with the delimiter "/" (Hugging Face).
  bool lists_by_folder = false;
  // How to get keys for it, appended when it refuses; may be empty.
  std::string how_to_get_keys;
};

struct S3Options {
  S3Service service;
  std::string bucket;
  // Where in the bucket the run is: empty, or a key without "/" at either end.
  std::string prefix;
  // What messages call the store.
  std::string name;
  // Nothing: requests are not signed.
  std::shared_ptr<CredentialSource> credentials;
  HttpOptions http;
};

class S3Store final : public Store {
 public:
  // `clock` must outlive the store.
  S3Store(S3Options options, const Clock* clock);
  ~S3Store() override;

  [[nodiscard]] std::string Name() const override { return options_.name; }

  // From the Date header of a recent answer; else by a request.
  Result<WallTime> Now() override;

  // Where the object lies, for other programs.
  [[nodiscard]] std::string AddressOf(std::string_view key) const { return UrlOf(FullKey(key), ""); }

  // Makes the bucket, for tests and measurements. One that we own already is fine.
  Status CreateBucket();

 private:
  struct Request;
  class S3Upload;

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
  [[nodiscard]] std::string UrlOf(std::string_view key, const std::string& query) const;

  // Sends a request, signed, and once more with new credentials if it is refused because the old ones expired. Any
  // answer is a success here.
  Result<HttpAnswer> Send(const Request& request);
  Result<HttpAnswer> SendOnce(const Request& request);
  // For reads: goes on to where a 302 points, without credentials.
  Result<HttpAnswer> Fetch(const Request& request);

  // The error for an answer that is not a success. Its code says whether the request may be repeated: a 503 of the
  // service is kUnavailable; a proxy's 503 to a write is kUnknownOutcome, because the write may have happened.
  [[nodiscard]] Error ClassifyAnswer(const Request& request, const HttpAnswer& answer) const;
  // Of a transport error, what it means for a read or a write.
  [[nodiscard]] Error Failure(const Request& request, const Error& error) const;

  Result<ObjectInfo> StatByList(std::string_view key);
  Status ListFlat(std::string_view prefix, std::string_view start_after, std::size_t limit,
                  std::vector<ObjectInfo>* found);
  Status ListFolder(const std::string& folder, std::string_view name_prefix, std::string_view start_after,
                    std::size_t limit, std::vector<ObjectInfo>* found);
  // Takes the run's prefix off; nothing when it is no key of ours.
  [[nodiscard]] std::optional<std::string> OwnKey(std::string_view full_key) const;

  const S3Options options_;
  const Clock* const clock_;
  HttpClient http_;
  ServerDate date_;
};

}  // namespace weightwire
