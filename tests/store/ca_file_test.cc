#include "store/http/ca_file.h"

#include <gtest/gtest.h>

#include <set>

namespace weightwire {
namespace {

std::optional<std::string> Find(const std::set<std::string>& files, std::optional<std::string> named = std::nullopt) {
  const auto environment = [&](const std::string& name) { return name == "SSL_CERT_FILE" ? named : std::nullopt; };
  return FindCaFile(environment, [&](const std::string& path) { return files.contains(path); });
}

TEST(CaFile, IsFoundWhereTheSystemHasIt) {
  EXPECT_EQ(Find({"/etc/pki/tls/certs/ca-bundle.crt"}), "/etc/pki/tls/certs/ca-bundle.crt");
  EXPECT_EQ(Find({"/etc/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt"}), "/etc/ssl/certs/ca-certificates.crt");
}

TEST(CaFile, IsWhatTheEnvironmentSays) { EXPECT_EQ(Find({"/etc/ssl/cert.pem"}, "/my/own.pem"), "/my/own.pem"); }

TEST(CaFile, IsLeftToLibcurlWhereThereIsNone) { EXPECT_EQ(Find({}), std::nullopt); }

}  // namespace
}  // namespace weightwire
