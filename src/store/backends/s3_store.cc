#include "store/backends/s3_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/sha256.h"
#include "store/http/decimal.h"
#include "store/http/range_answer.h"
#include "store/http/redirect.h"
#include "store/http/retryable_status.h"
#include "store/http/s3_xml.h"
#include "store/http/times.h"
#include "store/key.h"
#include "store/policy.h"

namespace weightwire {
namespace {

// Larger bodies are sent unhashed where TLS protects them on the way: to hash them costs client and server more than to
// move them. Over plain HTTP the signature covers every body.
constexpr std::size_t kMaxHashedBodyBytes = 1 << 20;
constexpr std::uint64_t kMaxPageBytes = 8 << 20;
constexpr std::size_t kPageEntries = 1000;
constexpr std::uint64_t kMaxParts = 10'000;
// After every byte of a key, so that "folder/" + this comes after all keys in the folder.
constexpr char kAfterAllKeys = '~';

bool IsSuccess(const HttpAnswer& answer) { return answer.status >= 200 && answer.status < 300; }

bool IsExpired(std::string_view code) {
  return code == "ExpiredToken" || code == "ExpiredTokenException" || code == "TokenRefreshRequired" ||
         code == "InvalidToken";
}

// The key is gone, or has another secret now: whoever rotates keys has put new ones where ours came from.
bool IsRotated(std::string_view code) { return code == "InvalidAccessKeyId" || code == "SignatureDoesNotMatch"; }

std::uint64_t PartBytesFor(std::uint64_t size_bytes) {
  std::uint64_t part = kS3PartBytes;
  while ((size_bytes + part - 1) / part > kMaxParts) part *= 2;
  return part;
}

}  // namespace

struct S3Store::Request {
  std::string_view doing;  // "read", "write", …, for messages
  std::string_view key;    // empty: the bucket itself
  std::string method = "GET";
  std::string query;  // sorted, encoded, without "?"
  std::vector<std::string> headers;
  std::span<const std::uint8_t> body;
  bool may_be_sent_twice = true;
  std::optional<std::span<std::uint8_t>> into;
  std::uint64_t max_body_bytes = 1 << 20;

  [[nodiscard]] bool writes() const { return method != "GET" && method != "HEAD"; }
};

class S3Store::S3Upload final : public Upload {
 public:
  S3Upload(S3Store* store, std::string_view key, std::uint64_t size_bytes, const std::string& id)
      : Upload(size_bytes, PartBytesFor(size_bytes)),
        store_(store),
        key_(key),
        id_query_("uploadId=" + PercentEncode(id, Slashes::kEncode)),
        etags_(part_count()) {}

  ~S3Upload() override {
    if (!done_) (void)Abort();
  }

  Status Finish() override {
    const std::string list = WriteS3PartList(etags_);
    Request request;
    request.doing = "finish the upload of";
    request.key = key_;
    request.method = "POST";
    request.query = id_query_;
    request.headers = {"Content-Type: application/xml"};
    request.body = BytesOf(list);
    request.may_be_sent_twice = false;
    WW_TRY(const HttpAnswer answer, store_->Send(request));
    // The status is sent before the work is done, so an error may come in the body of a 200.
    const S3Error error = ParseS3Error(answer.BodyText());
    if (IsSuccess(answer) && !error.code.empty()) {
      return Error(ErrorCode::kUnknownOutcome, fmt::format("cannot finish the upload of {} to {}: {} {}", key_,
                                                           store_->Name(), error.code, error.message));
    }
    if (!IsSuccess(answer)) return store_->ClassifyAnswer(request, answer);
    done_ = true;
    return Ok();
  }

  Status Abort() override {
    done_ = true;
    Request request;
    request.doing = "give up the upload of";
    request.key = key_;
    request.method = "DELETE";
    request.query = id_query_;
    WW_TRY(const HttpAnswer answer, store_->Send(request));
    if (!IsSuccess(answer) && answer.status != 404) return store_->ClassifyAnswer(request, answer);
    return Ok();
  }

 private:
  Status DoWritePart(std::uint64_t index, std::span<const std::uint8_t> bytes) override {
    Request request;
    request.doing = "upload a part of";
    request.key = key_;
    request.method = "PUT";
    request.query = fmt::format("partNumber={}&{}", index + 1, id_query_);
    request.body = bytes;
    WW_TRY(const HttpAnswer answer, store_->Send(request));
    if (!IsSuccess(answer)) return store_->ClassifyAnswer(request, answer);
    const std::string_view etag = answer.Header("etag");
    if (etag.empty()) {
      return Error(ErrorCode::kCorrupt,
                   fmt::format("cannot upload a part of {} to {}: the answer has no ETag", key_, store_->Name()));
    }
    // Each part has its own place, and whoever calls Finish waits for all writers first.
    etags_[index] = etag;
    return Ok();
  }

  S3Store* const store_;
  const std::string key_;
  const std::string id_query_;
  std::vector<std::string> etags_;
  bool done_ = false;
};

S3Store::S3Store(S3Options options, const Clock* clock)
    : options_(std::move(options)), clock_(clock), http_(options_.http), date_(clock) {}

S3Store::~S3Store() = default;

std::string S3Store::FullKey(std::string_view key) const {
  return options_.prefix.empty() ? std::string(key) : fmt::format("{}/{}", options_.prefix, key);
}

std::optional<std::string> S3Store::OwnKey(std::string_view full_key) const {
  const std::string run = FullKey("");
  if (!full_key.starts_with(run)) return {};
  full_key.remove_prefix(run.size());
  if (!CheckKey(full_key).ok()) return {};
  return std::string(full_key);
}

std::string S3Store::UrlOf(std::string_view key, const std::string& query) const {
  const S3Service& service = options_.service;
  std::string url;
  if (service.bucket_in_host) {
    const std::size_t host = service.endpoint.find("://") + 3;
    url = service.endpoint.substr(0, host) + options_.bucket + "." + service.endpoint.substr(host);
  } else {
    url = service.endpoint + "/" + PercentEncode(options_.bucket, Slashes::kEncode);
  }
  if (!key.empty()) url += "/" + PercentEncode(FullKey(key), Slashes::kKeep);
  if (key.empty() && service.bucket_in_host) url += "/";
  if (!query.empty()) url += "?" + query;
  return url;
}

Result<HttpAnswer> S3Store::SendOnce(const Request& request) {
  HttpRequest http;
  http.method = request.method;
  http.url = UrlOf(request.key, request.query);
  http.headers = request.headers;
  http.body = request.body;
  http.may_be_sent_twice = request.may_be_sent_twice;
  http.into = request.into;
  http.max_body_bytes = request.max_body_bytes;
  HttpSigning signing;
  if (options_.credentials != nullptr) {
    WW_TRY(const Credentials credentials, options_.credentials->Get());
    const bool hashed = request.body.size() <= kMaxHashedBodyBytes || !http.url.starts_with("https://");
    http.headers.push_back("x-amz-content-sha256: " + (hashed ? ToHex(Sha256Of(request.body)) : "UNSIGNED-PAYLOAD"));
    if (!credentials.session_token.empty()) {
      http.headers.push_back("x-amz-security-token: " + credentials.session_token.Reveal());
    }
    signing = {credentials.access_key, credentials.secret_key, options_.service.region};
    http.signing = &signing;
  }
  auto answer = http_.Perform(http);
  if (!answer.ok()) return Failure(request, answer.error());
  date_.Note(answer.value());
  return answer;
}

Result<HttpAnswer> S3Store::Send(const Request& request) {
  auto answer = SendOnce(request);
  if (!answer.ok() || IsSuccess(answer.value()) || options_.credentials == nullptr) return answer;
  const std::string code = ParseS3Error(answer.value().BodyText()).code;
  if ((IsExpired(code) || IsRotated(code)) && options_.credentials->Renew()) return SendOnce(request);
  return answer;
}

Result<HttpAnswer> S3Store::Fetch(const Request& request) {
  WW_TRY(HttpAnswer answer, Send(request));
  if (answer.status != 302) return answer;
  HttpRequest http;
  http.url = UrlOf(request.key, request.query);
  http.headers = request.headers;
  http.into = request.into;
  http.max_body_bytes = request.max_body_bytes;
  auto redirected = FollowRedirects(http_, http, std::move(answer));
  if (!redirected.ok()) return Failure(request, redirected.error());
  return redirected;
}

Error S3Store::Failure(const Request& request, const Error& error) const {
  ErrorCode code = error.code();
  // A read whose answer was lost can simply be asked again.
  if (!request.writes() && code == ErrorCode::kUnknownOutcome) code = ErrorCode::kUnavailable;
  return {code, fmt::format("cannot {} {} in {}: {}", request.doing, request.key, Name(), error.message())};
}

Error S3Store::ClassifyAnswer(const Request& request, const HttpAnswer& answer) const {
  const S3Error s3 = ParseS3Error(answer.BodyText());
  const auto error = [&](ErrorCode code, std::string_view why) {
    return Error(code, fmt::format("cannot {} {}{}in {}: {}", request.doing, request.key,
                                   request.key.empty() ? "" : " ", Name(), why));
  };
  const std::string said = s3.code.empty()      ? fmt::format("the store answers with status {}", answer.status)
                           : s3.message.empty() ? fmt::format("{} (status {})", s3.code, answer.status)
                                                : fmt::format("{} (status {}: {})", s3.code, answer.status, s3.message);
  const std::string keys =
      options_.service.how_to_get_keys.empty() ? "" : fmt::format("; {}", options_.service.how_to_get_keys);

  if (s3.code == "RequestTimeTooSkewed" || s3.code == "RequestInTheFuture" || s3.code == "RequestExpired") {
    const auto theirs = ParseHttpTime(answer.Header("date"));
    return error(
        ErrorCode::kRefused,
        fmt::format("the clocks differ too much for the store to accept our signature: here it is {}, there {}; "
                    "set this machine's clock",
                    FormatTime(clock_->Wall()), theirs ? FormatTime(*theirs) : "another time"));
  }
  if (IsExpired(s3.code)) return error(ErrorCode::kRefused, said + "; get new credentials" + keys);
  if (s3.code == "NoSuchBucket") {
    return error(ErrorCode::kInvalidArgument,
                 fmt::format("there is no bucket {} at {}; create it, or check endpoint and name", options_.bucket,
                             OriginOf(options_.service.endpoint)));
  }
  if (s3.code == "RequestTimeout" || s3.code == "BadDigest" || s3.code == "IncompleteBody" ||
      s3.code == "XAmzContentSHA256Mismatch") {
    return error(ErrorCode::kUnavailable, said);
  }
  switch (answer.status) {
    case 301:
    case 307:
    case 308: {
      const std::string_view region = answer.Header("x-amz-bucket-region");
      return error(ErrorCode::kInvalidArgument,
                   region.empty()
                       ? fmt::format("the bucket {} is elsewhere; check region and endpoint", options_.bucket)
                       : fmt::format("the bucket {} is in the region {}; set AWS_REGION or ?region= to that",
                                     options_.bucket, region));
    }
    case 401:
    case 403:
      return error(ErrorCode::kRefused,
                   fmt::format("{}; check the credentials and what they are allowed{}", said, keys));
    case 404:
      if (!request.key.empty()) return ObjectNotFound(request.key, *this);
      return error(ErrorCode::kInvalidArgument, said);
    case 409:
      return error(ErrorCode::kUnavailable, said);
    case 501:
      return error(ErrorCode::kUnsupported, said);
    default:
      break;
  }
  if (IsRetryableStatus(answer.status)) {
    // A 503 with an S3 error comes from the service, which did nothing; without, from a proxy.
    const bool did_nothing = answer.status < 500 || (answer.status == 503 && !s3.code.empty());
    return error(did_nothing || !request.writes() ? ErrorCode::kUnavailable : ErrorCode::kUnknownOutcome, said);
  }
  if (answer.status >= 400) return error(ErrorCode::kInvalidArgument, said);
  return error(ErrorCode::kCorrupt, said);
}

Result<std::vector<std::uint8_t>> S3Store::DoGet(std::string_view key, std::uint64_t max_bytes) {
  Request request;
  request.doing = "read";
  request.key = key;
  request.max_body_bytes = max_bytes;
  auto answer = Fetch(request);
  if (!answer.ok() && answer.error().code() == ErrorCode::kLimit) {
    return Error(ErrorCode::kLimit,
                 fmt::format("object {} in {} has more than the {} bytes it may have", key, Name(), max_bytes));
  }
  if (!answer.ok()) return answer.error();
  if (answer.value().status != 200) return ClassifyAnswer(request, answer.value());
  return std::move(answer.value().body);
}

Status S3Store::DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) {
  Request request;
  request.doing = "read";
  request.key = key;
  request.headers = {fmt::format("Range: bytes={}-{}", offset, offset + out.size() - 1)};
  request.into = out;
  return CheckRangeAnswer(*this, key, offset, out.size(), Fetch(request),
                          [&](const HttpAnswer& answer) { return ClassifyAnswer(request, answer); });
}

Status S3Store::DoPut(std::string_view key, std::span<const std::uint8_t> bytes) {
  Request request;
  request.doing = "write";
  request.key = key;
  request.method = "PUT";
  request.headers = {"Content-Type: application/octet-stream"};
  request.body = bytes;
  WW_TRY(const HttpAnswer answer, Send(request));
  if (!IsSuccess(answer)) return ClassifyAnswer(request, answer);
  return Ok();
}

Result<PutOutcome> S3Store::DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) {
  Request request;
  request.doing = "create";
  request.key = key;
  request.method = "PUT";
  request.headers = {"Content-Type: application/octet-stream", "If-None-Match: *"};
  request.body = bytes;
  request.may_be_sent_twice = false;
  WW_TRY(const HttpAnswer answer, Send(request));
  if (answer.status == 412) return PutOutcome::kExists;
  if (!IsSuccess(answer)) return ClassifyAnswer(request, answer);
  return PutOutcome::kCreated;
}

Result<ObjectInfo> S3Store::DoStat(std::string_view key) {
  Request request;
  request.doing = "look at";
  request.key = key;
  request.method = "HEAD";
  WW_TRY(const HttpAnswer answer, Send(request));
  // An address for reading is not one for looking.
  if (answer.status == 302) return StatByList(key);
  if (answer.status == 400 || answer.status == 403) {
    // An answer to HEAD cannot say why. A read of one byte gets the reason, or new credentials.
    std::uint8_t byte = 0;
    const Status read = DoRead(key, 0, {&byte, 1});
    if (!read.ok() && read.error().code() == ErrorCode::kRefused) return read.error();
    return StatByList(key);
  }
  if (answer.status != 200) return ClassifyAnswer(request, answer);
  const auto size = ParseDecimal(answer.Header("content-length"));
  const auto time = ParseHttpTime(answer.Header("last-modified"));
  if (!size || !time) {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("cannot look at {} in {}: the answer has no size or time", key, Name()));
  }
  return ObjectInfo{std::string(key), *size, *time};
}

Result<ObjectInfo> S3Store::StatByList(std::string_view key) {
  WW_TRY(const std::vector<ObjectInfo> found, DoList(key, "", 1));
  if (found.empty() || found[0].key != key) return ObjectNotFound(key, *this);
  return found[0];
}

Result<std::vector<ObjectInfo>> S3Store::DoList(std::string_view prefix, std::string_view start_after,
                                                std::size_t limit) {
  std::vector<ObjectInfo> found;
  if (options_.service.lists_by_folder) {
    const std::size_t slash = prefix.rfind('/');
    const std::string folder(slash == std::string_view::npos ? "" : prefix.substr(0, slash + 1));
    WW_RETURN_IF_ERROR(ListFolder(folder, prefix, start_after, limit, &found));
  } else {
    WW_RETURN_IF_ERROR(ListFlat(prefix, start_after, limit, &found));
  }
  return found;
}

Status S3Store::ListFlat(std::string_view prefix, std::string_view start_after, std::size_t limit,
                         std::vector<ObjectInfo>* found) {
  std::string after = start_after.empty() ? "" : FullKey(start_after);
  while (true) {
    Request request;
    request.doing = "list";
    request.query = "list-type=2&max-keys=" + std::to_string(std::min(kPageEntries, limit - found->size()));
    request.query += "&prefix=" + PercentEncode(FullKey(prefix), Slashes::kEncode);
    if (!after.empty()) request.query += "&start-after=" + PercentEncode(after, Slashes::kEncode);
    request.max_body_bytes = kMaxPageBytes;
    WW_TRY(const HttpAnswer answer, Send(request));
    if (answer.status != 200) return ClassifyAnswer(request, answer);
    WW_TRY(const S3Page page, ParseS3Page(answer.BodyText()));
    const std::string before_page = after;
    for (const ObjectInfo& object : page.objects) {
      // Each must come after the last, or we would go in circles, or show keys twice.
      if (!after.empty() && object.key <= after) continue;
      after = object.key;
      if (auto own = OwnKey(object.key); own && own->starts_with(prefix)) {
        found->push_back({std::move(*own), object.size_bytes, object.last_modified});
      }
      if (found->size() == limit) return Ok();
    }
    if (!page.truncated) return Ok();
    if (after == before_page) {
      return Error(ErrorCode::kCorrupt, fmt::format("cannot list {}: the store's pages do not go on", Name()));
    }
  }
}

// `folder` is empty or ends in "/"; keys must also start with `prefix`, which may be longer or shorter.
Status S3Store::ListFolder(const std::string& folder, std::string_view prefix, std::string_view start_after,
                           std::size_t limit, std::vector<ObjectInfo>* found) {
  std::string after;
  if (start_after.starts_with(folder) && start_after.size() > folder.size()) {
    // Within the folder "b/" of "b/c/d", go on after "b/c": that leaves "b/c/" in, by its own name.
    after = FullKey(start_after.substr(0, start_after.find('/', folder.size())));
  } else if (start_after > folder) {
    return Ok();  // every key of the folder comes before
  }
  while (true) {
    Request request;
    request.doing = "list";
    request.query = fmt::format("delimiter=%2F&list-type=2&max-keys={}", kPageEntries);
    const std::string_view wanted = prefix.size() > folder.size() ? prefix : folder;
    request.query += "&prefix=" + PercentEncode(FullKey(wanted), Slashes::kEncode);
    if (!after.empty()) request.query += "&start-after=" + PercentEncode(after, Slashes::kEncode);
    request.max_body_bytes = kMaxPageBytes;
    WW_TRY(const HttpAnswer answer, Send(request));
    if (answer.status != 200) return ClassifyAnswer(request, answer);
    WW_TRY(S3Page page, ParseS3Page(answer.BodyText()));
    // Objects and folders in one order.
    std::vector<ObjectInfo> entries = std::move(page.objects);
    for (std::string& name : page.folders) entries.push_back({std::move(name), 0, WallTime()});
    std::ranges::sort(entries, {}, &ObjectInfo::key);
    const std::string before_page = after;
    for (const ObjectInfo& entry : entries) {
      const bool is_folder = entry.key.ends_with('/');
      if (!after.empty() && entry.key <= after) continue;
      after = is_folder ? entry.key + kAfterAllKeys : entry.key;
      const auto own = OwnKey(is_folder ? entry.key.substr(0, entry.key.size() - 1) : entry.key);
      if (!own) continue;
      if (is_folder) {
        WW_RETURN_IF_ERROR(ListFolder(*own + "/", prefix, start_after, limit, found));
      } else if (own->starts_with(prefix) && (start_after.empty() || *own > start_after)) {
        found->push_back({*own, entry.size_bytes, entry.last_modified});
      }
      if (found->size() == limit) return Ok();
    }
    if (!page.truncated) return Ok();
    if (after == before_page) {
      return Error(ErrorCode::kCorrupt, fmt::format("cannot list {}: the store's pages do not go on", Name()));
    }
  }
}

Status S3Store::DoRemove(std::string_view key) {
  Request request;
  request.doing = "remove";
  request.key = key;
  request.method = "DELETE";
  WW_TRY(const HttpAnswer answer, Send(request));
  if (IsSuccess(answer)) return Ok();
  const Error refusal = ClassifyAnswer(request, answer);
  if (refusal.code() == ErrorCode::kNotFound) return Ok();
  return refusal;
}

Result<std::unique_ptr<Upload>> S3Store::DoStartUpload(std::string_view key, std::uint64_t size_bytes) {
  Request request;
  request.doing = "start the upload of";
  request.key = key;
  request.method = "POST";
  request.query = "uploads=";
  request.headers = {"Content-Type: application/octet-stream"};
  auto answer = Send(request);
  // An upload that may have been started unseen does no harm: services remove it in the end.
  const auto harmless = [](const Error& error) {
    return error.code() == ErrorCode::kUnknownOutcome ? Error(ErrorCode::kUnavailable, error.message()) : error;
  };
  if (!answer.ok()) return harmless(answer.error());
  if (!IsSuccess(answer.value())) return harmless(ClassifyAnswer(request, answer.value()));
  WW_TRY(const std::string id, ParseS3UploadId(answer.value().BodyText()));
  return std::unique_ptr<Upload>(std::make_unique<S3Upload>(this, key, size_bytes, id));
}

Result<WallTime> S3Store::Now() {
  if (const auto now = date_.Now()) return *now;
  // Any answer has a date.
  Request request;
  request.doing = "ask for the time by";
  request.method = "HEAD";
  request.key = "run.json";
  WW_TRY(const HttpAnswer answer, Send(request));
  if (const auto now = date_.Now()) return *now;
  return Error(ErrorCode::kUnsupported, fmt::format("{} does not say what time it is", Name()));
}

Status S3Store::CreateBucket() {
  Request request;
  request.doing = "create the bucket";
  request.method = "PUT";
  WW_TRY(const HttpAnswer answer, Send(request));
  if (!IsSuccess(answer) && ParseS3Error(answer.BodyText()).code != "BucketAlreadyOwnedByYou") {
    return ClassifyAnswer(request, answer);
  }
  return Ok();
}

}  // namespace weightwire
