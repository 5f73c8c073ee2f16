// Checks AWS Signature Version 4 the strict way: written from the specification, apart from the code under test.
#pragma once

#include <string>

#include "store/http_server.h"

namespace weightwire::testing {

struct SigningKeys {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  // empty: none
  std::string region = "us-east-1";
};

// Empty when the request is signed rightly; else what is wrong.
std::string SignatureFault(const ServerRequest& request, const SigningKeys& keys);

}  // namespace weightwire::testing
