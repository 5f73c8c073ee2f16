// HTTP requests over libcurl: one request, one answer, blocking.
//
// Connections are kept and used again. Redirects are never followed here: curl would carry credentials to the other
// host. TLS certificates are verified, against the system's CAs or those of a file. HTTP/1.1 only.
//
// What goes wrong on the way, as opposed to an answer that says no, is an error:
//   kUnavailable      the request certainly did not reach the server.
//   kUnknownOutcome   it may have, and no complete answer came back: time-out, cut connection.
//   kRefused          the server's certificate is not trusted.
//   kLimit            the answer has more bytes than allowed.
//   kCorrupt          the answer is no HTTP, or breaks a limit on headers.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "base/secret.h"
#include "store/policy.h"

namespace weightwire {

struct HttpOptions {
  std::chrono::milliseconds connect_timeout = kConnectTimeout;
  // For a whole request: this, and besides a second for each min_bytes_per_second of body, so that bytes that trickle
  // in end in an error too.
  std::chrono::milliseconds request_timeout = kRequestTimeout;
  std::uint64_t min_bytes_per_second = kMinBytesPerSecond;
  // Nothing at all for this long ends it. Whole seconds.
  std::chrono::seconds stall_timeout = kStallTimeout;
  // A PEM file of CAs instead of the system's; empty: the system's.
  std::string ca_file;
  // Metadata services are on this machine: no proxy for them.
  bool ignore_proxies = false;
};

// Signs by AWS Signature Version 4, service "s3".
struct HttpSigning {
  std::string access_key;
  Secret secret_key;
  std::string region;
};

struct HttpRequest {
  std::string method = "GET";  // GET, HEAD, PUT, POST or DELETE
  // Already percent-encoded. For a signed request the query is sorted and every name has its "=".
  std::string url;
  // "name: value".
  std::vector<std::string> headers;
  // Not owned; must live until the answer.
  std::span<const std::uint8_t> body;
  // A kept connection may turn out dead only after the request was sent on it. Then it is sent again on a new one,
  // unless this forbids it: for requests that must not be done twice unnoticed.
  bool may_be_sent_twice = true;
  const HttpSigning* signing = nullptr;
  // The body of an answer with status 200 or 206 goes here and must not be longer.
  std::optional<std::span<std::uint8_t>> into;
  // The most bytes of any other body; a longer one is kLimit, or is cut off for a status other than 2xx.
  std::uint64_t max_body_bytes = std::uint64_t{1} << 20;
};

struct HttpAnswer {
  int status = 0;
  // Lower-case names; of a name that comes twice, the last.
  std::map<std::string, std::string, std::less<>> headers;
  std::vector<std::uint8_t> body;
  // How much of HttpRequest::into was filled.
  std::uint64_t into_bytes = 0;

  // Empty when there is none.
  [[nodiscard]] std::string_view Header(std::string_view name) const;
  [[nodiscard]] std::string_view BodyText() const { return TextOf(body); }
};

// Thread safety: Perform may be called by several threads; each has its own connection then.
class HttpClient {
 public:
  explicit HttpClient(HttpOptions options);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  // Messages name the host but neither path, query nor headers: those of a redirected read are secret.
  Result<HttpAnswer> Perform(const HttpRequest& request);

 private:
  class Handles;
  const HttpOptions options_;
  std::unique_ptr<Handles> handles_;
};

// RFC 3986: everything but letters, digits and "-._~" as %XX; with Slashes::kKeep "/" stays too.
enum class Slashes : std::uint8_t { kEncode, kKeep };
std::string PercentEncode(std::string_view text, Slashes slashes);

// "scheme://host:port" of a URL, for messages.
std::string_view OriginOf(std::string_view url);

}  // namespace weightwire
