#include "store/store_url.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "store/key.h"

namespace weightwire {
namespace {

constexpr std::size_t kMaxUrlBytes = 4096;

Error Bad(std::string_view url, std::string_view why) {
  return {ErrorCode::kInvalidArgument, fmt::format("{} does not name a store: {}", url, why)};
}

std::optional<std::string> PercentDecode(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    unsigned byte = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (digits.size() != 2 || error != std::errc() || end != digits.data() + 2 || byte == 0) return {};
    decoded += static_cast<char>(byte);
    i += 2;
  }
  return decoded;
}

// A name of a bucket or its owner: it goes into addresses.
bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= 128 && name.find('/') == std::string_view::npos && CheckKey(name).ok();
}

Status ParseQuery(std::string_view url, std::string_view query, std::map<std::string, std::string>* out) {
  while (!query.empty()) {
    const std::string_view parameter = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), parameter.size() + 1));
    const std::size_t equals = parameter.find('=');
    const auto value = equals == std::string_view::npos ? std::nullopt : PercentDecode(parameter.substr(equals + 1));
    const std::string name(parameter.substr(0, equals));
    if (!value || value->empty()) return Bad(url, fmt::format("\"{}\" has no value", name));
    if (name != "endpoint" && name != "region" && name != "addressing") {
      return Bad(url, fmt::format("\"{}\" is not known; there are endpoint, region and addressing", name));
    }
    (*out)[name] = *value;
  }
  return Ok();
}

// What a text that begins almost like a URL was probably meant to be: "s3://bucket/run" for "s3:/bucket/run",
// "S3://bucket/run" or "s3//bucket/run". Nothing for a path.
std::optional<std::string> MeantUrl(std::string_view text) {
  const std::size_t letters = std::min(text.find_first_of(":/"), text.size());
  std::string scheme(text.substr(0, letters));
  std::transform(scheme.begin(), scheme.end(), scheme.begin(),
                 [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (scheme != "s3" && scheme != "hf" && scheme != "file") return std::nullopt;
  std::string_view rest = text.substr(letters);
  // "s3/run" and "file" are ordinary paths.
  if (!rest.starts_with(':') && !rest.starts_with("//")) return std::nullopt;
  rest.remove_prefix(std::min(rest.find_first_not_of(":/"), rest.size()));
  return fmt::format("{}://{}{}", scheme, scheme == "file" ? "/" : "", rest);
}

// Splits off the first segment.
std::string_view TakeSegment(std::string_view* rest) {
  const std::string_view segment = rest->substr(0, rest->find('/'));
  rest->remove_prefix(std::min(rest->size(), segment.size() + 1));
  return segment;
}

}  // namespace

Result<StoreUrl> ParseStoreUrl(std::string_view url) {
  if (url.empty()) return Error(ErrorCode::kInvalidArgument, "the name of a store is empty");
  if (url.size() > kMaxUrlBytes) return Bad(url.substr(0, 80), "it is too long");
  StoreUrl parsed;
  const std::size_t scheme_end = url.find("://");
  const std::string_view known = url.substr(0, std::min(scheme_end, url.size()));
  if (known != "s3" && known != "hf" && known != "file") {
    if (const auto meant = MeantUrl(url)) {
      return Bad(url, fmt::format("did you mean {}? A directory of this name is written ./{}", *meant, url));
    }
  }
  if (scheme_end == std::string_view::npos) {
    parsed.path = url;
    parsed.name = url;
    return parsed;
  }
  const std::string_view scheme = url.substr(0, scheme_end);
  std::string_view rest = url.substr(scheme_end + 3);
  if (scheme == "file") {
    const auto path = PercentDecode(rest);
    if (!path || !path->starts_with('/'))
      return Bad(url, "after file:// comes an absolute path, as in file:///data/run");
    parsed.path = *path;
    parsed.name = url;
    return parsed;
  }
  if (scheme != "s3" && scheme != "hf") {
    return Bad(url, "it must be a path, or begin with file://, s3:// or hf://");
  }
  const std::size_t question = rest.find('?');
  parsed.name = url.substr(0, scheme_end + 3 + std::min(question, rest.size()));
  if (question != std::string_view::npos) {
    WW_RETURN_IF_ERROR(ParseQuery(parsed.name, rest.substr(question + 1), &parsed.query));
    rest = rest.substr(0, question);
  }
  if (scheme == "s3") {
    parsed.kind = StoreUrl::Kind::kS3;
    parsed.bucket = TakeSegment(&rest);
    if (!IsName(parsed.bucket)) return Bad(url, "after s3:// comes the name of a bucket, as in s3://bucket/run");
  } else {
    parsed.kind = StoreUrl::Kind::kHf;
    const std::string_view buckets = TakeSegment(&rest);
    const std::string_view owner = TakeSegment(&rest);
    const std::string_view name = TakeSegment(&rest);
    if (buckets != "buckets" || !IsName(owner) || !IsName(name)) {
      return Bad(url, "it must be like hf://buckets/owner/name/run");
    }
    parsed.bucket = fmt::format("{}/{}", owner, name);
  }
  while (rest.ends_with('/')) rest.remove_suffix(1);
  if (!rest.empty()) {
    if (const Status key = CheckKey(rest); !key.ok()) return Bad(parsed.name, key.error().message());
  }
  parsed.prefix = rest;
  return parsed;
}

Result<std::string> CheckEndpoint(std::string_view endpoint) {
  const auto bad = [&](std::string_view why) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("the endpoint of the store is not usable: {}", why));
  };
  while (endpoint.ends_with('/')) endpoint.remove_suffix(1);
  if (!endpoint.starts_with("https://") && !endpoint.starts_with("http://")) {
    return bad("it must begin with https:// or http://");
  }
  const std::string_view host = endpoint.substr(endpoint.find("://") + 3);
  if (host.empty() || host.front() == '/') return bad("it names no host");
  if (endpoint.find('@') != std::string_view::npos) return bad("it must not contain a user name or password");
  if (endpoint.find_first_of("?# \t\r\n\"<>\\") != std::string_view::npos) return bad("it is no plain address");
  return std::string(endpoint);
}

}  // namespace weightwire
