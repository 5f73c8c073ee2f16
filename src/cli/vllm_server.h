// A vLLM server without our plugin, brought to a mirror's version from outside by its own routes. They exist only in
// its development mode (VLLM_SERVER_DEV_MODE=1).
//
// The server is paused, loads all weights anew from the mirror, forgets what it computed, is labelled with the version
// and the first digits of its state's digest ("5-0f3c…") and goes on; requests that were running go on too. The label
// tells what it holds, over restarts of either side.
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

  // Does nothing if the server is labelled with this version and state already. REQUIRES: the mirror holds it, and
  // nobody writes to it meanwhile. The server sees it under the same path.
  //   kUnavailable, kUnknownOutcome   not now; the server goes on as it was. Try again.
  //   kUnsupported                    it cannot be done exactly, or the routes are not there; nothing was done.
  //   kIo                             the server failed on the way. It is left paused: it must not answer with what it
  //                                   holds now, and has to be started anew.
  // Returns whether anything was done.
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
