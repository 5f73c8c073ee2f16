// Credentials for S3, by the usual chain; the first that has any is used:
//   1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
//   2. the profile in the shared files (aws_profile.h)
//   3. the container's service (AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI)
//   4. the machine's metadata service, version 2, unless AWS_EC2_METADATA_DISABLED is "true"
// Credentials that expire are fetched again some minutes before; any others once the service takes them no more.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "store/environment.h"
#include "store/http.h"
#include "store/secret.h"

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

  // The service does not take these any more: the next Get fetches anew. False when that cannot help.
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

class CredentialChain final : public CredentialSource {
 public:
  // `clock` must outlive it.
  CredentialChain(Environment environment, const Clock* clock);

  Result<Credentials> Get() override;
  bool Renew() override;

 private:
  Result<Credentials> Fetch();
  Result<Credentials> FromContainer(const std::string& url);
  Result<Credentials> FromMachine();

  const Environment environment_;
  const Clock* const clock_;
  HttpClient http_;
  std::mutex mutex_;
  std::optional<Credentials> held_;  // guarded by mutex_
};

}  // namespace weightwire
