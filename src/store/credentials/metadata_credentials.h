// Credentials from services of the machine or the container that this runs in.
#pragma once

#include <string>
#include <string_view>

#include "base/environment.h"
#include "store/credentials/credentials.h"
#include "store/http/http.h"

namespace weightwire {

// How to ask them: soon without an answer, and never over a proxy.
HttpOptions MetadataHttpOptions();

// By AWS_CONTAINER_CREDENTIALS_…; kNotFound where that is not set.
Result<Credentials> ContainerCredentials(const Environment& environment, HttpClient& http);

// kNotFound when there is no such service, or it has no role.
Result<Credentials> MachineCredentials(const Environment& environment, HttpClient& http);

// Whether an http:// address goes to a service of this machine, not beyond it.
[[nodiscard]] bool IsLocalService(std::string_view url);

// Keys and a token go into headers, where a line break would start another.
[[nodiscard]] bool FitsInHeader(std::string_view text);

}  // namespace weightwire
