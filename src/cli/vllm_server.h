// Moves a vLLM server without our plugin to a mirror's version, through vLLM's own routes. They exist only in its
// development mode (VLLM_SERVER_DEV_MODE=1).
//
// An update pauses the server and has it load all weights from the mirror and drop its caches. It then labels the
// server with the version and the first digits of the digest ("5-0f3c…"), and resumes it, running requests included.
// The label identifies the weights that the server holds, also after a restart of either side.
//
// Thread safety: one thread at a time.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"
#include "follow/targets/target.h"
#include "store/http/http.h"

namespace weightwire {

class VllmServer {
 public:
  // `url` as in "http://host:port".
  explicit VllmServer(std::string_view url);

  // Returns false without an update if the server is labelled with this version and digest. REQUIRES: the mirror holds
  // the version, the server sees it under the same path, and nothing writes to it during the call.
  //   kUnavailable, kUnknownOutcome   the server cannot be updated now and is unchanged. Try again.
  //   kUnsupported                    the update cannot be exact, or the server lacks the routes; it is unchanged.
  //   kIo                             the server failed during the update. It stays paused, because it must not answer
  //                                   with what it holds now; the operator has to restart it.
  Result<bool> UpdateTo(const Held& held, const std::filesystem::path& mirror);

 private:
  Result<HttpAnswer> Ask(const std::string& method, const std::string& path, const std::string& body);
  // The label; kUnsupported when the server has no such route.
  Result<std::string> Label();
  Status CheckExact(const std::filesystem::path& mirror);
  Status Reload(const std::string& label, const std::filesystem::path& mirror);

  std::string url_;
  HttpClient http_;
  bool is_known_to_run_ = false;
};

}  // namespace weightwire
