#include "store/credentials/web_identity.h"

#include <fmt/format.h>

#include <optional>
#include <pugixml.hpp>
#include <string_view>

#include "base/bytes.h"
#include "store/credentials/metadata_credentials.h"
#include "store/credentials/token_file.h"
#include "store/http/retryable_status.h"
#include "store/http/s3_xml.h"
#include "store/http/times.h"

namespace weightwire {
namespace {

// Reads the answer of AssumeRoleWithWebIdentity. Returns nullopt if the text is not such an answer.
std::optional<Credentials> ParseStsCredentials(std::string_view xml) {
  pugi::xml_document document;
  if (!document.load_buffer(xml.data(), xml.size(), pugi::parse_default, pugi::encoding_utf8)) return {};
  const pugi::xml_node root = document.document_element();
  if (std::string_view(root.name()) != "AssumeRoleWithWebIdentityResponse") return {};
  const pugi::xml_node found = root.child("AssumeRoleWithWebIdentityResult").child("Credentials");
  Credentials credentials{found.child_value("AccessKeyId"), Secret(found.child_value("SecretAccessKey")),
                          Secret(found.child_value("SessionToken")), ParseIsoTime(found.child_value("Expiration"))};
  if (credentials.access_key.empty() || credentials.secret_key.empty() || !credentials.expires) return {};
  return credentials;
}

}  // namespace

std::string StsEndpoint(const std::string& region) {
  if (region.empty()) return "https://sts.amazonaws.com";
  return fmt::format("https://sts.{}.{}", region, region.starts_with("cn-") ? "amazonaws.com.cn" : "amazonaws.com");
}

Result<Credentials> WebIdentityCredentials(const WebIdentity& identity, HttpClient& http) {
  if (!identity.endpoint.starts_with("https://") && !IsLocalService(identity.endpoint)) {
    return Error(
        ErrorCode::kRefused,
        fmt::format("the token service {} must be https, or http on this machine; the web identity's token was "
                    "not sent there",
                    OriginOf(identity.endpoint)));
  }
  const auto token = ReadTokenFile(identity.token_file);
  if (!token.ok()) return token.error().In("cannot read the web identity's token");
  const auto encoded = [](std::string_view text) { return PercentEncode(text, Slashes::kEncode); };
  const std::string form = fmt::format(
      "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn={}&RoleSessionName={}&WebIdentityToken={}",
      encoded(identity.role), encoded(identity.session.empty() ? "weightwire" : identity.session),
      encoded(token.value()));
  HttpRequest request;
  request.method = "POST";
  request.url = identity.endpoint + "/";
  request.headers = {"Content-Type: application/x-www-form-urlencoded"};
  request.body = BytesOf(form);
  const auto answer = http.Perform(request);
  const auto failed = [&](ErrorCode code, std::string_view what) {
    return Error(code, fmt::format("cannot get credentials for the role {} from {}: {}", identity.role,
                                   OriginOf(identity.endpoint), what));
  };
  if (!answer.ok()) return failed(ErrorCode::kUnavailable, answer.error().message());
  if (answer.value().status != 200) {
    const S3Error error = ParseS3Error(answer.value().BodyText());
    const std::string what = error.code.empty() ? fmt::format("it answers with status {}", answer.value().status)
                                                : fmt::format("{} ({})", error.code, error.message);
    // A service that is busy, or cannot ask whoever vouches for the token, may be able to later.
    const bool later =
        IsRetryableStatus(answer.value().status) || error.code == "Throttling" || error.code == "IDPCommunicationError";
    return failed(later ? ErrorCode::kUnavailable : ErrorCode::kRefused, what);
  }
  auto credentials = ParseStsCredentials(answer.value().BodyText());
  if (!credentials) return failed(ErrorCode::kUnavailable, "its answer is not understood");
  return *std::move(credentials);
}

}  // namespace weightwire
