#include "store/credentials/metadata_credentials.h"

#include <fmt/format.h>

#include "store/credentials/credential_json.h"
#include "store/credentials/token_file.h"
#include "store/policy.h"

namespace weightwire {
namespace {

constexpr const char* kContainerHost = "http://169.254.170.2";
constexpr const char* kMachineHost = "http://169.254.169.254";

Result<Credentials> ParseAnswer(const HttpAnswer& answer, std::string_view whose) {
  if (answer.status != 200) {
    return Error(ErrorCode::kUnavailable,
                 fmt::format("cannot get credentials from {}: it answers with status {}", whose, answer.status));
  }
  return ParseCredentialsJson(answer.BodyText(), whose);
}

}  // namespace

HttpOptions MetadataHttpOptions() {
  HttpOptions options;
  options.connect_timeout = kMetadataConnectTimeout;
  options.request_timeout = kMetadataRequestTimeout;
  options.ignore_proxies = true;
  return options;
}

bool IsLocalService(std::string_view url) {
  const std::string_view origin = OriginOf(url);
  if (origin.find('@') != std::string_view::npos) return false;  // the host is what comes after it
  for (const std::string_view host : {"http://127.0.0.1", "http://localhost", "http://[::1]", "http://169.254.170.2",
                                      "http://169.254.170.23", "http://[fd00:ec2::23]"}) {
    if (origin == host || (origin.starts_with(host) && origin[host.size()] == ':')) return true;
  }
  return false;
}

bool FitsInHeader(std::string_view text) { return text.find_first_of("\r\n") == std::string_view::npos; }

Result<Credentials> ContainerCredentials(const Environment& environment, HttpClient& http) {
  HttpRequest request;
  if (const auto path = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")) {
    request.url = kContainerHost + *path;
  } else if (const auto url = environment("AWS_CONTAINER_CREDENTIALS_FULL_URI")) {
    request.url = *url;
  } else {
    return Error(ErrorCode::kNotFound, "there is no container's service");
  }
  if (!request.url.starts_with("https://") && !IsLocalService(request.url)) {
    return Error(ErrorCode::kRefused,
                 "AWS_CONTAINER_CREDENTIALS_FULL_URI must be https, or http on this machine; no credentials were asked "
                 "for there");
  }
  std::string token = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN").value_or("");
  // The file counts more, for it is renewed.
  if (const auto path = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")) {
    WW_TRY(token, ReadTokenFile(*path));
  }
  if (!FitsInHeader(token)) return Error(ErrorCode::kRefused, "the container's authorization token has a line break");
  if (!token.empty()) request.headers.push_back("Authorization: " + token);
  const auto answer = http.Perform(request);
  if (!answer.ok()) {
    return Error(ErrorCode::kUnavailable,
                 "cannot get credentials from the container's service: " + answer.error().message());
  }
  return ParseAnswer(answer.value(), "the container's service");
}

Result<Credentials> MachineCredentials(const Environment& environment, HttpClient& http) {
  const std::string base = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT").value_or(kMachineHost);
  const auto none = [](std::string_view why) {
    return Error(ErrorCode::kNotFound, fmt::format("the metadata service has no credentials: {}", why));
  };
  HttpRequest token_request;
  token_request.method = "PUT";
  token_request.url = base + "/latest/api/token";
  token_request.headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600"};
  const auto token = http.Perform(token_request);
  if (!token.ok()) return none(token.error().message());
  if (token.value().status != 200 || !FitsInHeader(token.value().BodyText())) return none("it gives no token");

  HttpRequest request;
  request.headers = {fmt::format("X-aws-ec2-metadata-token: {}", token.value().BodyText())};
  request.url = base + "/latest/meta-data/iam/security-credentials/";
  const auto role = http.Perform(request);
  if (!role.ok()) return none(role.error().message());
  if (role.value().status != 200) return none("this machine has no role");
  const std::string_view names = role.value().BodyText();
  request.url += PercentEncode(names.substr(0, names.find('\n')), Slashes::kEncode);
  const auto answer = http.Perform(request);
  if (!answer.ok()) {
    return Error(ErrorCode::kUnavailable,
                 "cannot get credentials from the metadata service: " + answer.error().message());
  }
  return ParseAnswer(answer.value(), "the metadata service");
}

}  // namespace weightwire
