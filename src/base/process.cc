#include "base/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/check.h"

extern "C" char** environ;

namespace weightwire {
namespace {

class Pipe {
 public:
  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    CloseRead();
    CloseWrite();
  }
  [[nodiscard]] bool Open() { return ::pipe2(ends_.data(), O_CLOEXEC) == 0; }
  [[nodiscard]] int read_end() const { return ends_[0]; }
  [[nodiscard]] int write_end() const { return ends_[1]; }
  void CloseRead() { Close(ends_[0]); }
  void CloseWrite() { Close(ends_[1]); }

 private:
  static void Close(int& end) {
    if (end >= 0) ::close(std::exchange(end, -1));
  }
  std::array<int, 2> ends_ = {-1, -1};
};

// Returns an errno. The child leads a group, so that all it has started can be killed with it.
int Spawn(const std::vector<std::string>& arguments, const Pipe& input, const Pipe& output, pid_t& child) {
  std::vector<std::string> words = arguments;
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_adddup2(&actions, input.read_end(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output.write_end(), STDOUT_FILENO);
  // Our own threads block signals (signals_blocked.h); a program expects to get them.
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  const int error = ::posix_spawnp(&child, pointers[0], &actions, &attributes, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  return error;
}

enum class Outcome : std::uint8_t { kEnded, kTooLate, kTooMuch };

// All that comes out of the pipe until its other end is closed.
Outcome ReadAll(int from, const ProcessOptions& options, std::string& output) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + options.deadline;
  std::array<char, 4096> buffer{};
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) return Outcome::kTooLate;
    pollfd waiting{from, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(left.count()));
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t size = ::read(from, buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return Outcome::kEnded;
    output.append(buffer.data(), static_cast<std::size_t>(size));
    if (output.size() > options.max_output_bytes) return Outcome::kTooMuch;
  }
}

}  // namespace

Result<ProcessResult> RunProcess(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  WW_CHECK(!arguments.empty() && options.input.size() <= kMaxProcessInput);
  const std::string& program = arguments.front();
  const auto cannot_run = [&](int error) {
    return Error(ErrorCode::kIo, fmt::format("cannot run {}: {}", program, std::strerror(error)));
  };
  Pipe input;
  Pipe output;
  if (!input.Open() || !output.Open()) return cannot_run(errno);
  // It must not wait for a reader, should the pipe be a small one.
  if (::fcntl(input.write_end(), F_SETFL, O_NONBLOCK) != 0) return cannot_run(errno);
  // Before it is there to read it: a program that does not want it may be gone, and that would be a signal for us.
  const ssize_t told = ::write(input.write_end(), options.input.data(), options.input.size());
  if (told != static_cast<ssize_t>(options.input.size())) return cannot_run(errno);
  input.CloseWrite();
  pid_t child = -1;
  if (const int error = Spawn(arguments, input, output, child)) return cannot_run(error);
  input.CloseRead();
  output.CloseWrite();

  ProcessResult result;
  const Outcome outcome = ReadAll(output.read_end(), options, result.output);
  if (outcome != Outcome::kEnded) ::kill(-child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno == EINTR) continue;
    status = 0;  // somebody else has waited for all children; what was printed must do
    break;
  }
  if (outcome == Outcome::kTooLate) {
    return Error(ErrorCode::kUnavailable,
                 fmt::format("{} is not done after {} s", program,
                             std::chrono::ceil<std::chrono::seconds>(options.deadline).count()));
  }
  if (outcome == Outcome::kTooMuch) {
    return Error(ErrorCode::kLimit, fmt::format("{} prints more than {} bytes", program, options.max_output_bytes));
  }
  result.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

}  // namespace weightwire
