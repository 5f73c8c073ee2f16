#include "bench/transfers.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/object_hash.h"
#include "base/process.h"
#include "base/random.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "store/backends/s3_store.h"
#include "store/open.h"
#include "store/transfer.h"

namespace weightwire {
namespace {

constexpr std::chrono::minutes kTransferDeadline{10};

// Runs curl with its options on standard input, where no other process sees the keys, and returns what it prints.
Result<std::string> RunCurl(const std::string& config) {
  ProcessOptions options;
  options.input = config;
  options.deadline = kTransferDeadline;
  WW_TRY(ProcessResult ran, RunProcess({"curl", "-q", "-K", "-"}, options));
  if (ran.status != 0) {
    return Error(ErrorCode::kIo,
                 fmt::format("curl could not do the transfer to compare with; it printed: {}", ran.output));
  }
  return std::move(ran.output);
}

class TransferBench {
 public:
  TransferBench(const BenchSetup& setup, std::uint64_t size_bytes)
      : setup_(setup), file_(setup.directory / "transfer.bin"), bytes_(size_bytes) {}

  Result<TransferTimes> Run(const std::string& location, std::size_t repeat) {
    WW_RETURN_IF_ERROR(Prepare(location));
    const std::string ours = "bench/" + random_.Hex128();
    const std::string curls = "bench/" + random_.Hex128();
    Progress progress("measuring transfers", repeat);
    const auto measure = [&]() -> Status {
      for (std::size_t i = 0; i < repeat; ++i) {
        WW_RETURN_IF_ERROR(setup_.interrupt.Check());
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
    open.sleeper = &sleeper_;
    open.random = &random_;
    store_ = WrapStore(std::move(backend), open);
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

  const BenchSetup& setup_;
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
  TransferTimes figures_;
};

}  // namespace

Result<TransferTimes> MeasureTransfers(const BenchSetup& setup, const std::string& location, std::uint64_t size_bytes,
                                       std::size_t repeat) {
  TransferBench bench(setup, size_bytes);
  return bench.Run(location, repeat);
}

}  // namespace weightwire
