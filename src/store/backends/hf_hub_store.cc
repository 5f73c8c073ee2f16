#include "store/backends/hf_hub_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "store/http/range_answer.h"
#include "store/http/redirect.h"
#include "store/http/retryable_status.h"
#include "store/http/times.h"
#include "store/key.h"

namespace weightwire {

const char* const kHowToGetHfKeys =
    "on huggingface.co, under Settings, Access Tokens, choose \"Generate S3 credentials\" in the menu of a token with "
    "write "
    "permission, and set AWS_ACCESS_KEY_ID (it begins with HFAK) and AWS_SECRET_ACCESS_KEY";

namespace {

constexpr std::uint64_t kMaxHubPageBytes = 16 << 20;
// The Hub's order is not ours, so a list is gathered as a whole.
constexpr std::size_t kMaxGatheredEntries = 1'000'000;
constexpr std::size_t kMaxHubPages = 20'000;

// The address in a header like: Link: <https://…>; rel="next"
std::string NextPage(std::string_view link) {
  const std::size_t open = link.find('<');
  const std::size_t close = link.find('>', open == std::string_view::npos ? 0 : open);
  if (open == std::string_view::npos || close == std::string_view::npos) return {};
  if (link.substr(close).find("rel=\"next\"") == std::string_view::npos) return {};
  return std::string(link.substr(open + 1, close - open - 1));
}

}  // namespace

HfHubStore::HfHubStore(HfHubOptions options, const Clock* clock)
    : options_(std::move(options)), http_(options_.http), date_(clock) {}

std::string HfHubStore::FullKey(std::string_view key) const {
  return options_.prefix.empty() ? std::string(key) : fmt::format("{}/{}", options_.prefix, key);
}

Result<HttpAnswer> HfHubStore::Send(HttpRequest request, std::string_view doing, std::string_view key) {
  const auto failure = [&](const Error& error) {
    // Nothing here writes, so a lost answer can simply be asked for again.
    const ErrorCode code = error.code() == ErrorCode::kUnknownOutcome ? ErrorCode::kUnavailable : error.code();
    return Error(code, fmt::format("cannot {} {} in {}: {}", doing, key, Name(), error.message()));
  };
  if (!options_.token.empty()) request.headers.push_back("Authorization: Bearer " + options_.token.Reveal());
  auto answer = http_.Perform(request);
  if (!answer.ok()) return failure(answer.error());
  date_.Note(answer.value());
  if (request.method != "GET") return answer;
  auto redirected = FollowRedirects(http_, request, std::move(answer).value());
  if (!redirected.ok()) return failure(redirected.error());
  return redirected;
}

Error HfHubStore::ClassifyAnswer(std::string_view doing, std::string_view key, const HttpAnswer& answer) const {
  const auto error = [&](ErrorCode code, std::string_view why) {
    return Error(code, fmt::format("cannot {} {} in {}: {}", doing, key, Name(), why));
  };
  const std::string said = fmt::format("the Hub answers with status {}", answer.status);
  if (answer.status == 401 || answer.status == 403) {
    return error(ErrorCode::kRefused,
                 said + (options_.token.empty() ? "; set HF_TOKEN to a token that may read this bucket"
                                                : "; check that the token in HF_TOKEN may read this bucket"));
  }
  if (answer.status == 404) return ObjectNotFound(key, *this);
  if (IsRetryableStatus(answer.status)) return error(ErrorCode::kUnavailable, said);
  return error(answer.status >= 400 ? ErrorCode::kInvalidArgument : ErrorCode::kCorrupt, said);
}

Error HfHubStore::ReadOnly(std::string_view doing, std::string_view key) const {
  return {ErrorCode::kRefused, fmt::format("cannot {} {} in {}: an HF_TOKEN only lets weightwire read; to write, {}",
                                           doing, key, Name(), kHowToGetHfKeys)};
}

Result<std::vector<std::uint8_t>> HfHubStore::DoGet(std::string_view key, std::uint64_t max_bytes) {
  HttpRequest request;
  request.url = fmt::format("{}/buckets/{}/resolve/{}", options_.endpoint, options_.bucket,
                            PercentEncode(FullKey(key), Slashes::kKeep));
  request.max_body_bytes = max_bytes;
  auto answer = Send(request, "read", key);
  if (!answer.ok() && answer.error().code() == ErrorCode::kLimit) {
    return Error(ErrorCode::kLimit,
                 fmt::format("object {} in {} has more than the {} bytes it may have", key, Name(), max_bytes));
  }
  if (!answer.ok()) return answer.error();
  if (answer.value().status != 200) return ClassifyAnswer("read", key, answer.value());
  return std::move(answer.value().body);
}

Status HfHubStore::DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) {
  HttpRequest request;
  request.url = fmt::format("{}/buckets/{}/resolve/{}", options_.endpoint, options_.bucket,
                            PercentEncode(FullKey(key), Slashes::kKeep));
  request.headers = {fmt::format("Range: bytes={}-{}", offset, offset + out.size() - 1)};
  request.into = out;
  return CheckRangeAnswer(*this, key, offset, out.size(), Send(request, "read", key),
                          [&](const HttpAnswer& answer) { return ClassifyAnswer("read", key, answer); });
}

Status HfHubStore::DoPut(std::string_view key, std::span<const std::uint8_t> /*bytes*/) {
  return ReadOnly("write", key);
}

Result<PutOutcome> HfHubStore::DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> /*bytes*/) {
  return ReadOnly("create", key);
}

Status HfHubStore::DoRemove(std::string_view key) { return ReadOnly("remove", key); }

Result<std::unique_ptr<Upload>> HfHubStore::DoStartUpload(std::string_view key, std::uint64_t /*size_bytes*/) {
  return ReadOnly("upload", key);
}

Result<std::vector<ObjectInfo>> HfHubStore::ParseEntries(std::string_view text) const {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto damaged = [&] {
    return Error(ErrorCode::kCorrupt, fmt::format("the Hub's list of {} is not understood", Name()));
  };
  if (!json.is_array()) return damaged();
  const std::string run = FullKey("");
  std::vector<ObjectInfo> objects;
  for (const auto& entry : json) {
    if (!entry.is_object()) return damaged();
    const auto text_of = [&](const char* name) {
      const auto found = entry.find(name);
      return found != entry.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    if (text_of("type") != "file") continue;
    std::string path = text_of("path");
    const auto size = entry.find("size");
    // When the Hub got it; "mtime" is what the uploader claims.
    const std::string uploaded = text_of("uploadedAt");
    const auto time = ParseIsoTime(uploaded.empty() ? text_of("mtime") : uploaded);
    if (size == entry.end() || !size->is_number_unsigned() || !time) return damaged();
    if (!path.starts_with(run)) continue;
    path.erase(0, run.size());
    if (!CheckKey(path).ok()) continue;
    objects.push_back({std::move(path), size->get<std::uint64_t>(), *time});
  }
  return objects;
}

Result<ObjectInfo> HfHubStore::DoStat(std::string_view key) {
  const std::string body = nlohmann::json{{"paths", nlohmann::json::array({FullKey(key)})}}.dump();
  HttpRequest request;
  request.method = "POST";
  request.url = fmt::format("{}/api/buckets/{}/paths-info", options_.endpoint, options_.bucket);
  request.headers = {"Content-Type: application/json"};
  request.body = BytesOf(body);
  WW_TRY(const HttpAnswer answer, Send(request, "look at", key));
  if (answer.status != 200) return ClassifyAnswer("look at", key, answer);
  WW_TRY(const std::vector<ObjectInfo> objects, ParseEntries(answer.BodyText()));
  for (const ObjectInfo& object : objects) {
    if (object.key == key) return object;
  }
  return ObjectNotFound(key, *this);
}

Result<std::vector<ObjectInfo>> HfHubStore::DoList(std::string_view prefix, std::string_view start_after,
                                                   std::size_t limit) {
  // The deepest folder that holds them all.
  std::string folder = FullKey(prefix.substr(0, prefix.rfind('/') == std::string_view::npos ? 0 : prefix.rfind('/')));
  if (folder.ends_with('/')) folder.pop_back();
  HttpRequest request;
  request.url = fmt::format("{}/api/buckets/{}/tree{}{}?recursive=true", options_.endpoint, options_.bucket,
                            folder.empty() ? "" : "/", PercentEncode(folder, Slashes::kKeep));
  request.max_body_bytes = kMaxHubPageBytes;
  std::vector<ObjectInfo> objects;
  std::set<std::string> pages;
  while (!request.url.empty()) {
    WW_TRY(const HttpAnswer answer, Send(request, "list", prefix));
    if (answer.status == 404) break;  // no such folder
    if (answer.status != 200) return ClassifyAnswer("list", prefix, answer);
    WW_TRY(std::vector<ObjectInfo> page, ParseEntries(answer.BodyText()));
    std::ranges::move(page, std::back_inserter(objects));
    if (objects.size() > kMaxGatheredEntries) {
      return Error(ErrorCode::kLimit, fmt::format("{} has more than {} objects; a list of them needs S3 keys: {}",
                                                  Name(), kMaxGatheredEntries, kHowToGetHfKeys));
    }
    std::string next = NextPage(answer.Header("link"));
    // The token goes with it, so it must be the same host.
    if (!next.empty() && OriginOf(next) != OriginOf(options_.endpoint)) {
      return Error(ErrorCode::kCorrupt, fmt::format("cannot list {}: the next page is on another host", Name()));
    }
    // They may lead in a circle; a page that holds nothing but folders alone is no sign of it.
    if (!next.empty() && (!pages.insert(next).second || pages.size() > kMaxHubPages)) {
      return Error(ErrorCode::kCorrupt, fmt::format("cannot list {}: the store's pages do not go on", Name()));
    }
    request.url = std::move(next);
  }
  std::erase_if(objects, [&](const ObjectInfo& object) {
    return !object.key.starts_with(prefix) || (!start_after.empty() && object.key <= start_after);
  });
  std::ranges::sort(objects, {}, &ObjectInfo::key);
  if (objects.size() > limit) objects.resize(limit);
  return objects;
}

Result<WallTime> HfHubStore::Now() {
  if (const auto now = date_.Now()) return *now;
  // Any answer has a date.
  (void)DoStat("run.json");
  if (const auto now = date_.Now()) return *now;
  return Error(ErrorCode::kUnavailable, fmt::format("{} does not say what time it is", Name()));
}

}  // namespace weightwire
