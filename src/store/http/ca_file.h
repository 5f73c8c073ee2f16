// Where a machine keeps the CAs it trusts.
//
// libcurl knows one place, that of the system it was built for. A wheel carries its libcurl to systems that have them
// elsewhere.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/environment.h"

namespace weightwire {

// SSL_CERT_FILE if it is set, as OpenSSL has it; else the first of the places where systems have such a file that is
// there. Nothing if none is: then libcurl knows best.
std::optional<std::string> FindCaFile(const Environment& environment,
                                      const std::function<bool(const std::string& path)>& is_there);

// Of this machine.
std::optional<std::string> SystemCaFile(const Environment& environment);

}  // namespace weightwire
