#include "store/credentials/credential_process.h"

#include <fmt/format.h>

#include "base/process.h"
#include "store/credentials/credential_json.h"

namespace weightwire {

Result<Credentials> ProcessCredentials(const std::string& command, std::chrono::milliseconds deadline) {
  // The command may have secrets in it, and so has what it prints: no message quotes either.
  const auto failed = [](std::string_view what) {
    return Error(ErrorCode::kRefused,
                 fmt::format("the AWS profile's credential_process gives no credentials: {}; run it by hand", what));
  };
  ProcessOptions options;
  options.deadline = deadline;
  const auto ran = RunProcess({"sh", "-c", command}, options);
  if (!ran.ok()) return failed(ran.error().message());
  if (ran.value().status != 0) return failed(fmt::format("it ends with status {}", ran.value().status));
  auto credentials = ParseCredentialsJson(ran.value().output, "the AWS profile's credential_process");
  if (!credentials.ok()) return Error(ErrorCode::kRefused, credentials.error().message());
  return credentials;
}

}  // namespace weightwire
