#include "store/http/ca_file.h"

#include <filesystem>
#include <system_error>

namespace weightwire {
namespace {

constexpr const char* kPlaces[] = {
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",                   // Fedora, RHEL, Amazon Linux
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // RHEL
    "/etc/ssl/ca-bundle.pem",                             // openSUSE
    "/etc/ssl/cert.pem",                                  // Alpine, BSDs
};

}  // namespace

std::optional<std::string> FindCaFile(const Environment& environment,
                                      const std::function<bool(const std::string& path)>& is_there) {
  if (auto named = environment("SSL_CERT_FILE"); named.has_value()) return named;
  for (const char* place : kPlaces) {
    if (is_there(place)) return place;
  }
  return std::nullopt;
}

std::optional<std::string> SystemCaFile(const Environment& environment) {
  return FindCaFile(environment, [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(path, ignored);
  });
}

}  // namespace weightwire
