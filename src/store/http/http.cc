#include "store/http/http.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/check.h"

namespace weightwire {
namespace {

constexpr std::size_t kMaxHeaderCount = 200;
constexpr std::size_t kMaxHeaderBytes = 64 << 10;
constexpr long kReceiveBufferBytes = 512 << 10;
constexpr long kSendBufferBytes = 1 << 20;

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

struct FreeHandle {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
using Handle = std::unique_ptr<CURL, FreeHandle>;

void InitializeCurlOnce() {
  static std::once_flag once;
  std::call_once(once, [] { WW_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK); });
}

// One request under way: what curl's callbacks see.
struct Exchange {
  explicit Exchange(const HttpRequest& request, CURL* handle) : request(request), handle(handle) {}

  const HttpRequest& request;
  CURL* const handle;
  std::size_t sent_bytes = 0;
  HttpAnswer answer;
  std::size_t header_bytes = 0;
  bool too_many_headers = false;
  bool body_too_long = false;

  [[nodiscard]] bool Succeeded() const { return answer.status >= 200 && answer.status < 300; }
};

std::size_t SendBody(char* to, std::size_t size, std::size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  const auto rest = exchange.request.body.subspan(exchange.sent_bytes);
  const std::size_t bytes = std::min(size * count, rest.size());
  if (bytes > 0) std::memcpy(to, rest.data(), bytes);
  exchange.sent_bytes += bytes;
  return bytes;
}

int RewindBody(void* user, curl_off_t offset, int origin) {
  if (origin != SEEK_SET || offset < 0) return CURL_SEEKFUNC_CANTSEEK;
  auto& exchange = *static_cast<Exchange*>(user);
  if (static_cast<std::uint64_t>(offset) > exchange.request.body.size()) return CURL_SEEKFUNC_FAIL;
  exchange.sent_bytes = static_cast<std::size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

std::size_t TakeHeader(char* from, std::size_t size, std::size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  const std::string_view line(from, size * count);
  // The head of a new answer: what came before was only "100 Continue" or the like.
  if (line.starts_with("HTTP/")) {
    exchange.answer = HttpAnswer();
    long status = 0;
    curl_easy_getinfo(exchange.handle, CURLINFO_RESPONSE_CODE, &status);
    exchange.answer.status = static_cast<int>(status);
    return line.size();
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return line.size();
  exchange.header_bytes += line.size();
  if (exchange.header_bytes > kMaxHeaderBytes || exchange.answer.headers.size() >= kMaxHeaderCount) {
    exchange.too_many_headers = true;
    return 0;
  }
  std::string name(line.substr(0, colon));
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  exchange.answer.headers.insert_or_assign(std::move(name), std::string(Trimmed(line.substr(colon + 1))));
  return line.size();
}

std::size_t TakeBody(char* from, std::size_t size, std::size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  HttpAnswer& answer = exchange.answer;
  const std::size_t bytes = size * count;
  if (exchange.request.into && (answer.status == 200 || answer.status == 206)) {
    const std::span<std::uint8_t> out = *exchange.request.into;
    if (bytes > out.size() - answer.into_bytes) {
      exchange.body_too_long = true;
      return 0;
    }
    std::memcpy(out.data() + answer.into_bytes, from, bytes);
    answer.into_bytes += bytes;
    return bytes;
  }
  const std::uint64_t room = exchange.request.max_body_bytes - answer.body.size();
  if (bytes > room && exchange.Succeeded()) {
    exchange.body_too_long = true;
    return 0;
  }
  answer.body.insert(answer.body.end(), from, from + std::min<std::uint64_t>(bytes, room));
  return bytes;
}

// Errors after which the server cannot have seen anything of the request.
bool NeverSent(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_ENGINE_NOTFOUND:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_FAILED_INIT:
    case CURLE_OUT_OF_MEMORY:
      return true;
    default:
      return false;
  }
}

bool IsUntrusted(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE || code == CURLE_SSL_ISSUER_ERROR;
}

}  // namespace

std::string_view HttpAnswer::Header(std::string_view name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

// Handles at rest; each keeps its connections. As many as there were requests at once.
class HttpClient::Handles {
 public:
  Handle Take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      Handle handle(curl_easy_init());
      WW_CHECK(handle != nullptr);
      return handle;
    }
    Handle handle = std::move(free_.back());
    free_.pop_back();
    return handle;
  }

  void Return(Handle handle) {
    curl_easy_reset(handle.get());  // settings go, connections stay
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(handle));
  }

 private:
  std::mutex mutex_;
  std::vector<Handle> free_;  // guarded by mutex_
};

HttpClient::HttpClient(HttpOptions options) : options_(std::move(options)), handles_(std::make_unique<Handles>()) {
  InitializeCurlOnce();
}

HttpClient::~HttpClient() = default;

Result<HttpAnswer> HttpClient::Perform(const HttpRequest& request) {
  Handle handle = handles_->Take();
  CURL* const curl = handle.get();
  Exchange exchange(request, curl);
  const auto set = [curl](CURLoption option, auto value) {
    WW_CHECK(curl_easy_setopt(curl, option, value) == CURLE_OK);
  };

  std::array<char, CURL_ERROR_SIZE> reason{};
  set(CURLOPT_ERRORBUFFER, reason.data());
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_BUFFERSIZE, kReceiveBufferBytes);
  set(CURLOPT_UPLOAD_BUFFERSIZE, kSendBufferBytes);
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  // curl announces bodies above 1 MiB by "Expect: 100-continue", and there is no way to forbid it that some version
  // does not sign wrongly. But it need not wait for the answer.
  set(CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options_.connect_timeout.count()));
  const std::uint64_t body_bytes = request.body.size() + (request.into ? request.into->size() : request.max_body_bytes);
  const std::uint64_t transfer_ms = body_bytes / std::max<std::uint64_t>(1, options_.min_bytes_per_second / 1000);
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(options_.request_timeout.count() + static_cast<std::int64_t>(transfer_ms)));
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.stall_timeout.count()));
  if (!options_.ca_file.empty()) set(CURLOPT_CAINFO, options_.ca_file.c_str());
  if (options_.ignore_proxies) set(CURLOPT_NOPROXY, "*");

  set(CURLOPT_HEADERFUNCTION, &TakeHeader);
  set(CURLOPT_HEADERDATA, &exchange);
  set(CURLOPT_WRITEFUNCTION, &TakeBody);
  set(CURLOPT_WRITEDATA, &exchange);
  if (request.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT" || request.method == "POST") {
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    set(CURLOPT_READFUNCTION, &SendBody);
    set(CURLOPT_READDATA, &exchange);
    if (request.may_be_sent_twice) {
      set(CURLOPT_SEEKFUNCTION, &RewindBody);
      set(CURLOPT_SEEKDATA, &exchange);
    }
  } else if (request.method != "GET") {
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }

  curl_slist* raw_headers = nullptr;
  for (const std::string& header : request.headers) raw_headers = curl_slist_append(raw_headers, header.c_str());
  const std::unique_ptr<curl_slist, FreeList> headers(raw_headers);
  set(CURLOPT_HTTPHEADER, headers.get());

  std::string scope;
  if (request.signing != nullptr) {
    scope = fmt::format("aws:amz:{}:s3", request.signing->region);
    set(CURLOPT_AWS_SIGV4, scope.c_str());
    set(CURLOPT_USERNAME, request.signing->access_key.c_str());
    set(CURLOPT_PASSWORD, request.signing->secret_key.Reveal().c_str());
  }

  const CURLcode code = curl_easy_perform(curl);
  long sent_bytes = 0;
  curl_easy_getinfo(curl, CURLINFO_REQUEST_SIZE, &sent_bytes);
  const std::string why = reason[0] != 0 ? reason.data() : curl_easy_strerror(code);
  if (code == CURLE_OK) {
    handles_->Return(std::move(handle));
    return std::move(exchange.answer);
  }
  // The handle goes with its connection: one whose host did not resolve refuses settings of the next request.
  handle.reset();

  const std::string_view origin = OriginOf(request.url);
  if (exchange.body_too_long) {
    return Error(ErrorCode::kLimit, fmt::format("{} sent more bytes than it should", origin));
  }
  if (exchange.too_many_headers) {
    return Error(ErrorCode::kCorrupt, fmt::format("{} sent too many headers", origin));
  }
  if (IsUntrusted(code)) {
    return Error(
        ErrorCode::kRefused,
        fmt::format("the certificate of {} is not trusted; for a CA of your own set AWS_CA_BUNDLE: {}", origin, why));
  }
  const bool never_sent = NeverSent(code) || (sent_bytes == 0 && exchange.sent_bytes == 0);
  return Error(never_sent ? ErrorCode::kUnavailable : ErrorCode::kUnknownOutcome,
               fmt::format("no answer from {}: {}", origin, why));
}

std::string PercentEncode(std::string_view text, Slashes slashes) {
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
                       c == '.' || c == '_' || c == '~' || (c == '/' && slashes == Slashes::kKeep);
    if (plain) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", byte);
    }
  }
  return encoded;
}

std::string_view OriginOf(std::string_view url) {
  const std::size_t scheme = url.find("://");
  if (scheme == std::string_view::npos) return url.substr(0, url.find_first_of("/?#"));
  return url.substr(0, url.find_first_of("/?#", scheme + 3));
}

}  // namespace weightwire
