#include "store/open.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/check.h"
#include "store/backends/file_store.h"
#include "store/backends/hf_hub_store.h"
#include "store/backends/s3_store.h"
#include "store/credentials/aws_profile.h"
#include "store/credentials/credential_chain.h"
#include "store/credentials/hf_token.h"
#include "store/http/ca_file.h"
#include "store/store_url.h"
#include "store/wrappers/parallel_store.h"

namespace weightwire {
namespace {

enum class Access : std::uint8_t { kWithCredentials, kAsThePublic };

std::optional<std::string> FirstOf(std::initializer_list<std::optional<std::string>> values) {
  for (const auto& value : values) {
    if (value) return value;
  }
  return {};
}

std::optional<std::string> FromQuery(const StoreUrl& url, const char* name) {
  const auto found = url.query.find(name);
  return found == url.query.end() ? std::nullopt : std::optional(found->second);
}

// Empty: libcurl's own.
std::string CaFile(const OpenOptions& options, std::optional<std::string> of_profile) {
  const auto given = options.http.ca_file.empty() ? std::nullopt : std::optional(options.http.ca_file);
  return FirstOf(
             {options.environment("AWS_CA_BUNDLE"), std::move(of_profile), given, SystemCaFile(options.environment)})
      .value_or("");
}

Result<S3Options> OptionsOfS3(const StoreUrl& url, const OpenOptions& options, Access access) {
  WW_TRY(const AwsProfile profile, AwsProfile::Load(options.environment));
  S3Options s3;
  s3.bucket = url.bucket;
  s3.prefix = url.prefix;
  s3.name = url.name;
  s3.http = options.http;
  s3.http.ca_file = CaFile(options, profile.Find("ca_bundle"));
  s3.service.region = FirstOf({FromQuery(url, "region"), options.environment("AWS_REGION"),
                               options.environment("AWS_DEFAULT_REGION"), profile.Find("region")})
                          .value_or("us-east-1");
  const auto endpoint = FirstOf({FromQuery(url, "endpoint"), options.environment("AWS_ENDPOINT_URL_S3"),
                                 options.environment("AWS_ENDPOINT_URL"), profile.Find("endpoint_url")});
  if (endpoint) {
    WW_TRY(s3.service.endpoint, CheckEndpoint(*endpoint));
  } else {
    const char* domain = s3.service.region.starts_with("cn-") ? "amazonaws.com.cn" : "amazonaws.com";
    s3.service.endpoint = fmt::format("https://s3.{}.{}", s3.service.region, domain);
    // A dot in the bucket's name would not fit the certificate.
    s3.service.bucket_in_host = url.bucket.find('.') == std::string::npos;
  }
  if (const auto addressing = FromQuery(url, "addressing")) {
    if (*addressing != "path" && *addressing != "virtual") {
      return Error(ErrorCode::kInvalidArgument, fmt::format("addressing in {} must be path or virtual", url.name));
    }
    s3.service.bucket_in_host = *addressing == "virtual";
  }
  if (access == Access::kWithCredentials) {
    s3.credentials = std::make_shared<CredentialChain>(options.environment, s3.http, options.clock);
  }
  return s3;
}

Result<std::unique_ptr<Store>> OpenHf(const StoreUrl& url, const OpenOptions& options, Access access) {
  HttpOptions http = options.http;
  http.ca_file = CaFile(options, std::nullopt);
  const std::size_t slash = url.bucket.find('/');
  if (access == Access::kWithCredentials) {
    // What a machine's role or a program gives is never for Hugging Face.
    auto chain =
        std::make_shared<CredentialChain>(options.environment, http, options.clock, CredentialKinds::kOnlyKeys);
    const auto credentials = chain->Get();
    if (credentials.ok() && credentials.value().access_key.starts_with("HFAK")) {
      S3Options s3;
      s3.bucket = url.bucket.substr(slash + 1);
      s3.prefix = url.prefix;
      s3.name = url.name;
      s3.http = http;
      s3.credentials = std::move(chain);
      WW_TRY(const std::string gateway, CheckEndpoint(FromQuery(url, "endpoint").value_or("https://s3.hf.co")));
      s3.service.endpoint = gateway + "/" + url.bucket.substr(0, slash);
      s3.service.lists_by_folder = true;
      s3.service.how_to_get_keys = kHowToGetHfKeys;
      return std::unique_ptr<Store>(std::make_unique<S3Store>(std::move(s3), options.clock));
    }
  }
  HfHubOptions hub;
  hub.bucket = url.bucket;
  hub.prefix = url.prefix;
  hub.name = url.name;
  hub.http = http;
  WW_TRY(hub.endpoint, CheckEndpoint(options.environment("HF_ENDPOINT").value_or("https://huggingface.co")));
  if (access == Access::kWithCredentials) hub.token = HfToken(options.environment);
  return std::unique_ptr<Store>(std::make_unique<HfHubStore>(std::move(hub), options.clock));
}

Result<std::unique_ptr<Store>> Open(const StoreUrl& url, const OpenOptions& options, Access access) {
  WW_CHECK(options.clock != nullptr);
  switch (url.kind) {
    case StoreUrl::Kind::kFile:
      return std::unique_ptr<Store>(std::make_unique<FileStore>(url.path, url.name));
    case StoreUrl::Kind::kS3: {
      WW_TRY(S3Options s3, OptionsOfS3(url, options, access));
      return std::unique_ptr<Store>(std::make_unique<S3Store>(std::move(s3), options.clock));
    }
    case StoreUrl::Kind::kHf:
      break;
  }
  return OpenHf(url, options, access);
}

}  // namespace

Result<std::unique_ptr<Store>> OpenBackend(std::string_view url, const OpenOptions& options) {
  WW_TRY(const StoreUrl parsed, ParseStoreUrl(url));
  return Open(parsed, options, Access::kWithCredentials);
}

Result<S3Options> S3OptionsOf(std::string_view url, const OpenOptions& options) {
  WW_TRY(const StoreUrl parsed, ParseStoreUrl(url));
  if (parsed.kind != StoreUrl::Kind::kS3) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("{} is not a store of S3; its URL begins with s3://", url));
  }
  return OptionsOfS3(parsed, options, Access::kWithCredentials);
}

std::unique_ptr<Store> WrapStore(std::unique_ptr<Store> backend, const OpenOptions& options,
                                 const TraceStore** counts) {
  auto traced = std::make_unique<TraceStore>(std::move(backend), options.clock, options.trace);
  if (counts != nullptr) *counts = traced.get();
  std::unique_ptr<Store> store = std::move(traced);
  if (options.limits.bytes_per_second != 0 || options.limits.requests_at_once != 0) {
    store = std::make_unique<LimitStore>(std::move(store), options.limits, options.clock, options.sleeper);
  }
  store = std::make_unique<RetryStore>(std::move(store), options.retry, options.clock, options.sleeper, options.random);
  return std::make_unique<ParallelStore>(std::move(store), options.transfer);
}

Result<std::unique_ptr<Store>> OpenStore(std::string_view url, const OpenOptions& options, const TraceStore** counts) {
  WW_TRY(std::unique_ptr<Store> backend, OpenBackend(url, options));
  return WrapStore(std::move(backend), options, counts);
}

Result<bool> IsPublic(std::string_view url, const OpenOptions& options, std::string_view key) {
  WW_TRY(const StoreUrl parsed, ParseStoreUrl(url));
  if (parsed.kind == StoreUrl::Kind::kFile) return false;
  WW_TRY(const std::unique_ptr<Store> store, Open(parsed, options, Access::kAsThePublic));
  constexpr std::uint64_t kEnough = 1 << 20;
  const auto got = store->Get(key, kEnough);
  if (got.ok() || got.error().code() == ErrorCode::kLimit) return true;
  // Some services hide what one may not see.
  if (got.error().code() == ErrorCode::kRefused || got.error().code() == ErrorCode::kNotFound) return false;
  return got.error();
}

}  // namespace weightwire
