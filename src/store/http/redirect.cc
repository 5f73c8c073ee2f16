#include "store/http/redirect.h"

#include <fmt/format.h>

#include <utility>

#include "store/policy.h"

namespace weightwire {

Result<HttpAnswer> FollowRedirects(HttpClient& http, const HttpRequest& request, HttpAnswer answer) {
  HttpRequest next;
  next.url = request.url;
  for (const std::string& header : request.headers) {
    if (header.starts_with("Range:")) next.headers.push_back(header);
  }
  next.into = request.into;
  next.max_body_bytes = request.max_body_bytes;
  for (int hop = 0; answer.status == 302; ++hop) {
    const std::string from = next.url;
    next.url = answer.Header("location");
    const bool safe =
        next.url.starts_with("https://") || (next.url.starts_with("http://") && !from.starts_with("https://"));
    if (!safe || hop == kMaxRedirects) {
      return Error(ErrorCode::kCorrupt, fmt::format("{} redirects {}", OriginOf(from),
                                                    safe ? "too many times" : "to an address that is not safe"));
    }
    auto got = http.Perform(next);
    if (!got.ok()) return got.error();
    answer = std::move(got).value();
  }
  return answer;
}

}  // namespace weightwire
