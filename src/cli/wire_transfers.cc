#include "cli/wire_transfers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/object_hash.h"
#include "base/random.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "store/open.h"
#include "store/s3_store.h"
#include "store/transfer.h"

extern "C" char** environ;

namespace weightwire {
namespace {

// Both ends of a pipe, closed at the end.
class Pipe {
 public:
  static Result<std::unique_ptr<Pipe>> Make() {
    auto pipe = std::make_unique<Pipe>();
    if (::pipe2(pipe->ends_.data(), O_CLOEXEC) != 0) {
      return Error(ErrorCode::kIo, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
    }
    return pipe;
  }
  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    CloseRead();
    CloseWrite();
  }
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

// Runs curl with its options on standard input, where no other process sees the keys, and returns what it prints.
Result<std::string> RunCurl(const std::string& config) {
  WW_TRY(const auto input, Pipe::Make());
  WW_TRY(const auto output, Pipe::Make());
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input->read_end(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output->write_end(), STDOUT_FILENO);
  std::array<std::string, 4> words = {"curl", "-q", "-K", "-"};
  std::array<char*, 5> arguments = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  pid_t child = -1;
  const int spawned = ::posix_spawnp(&child, "curl", &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (spawned != 0) return Error(ErrorCode::kIo, fmt::format("cannot run curl: {}", std::strerror(spawned)));
  input->CloseRead();
  output->CloseWrite();
  // Shorter than a pipe holds, so this cannot wait for ever.
  const bool told = ::write(input->write_end(), config.data(), config.size()) == static_cast<ssize_t>(config.size());
  input->CloseWrite();
  std::string printed;
  std::array<char, 4096> piece{};
  for (;;) {
    const ssize_t size = ::read(output->read_end(), piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    printed.append(piece.data(), static_cast<std::size_t>(size));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!told || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return Error(ErrorCode::kIo,
                 fmt::format("curl could not do the transfer to compare with; it printed: {}", printed));
  }
  return printed;
}

class Transfers {
 public:
  Transfers(const BenchSite& site, std::uint64_t size_bytes)
      : site_(site), file_(site.directory / "transfer.bin"), bytes_(size_bytes) {}

  Result<WireTransfers> Run(const std::string& location, std::size_t repeat) {
    WW_RETURN_IF_ERROR(Prepare(location));
    const std::string ours = "bench/" + random_.Hex128();
    const std::string curls = "bench/" + random_.Hex128();
    Progress progress("measuring transfers", repeat);
    const auto measure = [&]() -> Status {
      for (std::size_t i = 0; i < repeat; ++i) {
        WW_RETURN_IF_ERROR(site_.interrupt.Check());
        WW_RETURN_IF_ERROR(figures_.upload.Time([&] { return store_->Put(ours, bytes_); }));
        WW_TRY(const double up, Curl(curls, fmt::format("upload-file = \"{}\"\n", file_.string())));
        figures_.curl_upload.Add(up);
        WW_RETURN_IF_ERROR(figures_.download.Time([&] { return Download(ours); }));
        WW_TRY(const double down, Curl(curls, ""));
        figures_.curl_download.Add(down);
        progress.Add(1);
      }
      return Ok();
    };
    Status measured = measure();
    for (const std::string& key : {ours, curls}) {
      const Status removed = store_->Remove(key);
      if (measured.ok()) measured = removed;
    }
    if (!measured.ok()) return measured.error();
    return figures_;
  }

 private:
  Status Prepare(const std::string& location) {
    OpenOptions open;
    open.clock = &clock_;
    WW_TRY(S3Options s3, S3OptionsOf(location, open));
    WW_TRY(const Credentials credentials, s3.credentials->Get());
    signing_ = fmt::format("user = \"{}:{}\"\naws-sigv4 = \"aws:amz:{}:s3\"\n", credentials.access_key,
                           credentials.secret_key.Reveal(), s3.service.region);
    if (!credentials.session_token.empty()) {
      signing_ += fmt::format("header = \"x-amz-security-token: {}\"\n", credentials.session_token.Reveal());
    }
    auto backend = std::make_unique<S3Store>(std::move(s3), &clock_);
    addresses_ = backend.get();
    WW_RETURN_IF_ERROR(backend->CreateBucket());
    WrapOptions wrap;
    wrap.clock = &clock_;
    wrap.sleeper = &sleeper_;
    wrap.random = &random_;
    store_ = WrapStore(std::move(backend), wrap);
    SeededRandom content(7);
    for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes_.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t word = content.Next();
      std::memcpy(bytes_.data() + at, &word, sizeof(word));
    }
    hash_ = ObjectHash(bytes_);
    figures_.size_bytes = bytes_.size();
    received_.resize(bytes_.size());
    WW_TRY(const File file, File::Create(file_));
    return file.WriteAt(0, bytes_);
  }

  Status Download(const std::string& key) { return DownloadObject(*store_, key, hash_, received_, TransferOptions()); }

  // Seconds, as curl itself measures them: without its start.
  [[nodiscard]] Result<double> Curl(const std::string& key, const std::string& more) const {
    WW_TRY(const std::string printed,
           RunCurl(fmt::format("url = \"{}\"\n{}{}header = \"x-amz-content-sha256: UNSIGNED-PAYLOAD\"\n"
                               "silent\nshow-error\nfail\noutput = \"/dev/null\"\n"
                               "write-out = \"%{{time_total}}\"\n",
                               addresses_->AddressOf(key), signing_, more)));
    double seconds = 0;
    const auto [end, error] = std::from_chars(printed.data(), printed.data() + printed.size(), seconds);
    if (error != std::errc() || seconds <= 0) return Error(ErrorCode::kIo, "curl did not say how long it took");
    return seconds;
  }

  const BenchSite& site_;
  const std::filesystem::path file_;
  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint8_t> received_;
  Sha256Digest hash_{};
  SystemClock clock_;
  SystemRandom random_;
  InterruptSleeper sleeper_;
  std::string signing_;
  std::unique_ptr<Store> store_;
  const S3Store* addresses_ = nullptr;  // within store_
  WireTransfers figures_;
};

}  // namespace

Result<WireTransfers> MeasureTransfers(const BenchSite& site, const std::string& location, std::uint64_t size_bytes,
                                       std::size_t repeat) {
  Transfers transfers(site, size_bytes);
  return transfers.Run(location, repeat);
}

}  // namespace weightwire
