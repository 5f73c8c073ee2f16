// Credentials for S3, and where a store gets them from (credential_chain.h is the usual way).
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "base/secret.h"

namespace weightwire {

struct Credentials {
  std::string access_key;
  Secret secret_key;
  Secret session_token;  // empty: none
  std::optional<WallTime> expires;
};

// Thread safety: all calls may be made by several threads.
class CredentialSource {
 public:
  CredentialSource() = default;
  CredentialSource(const CredentialSource&) = delete;
  CredentialSource& operator=(const CredentialSource&) = delete;
  virtual ~CredentialSource() = default;

  // kRefused when there are none, with what was tried.
  virtual Result<Credentials> Get() = 0;

  // The service does not take these any more: the next Get fetches again. False when that cannot help.
  virtual bool Renew() = 0;
};

// Always the same.
class FixedCredentials final : public CredentialSource {
 public:
  explicit FixedCredentials(Credentials credentials) : credentials_(std::move(credentials)) {}
  Result<Credentials> Get() override { return credentials_; }
  bool Renew() override { return false; }

 private:
  const Credentials credentials_;
};

}  // namespace weightwire
