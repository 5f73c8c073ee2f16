// Credentials as JSON, as metadata services and credential processes give them.
#pragma once

#include <string_view>

#include "store/credentials/credentials.h"

namespace weightwire {

// kUnavailable if it holds none, "cannot get credentials from `whose`: …"; messages never quote it.
Result<Credentials> ParseCredentialsJson(std::string_view json, std::string_view whose);

}  // namespace weightwire
