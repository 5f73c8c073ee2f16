#include "cli/exec_command.h"

#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/policy.h"
#include "follow/mirror/mirror_state.h"

extern "C" char** environ;

namespace weightwire {
namespace {

// Names the version for which the command last succeeded.
constexpr std::string_view kSuccessFile = "told";
constexpr std::uint64_t kMaxSuccessBytes = 256;

// The number is for people. The hash names the version, also after the mirror was loaded again from a different run.
std::string SuccessText(const Held& held) {
  return fmt::format("version {} {}\n", held.version, ToHex(held.record_hash));
}

std::vector<std::string> EnvironmentWith(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!variables.contains(std::string(text.substr(0, text.find('='))))) all.emplace_back(text);
  }
  for (const auto& [name, value] : variables) all.push_back(fmt::format("{}={}", name, value));
  return all;
}

Error CannotRun(const std::string& command, int error) {
  return {ErrorCode::kIo, fmt::format("cannot run '{}': {}", command, std::strerror(error))};
}

// Runs a command line by the shell, with these variables in its environment, and waits for its end.
Status RunShellCommand(const std::string& command, const std::map<std::string, std::string>& variables,
                       const InterruptGuard& interrupt, const std::function<void()>& meanwhile) {
  std::vector<std::string> texts = EnvironmentWith(variables);
  std::vector<char*> environment;
  environment.reserve(texts.size() + 1);
  for (std::string& text : texts) environment.push_back(text.data());
  environment.push_back(nullptr);
  std::string shell = "sh";
  std::string option = "-c";
  std::string script = command;
  std::array<char*, 4> arguments = {shell.data(), option.data(), script.data(), nullptr};
  pid_t child = -1;
  const int spawned = ::posix_spawn(&child, "/bin/sh", nullptr, nullptr, arguments.data(), environment.data());
  if (spawned != 0) return CannotRun(command, spawned);

  // A descriptor that becomes readable when the child ends, so that one can wait for it and for a signal at once.
  const int child_end = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  bool passed_on = false;
  while (child_end >= 0) {
    std::array<pollfd, 2> ends = {{{child_end, POLLIN, 0}, {passed_on ? -1 : interrupt.wake_up(), POLLIN, 0}}};
    const int ready =
        ::poll(ends.data(), ends.size(), static_cast<int>(std::chrono::milliseconds(kChildLookInterval).count()));
    if (ready > 0 && ends[0].revents != 0) break;
    if (InterruptGuard::interrupted() && !passed_on) {
      passed_on = true;
      ::kill(child, SIGTERM);
    }
    if (ready == 0 && meanwhile) meanwhile();
  }
  if (child_end >= 0) ::close(child_end);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return CannotRun(command, errno);
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return Ok();
  if (WIFEXITED(status)) {
    return Error(ErrorCode::kIo, fmt::format("'{}' ended with status {}", command, WEXITSTATUS(status)));
  }
  return Error(ErrorCode::kIo, fmt::format("'{}' was ended by signal {}", command, WTERMSIG(status)));
}

}  // namespace

ExecCommand::ExecCommand(std::string command, Directories directories, FileSystem& files,
                         const InterruptGuard& interrupt)
    : command_(std::move(command)), directories_(std::move(directories)), files_(files), interrupt_(interrupt) {}

Status ExecCommand::Run(const Held& held, const std::function<void()>& meanwhile) {
  std::error_code ignored;
  const std::map<std::string, std::string> variables = {
      {"WEIGHTWIRE_VERSION", std::to_string(held.version)},
      {"WEIGHTWIRE_STEP", std::to_string(held.step)},
      {"WEIGHTWIRE_MIRROR", std::filesystem::absolute(directories_.weights, ignored).lexically_normal().string()}};
  WW_RETURN_IF_ERROR(RunShellCommand(command_, variables, interrupt_, meanwhile));
  return WriteDurably(files_, directories_.mirror / kMirrorFolder / kSuccessFile, SuccessText(held));
}

bool ExecCommand::HasSucceeded(const Held& held) const {
  const auto there = files_.Read(directories_.mirror / kMirrorFolder / kSuccessFile, kMaxSuccessBytes);
  return there.ok() && std::ranges::equal(there.value(), SuccessText(held));
}

}  // namespace weightwire
