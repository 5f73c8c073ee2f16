#include "store/credentials/credential_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "store/http/times.h"

namespace weightwire {

Result<Credentials> ParseCredentialsJson(std::string_view json, std::string_view whose) {
  const auto damaged = [&](std::string_view what) {
    return Error(ErrorCode::kUnavailable, fmt::format("cannot get credentials from {}: {}", whose, what));
  };
  const auto fields = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!fields.is_object()) return damaged("its answer is not understood");
  const auto text = [&](const char* name) {
    const auto found = fields.find(name);
    return found != fields.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (const std::string code = text("Code"); !code.empty() && code != "Success") {
    return damaged("it says that it has none");
  }
  // Services call the token so, processes otherwise.
  const std::string token = text("Token");
  Credentials credentials{text("AccessKeyId"), Secret(text("SecretAccessKey")),
                          Secret(token.empty() ? text("SessionToken") : token), std::nullopt};
  if (credentials.access_key.empty() || credentials.secret_key.empty()) return damaged("its answer has no keys");
  if (const std::string expires = text("Expiration"); !expires.empty()) {
    credentials.expires = ParseIsoTime(expires);
    if (!credentials.expires) return damaged("its answer has no valid date");
  }
  return credentials;
}

}  // namespace weightwire
