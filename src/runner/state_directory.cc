#include "runner/state_directory.h"

#include <cstdlib>
#include <system_error>

#include "base/file.h"
#include "base/surface.h"

namespace weightwire {

Result<std::filesystem::path> StateDirectoryPath(const std::optional<std::filesystem::path>& given, const Id& run) {
  std::filesystem::path directory;
  if (given.has_value()) {
    directory = *given;
  } else {
    const char* const state_home = std::getenv("XDG_STATE_HOME");
    const char* const home = std::getenv("HOME");
    // A relative one counts as not set, by the XDG specification.
    if (state_home != nullptr && *state_home == '/') {
      directory = state_home;
    } else if (home != nullptr && *home != '\0') {
      directory = std::filesystem::path(home) / ".local" / "state";
    } else {
      return Error(ErrorCode::kInvalidArgument,
                   "there is no home directory to keep the publisher's state in; say where with " +
                       OptionText("state-dir", "DIR"));
    }
    directory = directory / "weightwire" / ToHex(run);
  }
  std::error_code error;
  directory = std::filesystem::absolute(directory, error).lexically_normal();
  if (error) return SystemError("find the directory", directory, error.value());
  return directory.has_filename() ? directory : directory.parent_path();
}

Result<std::filesystem::path> StateDirectory(const std::optional<std::filesystem::path>& given, const Id& run) {
  WW_TRY(const std::filesystem::path directory, StateDirectoryPath(given, run));
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return SystemError("make the directory", directory, error.value());
  return directory;
}

}  // namespace weightwire
