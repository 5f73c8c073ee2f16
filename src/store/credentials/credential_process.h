// Credentials that a program prints: credential_process of a profile, as the AWS tools have it.
#pragma once

#include <chrono>
#include <string>

#include "store/credentials/credentials.h"
#include "store/policy.h"

namespace weightwire {

// Runs the command in a shell, without input, and reads what it prints; what it says on stderr is for the user. One
// that fails, prints something else or is not done in time is kRefused: a person must act.
Result<Credentials> ProcessCredentials(const std::string& command,
                                       std::chrono::milliseconds deadline = kCredentialProcessTimeout);

}  // namespace weightwire
