#include "store/sigv4_check.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/sha256.h"

namespace weightwire::testing {
namespace {

std::string Hmac(const std::string& key, const std::string& text) {
  unsigned char out[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), out, &size);
  return {reinterpret_cast<char*>(out), size};
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

// Unreserved characters, "/" where allowed, and %XX in upper case for what is not unreserved.
bool IsCanonicallyEncoded(const std::string& text, bool slashes) {
  const auto unreserved = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.' || c == '_' || c == '~';
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (unreserved(text[i]) || (slashes && text[i] == '/')) continue;
    if (text[i] != '%' || i + 2 >= text.size()) return false;
    const std::string digits = text.substr(i + 1, 2);
    if (digits.find_first_not_of("0123456789ABCDEF") != std::string::npos) return false;
    if (unreserved(static_cast<char>(std::stoi(digits, nullptr, 16)))) return false;
    i += 2;
  }
  return true;
}

}  // namespace

std::string SignatureFault(const ServerRequest& request, const SigningKeys& keys) {
  const std::string authorization = request.Header("authorization");
  const std::string algorithm = "AWS4-HMAC-SHA256 ";
  if (!authorization.starts_with(algorithm)) return "no signature";
  std::map<std::string, std::string> fields;
  for (std::string field : Split(authorization.substr(algorithm.size()), ',')) {
    field.erase(0, field.find_first_not_of(' '));
    const std::size_t equals = field.find('=');
    fields[field.substr(0, equals)] = field.substr(equals + 1);
  }
  const std::vector<std::string> scope = Split(fields["Credential"], '/');
  const std::string time = request.Header("x-amz-date");
  if (scope.size() != 5 || scope[0] != keys.access_key) return "another access key";
  if (time.size() != 16 || scope[1] != time.substr(0, 8)) return "another date";
  if (scope[2] != keys.region || scope[3] != "s3" || scope[4] != "aws4_request") return "another scope";
  if (request.Header("x-amz-security-token") != keys.session_token) return "another session token";

  const std::vector<std::string> signed_names = Split(fields["SignedHeaders"], ';');
  if (!std::is_sorted(signed_names.begin(), signed_names.end())) return "signed headers are not sorted";
  const std::set<std::string> names(signed_names.begin(), signed_names.end());
  if (!names.contains("host")) return "host is not signed";
  for (const std::string& name : signed_names) {
    if (!request.headers.contains(name)) return name + " is signed but was not sent";
  }
  for (const auto& [name, value] : request.headers) {
    if ((name.starts_with("x-amz-") || name == "if-none-match") && !names.contains(name))
      return name + " is not signed";
  }

  const std::string payload = request.Header("x-amz-content-sha256");
  // The servers here speak plain HTTP, where nothing else protects the body.
  if (payload != ToHex(Sha256Of(request.body))) return "another payload, or an unsigned one";
  if (!IsCanonicallyEncoded(request.path, true)) return "the path is not encoded canonically";
  std::vector<std::string> query = Split(request.query, '&');
  if (!std::is_sorted(query.begin(), query.end())) return "the query is not sorted";
  std::string canonical = request.method + "\n" + request.path + "\n" + request.query + "\n";
  for (const std::string& parameter : query) {
    const std::size_t equals = parameter.find('=');
    if (equals == std::string::npos) return "a parameter without =";
    if (!IsCanonicallyEncoded(parameter.substr(0, equals), false) ||
        !IsCanonicallyEncoded(parameter.substr(equals + 1), false)) {
      return "the query is not encoded canonically";
    }
  }
  for (const std::string& name : signed_names) canonical += name + ":" + request.Header(name) + "\n";
  canonical += "\n" + fields["SignedHeaders"] + "\n" + payload;

  const std::string scope_text = scope[1] + "/" + scope[2] + "/s3/aws4_request";
  const std::string to_sign =
      "AWS4-HMAC-SHA256\n" + time + "\n" + scope_text + "\n" + ToHex(Sha256Of(std::string_view(canonical)));
  const std::string key = Hmac(Hmac(Hmac(Hmac("AWS4" + keys.secret_key, scope[1]), scope[2]), "s3"), "aws4_request");
  const std::string signature = Hmac(key, to_sign);
  const std::string hex = ToHex({reinterpret_cast<const std::uint8_t*>(signature.data()), signature.size()});
  return hex == fields["Signature"] ? "" : "the signature does not match";
}

}  // namespace weightwire::testing
