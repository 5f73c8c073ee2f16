// Credentials by the usual chain; the first that has any is used:
//   1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
//   2. a web identity: AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN (web_identity.h)
//   3. the profile in the shared files (aws_profile.h): its keys, web_identity_token_file with role_arn, or
//      credential_process (credential_process.h)
//   4. the container's service (AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI)
//   5. the machine's metadata service, version 2, unless AWS_EC2_METADATA_DISABLED is "true"
// Credentials that expire are fetched again some minutes before; any others once the service takes them no more.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "base/environment.h"
#include "store/credentials/credentials.h"
#include "store/http/http.h"

namespace weightwire {

// Keys that are written down, in the environment or a profile, or whatever there is.
enum class CredentialKinds : std::uint8_t { kOnlyKeys, kAll };

class CredentialChain final : public CredentialSource {
 public:
  // `http` is for what is asked beyond this machine. `clock` must outlive it.
  CredentialChain(Environment environment, HttpOptions http, const Clock* clock,
                  CredentialKinds kinds = CredentialKinds::kAll);

  Result<Credentials> Get() override;
  bool Renew() override;

 private:
  Result<Credentials> Fetch();

  const Environment environment_;
  const Clock* const clock_;
  const CredentialKinds kinds_;
  HttpClient near_;  // services of this machine
  HttpClient far_;
  std::mutex mutex_;
  std::optional<Credentials> held_;  // guarded by mutex_
};

}  // namespace weightwire
