// Credentials for a token that some other service vouches for, as pods of Kubernetes have them: the token is exchanged
// at AWS's token service (STS AssumeRoleWithWebIdentity), or at another that speaks its protocol.
#pragma once

#include <string>

#include "store/credentials/credentials.h"
#include "store/http/http.h"

namespace weightwire {

struct WebIdentity {
  std::string token_file;  // read again each time, for it is renewed
  std::string role;        // an ARN
  std::string session;     // a name for AWS's own log; empty: "weightwire"
  std::string endpoint;    // "https://sts.eu-west-1.amazonaws.com"; http only on this machine
};

// kRefused when the service does not accept the token or the role; messages never quote the token.
Result<Credentials> WebIdentityCredentials(const WebIdentity& identity, HttpClient& http);

// AWS's own service; an empty region: the one for all.
std::string StsEndpoint(const std::string& region);

}  // namespace weightwire
