// weightwire-bench wire: what a version costs a trainer, a bucket and a mirror on this machine, each beside its floor.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/filesystem.h"
#include "base/random.h"
#include "base/result.h"
#include "bench/benchmarks.h"
#include "bench/late_joiner.h"
#include "bench/transfers.h"
#include "bench/version_cost.h"
#include "cli/checkpoints.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/temporary_directory.h"
#include "cli/text.h"

namespace weightwire {
namespace {

constexpr std::size_t kMinRounds = 3;
constexpr std::size_t kMaxRounds = 1'000'000;
constexpr std::uint64_t kMaxVersions = 1'000'000;
constexpr std::uint64_t kMaxMegabytes = 1'000'000;

struct WireBenchOptions {
  // Where states, bucket and mirror lie while it runs; the system's directory for temporary files if none.
  std::optional<std::filesystem::path> directory;
  // An s3:// URL, to measure transfers against curl; they are left out if none.
  std::optional<std::string> store;
  std::uint64_t model_megabytes = 1200;
  std::uint64_t part_mebibytes = 256;
  std::uint64_t late_versions = 100;
  std::size_t repeat = 7;
  const GlobalOptions* global = nullptr;
};

struct WireFigures {
  VersionCost version;
  LateJoiners late;
  std::optional<TransferTimes> transfers;
};

// A figure and what it must be. What was not measured has no value.
struct Row {
  std::string what;
  std::string must;
  std::string measured;
  std::optional<bool> reached;
};

constexpr double kMaxHoldShare = 0.1;
constexpr double kMaxHoldSeconds = 1e-3;
constexpr std::uint64_t kMaxBytesBeyond = 4096 + 200;  // of a version with one part
constexpr std::uint64_t kMaxRequests = 3;
constexpr double kLeastOfCurl = 0.8;
constexpr double kMaxMirror = 3;

double HeldBeyondEncoding(const VersionCost& r) { return r.publish.best() - r.encode.best(); }
double AllowedBeyondEncoding(const VersionCost& r) { return kMaxHoldShare * r.encode.best() + kMaxHoldSeconds; }
double MirrorOverFloor(const VersionCost& r) { return r.mirror.best() / (r.read.best() + r.write_journal.best()); }
double MirrorOverFloorMedian(const VersionCost& r) {
  return r.mirror.median() / (r.read.median() + r.write_journal.median());
}

std::vector<Row> Rows(const WireFigures& f) {
  const VersionCost& r = f.version;
  std::vector<Row> rows;
  rows.push_back(
      {"publish holds its caller, beyond encoding", fmt::format("≤ 10 % of {} + 1 ms", HumanSeconds(r.encode.best())),
       fmt::format("{:.1f} ms", HeldBeyondEncoding(r) * 1e3), HeldBeyondEncoding(r) <= AllowedBeyondEncoding(r)});
  rows.push_back({"bytes sent for a version, beyond its delta", "≤ 4 KiB + 200 bytes for its part",
                  WithCommas(r.bytes_beyond_delta), r.bytes_beyond_delta <= kMaxBytesBeyond});
  rows.push_back({"requests for a version, publisher", "≤ 3", WithCommas(r.publisher_requests),
                  r.publisher_requests <= kMaxRequests});
  rows.push_back({"requests for a version, follower", "≤ 3", WithCommas(r.follower_requests),
                  r.follower_requests <= kMaxRequests});
  const auto against_curl = [&](const char* what, Timings TransferTimes::*ours, Timings TransferTimes::*curls) {
    if (!f.transfers.has_value()) {
      rows.push_back({what, "≥ 0.8 × curl", "skipped: give --store", std::nullopt});
      return;
    }
    const TransferTimes& t = *f.transfers;
    const double ratio = (t.*curls).best() / (t.*ours).best();
    rows.push_back(
        {fmt::format("{} of {}", what, HumanBytes(t.size_bytes)), "≥ 0.8 × curl",
         fmt::format("{:.2f} × curl ({:.2f} GB/s)", ratio, static_cast<double>(t.size_bytes) / (t.*ours).best() / 1e9),
         ratio >= kLeastOfCurl});
  };
  against_curl("upload", &TransferTimes::upload, &TransferTimes::curl_upload);
  against_curl("download", &TransferTimes::download, &TransferTimes::curl_download);
  rows.push_back({"mirror brought up by one version", "≤ 3 × (read touched + write and sync journal)",
                  fmt::format("{:.2f} × (median {:.2f})", MirrorOverFloor(r), MirrorOverFloorMedian(r)),
                  MirrorOverFloor(r) <= kMaxMirror});
  const auto late = [&](const std::string& what, const LateJoiner& joiner) {
    rows.push_back({what, fmt::format("≤ {}, the cheapest way", WithCommas(joiner.cheapest_bytes)),
                    WithCommas(joiner.fetched_bytes), joiner.fetched_bytes <= joiner.cheapest_bytes});
  };
  late(fmt::format("bytes fetched, {} versions behind", f.late.versions), f.late.behind);
  late(fmt::format("bytes fetched, with nothing, at version {}", f.late.versions), f.late.nothing);
  return rows;
}

// What was timed: its name in JSON, and in the table.
struct TimedStep {
  std::string name;
  std::string what;
  const Timings& timings;
};

std::vector<TimedStep> TimedSteps(const WireFigures& f) {
  const VersionCost& r = f.version;
  std::vector<TimedStep> steps = {
      {"encode", "encode", r.encode},
      {"publish", "publish, until its caller goes on", r.publish},
      {"read", "read the touched tensors once", r.read},
      {"write_journal", fmt::format("write and sync {}, as the journal has", HumanBytes(r.journal_bytes)),
       r.write_journal},
      {"mirror", "mirror, from the record seen to readable and crash-safe", r.mirror},
      {"mirror_fetch", "  part fetched and hashed", r.fetch},
      {"mirror_stage", "  decoded, verified, staged", r.stage},
      {"mirror_apply", "  journal on the disk, weights written", r.apply},
      {"mirror_sync", "mirror afterwards: weights on the disk", r.sync},
  };
  if (f.transfers.has_value()) {
    steps.push_back({"upload", "upload", f.transfers->upload});
    steps.push_back({"curl_upload", "upload by curl", f.transfers->curl_upload});
    steps.push_back({"download", "download, hash checked", f.transfers->download});
    steps.push_back({"curl_download", "download by curl", f.transfers->curl_download});
  }
  return steps;
}

void ReportText(const WireFigures& f, const Compute& compute, std::size_t repeat) {
  const VersionCost& r = f.version;
  fmt::print("{} model, {} elements changed ({}), delta of {}; {} {}, {}, best of {}\n\n", HumanBytes(r.model_bytes),
             WithCommas(r.changed), Percent(r.changed, r.elements), HumanBytes(r.delta_bytes), compute.pool->threads(),
             compute.pool->threads() == 1 ? "thread" : "threads", compute.kernels->name, repeat);
  TextTable table("llll");
  table.AddRow({"", "must", "measured", ""});
  for (const Row& row : Rows(f)) {
    table.AddRow({row.what, row.must, row.measured, row.reached.value_or(true) ? "" : "not reached"});
  }
  fmt::print("{}\n", table.Render());

  TextTable times("lrr");
  times.AddRow({"", "best", "median"});
  for (const TimedStep& step : TimedSteps(f)) {
    times.AddRow({step.what, HumanSeconds(step.timings.best()), HumanSeconds(step.timings.median())});
  }
  fmt::print("{}", times.Render());
}

void ReportJson(const WireFigures& f, const Compute& compute, std::size_t repeat) {
  const VersionCost& r = f.version;
  JsonOutput json;
  json["model_bytes"] = r.model_bytes;
  json["elements"] = r.elements;
  json["changed"] = r.changed;
  json["delta_bytes"] = r.delta_bytes;
  json["threads"] = compute.pool->threads();
  json["isa"] = compute.kernels->name;
  json["repeat"] = repeat;
  for (const TimedStep& step : TimedSteps(f)) {
    json[step.name + "_s"] = step.timings.best();
    json[step.name + "_median_s"] = step.timings.median();
  }
  json["publish_beyond_encode_s"] = HeldBeyondEncoding(r);
  json["publish_beyond_encode_allowed_s"] = AllowedBeyondEncoding(r);
  json["bytes_beyond_delta"] = r.bytes_beyond_delta;
  json["bytes_beyond_delta_allowed"] = kMaxBytesBeyond;
  json["publisher_requests"] = r.publisher_requests;
  json["follower_requests"] = r.follower_requests;
  json["journal_bytes"] = r.journal_bytes;
  json["mirror_over_floor"] = MirrorOverFloor(r);
  json["mirror_over_floor_median"] = MirrorOverFloorMedian(r);
  if (f.transfers.has_value()) {
    const TransferTimes& t = *f.transfers;
    json["part_bytes"] = t.size_bytes;
    json["upload_over_curl"] = t.curl_upload.best() / t.upload.best();
    json["download_over_curl"] = t.curl_download.best() / t.download.best();
  } else {
    json["upload_over_curl"] = nullptr;
    json["download_over_curl"] = nullptr;
  }
  json["late_versions"] = f.late.versions;
  const auto late = [&](const std::string& name, const LateJoiner& joiner) {
    json[name + "_fetched_bytes"] = joiner.fetched_bytes;
    json[name + "_cheapest_bytes"] = joiner.cheapest_bytes;
    json[name + "_requests"] = joiner.requests;
    json[name + "_from_anchor"] = joiner.from_anchor;
  };
  late("late_behind", f.late.behind);
  late("late_nothing", f.late.nothing);
  PrintJson(json);
}

Status RunWireBench(const WireBenchOptions& options, FileSystem& files) {
  WW_TRY(const Compute compute, Compute::Make(options.global->threads));
  std::error_code error;
  const std::filesystem::path parent =
      options.directory.has_value() ? *options.directory : std::filesystem::temp_directory_path(error);
  const InterruptGuard interrupt;
  SystemRandom random;
  const TemporaryDirectory directory(files, parent / ("weightwire-bench-" + random.Hex128()));
  WW_RETURN_IF_ERROR(files.MakeDirectory(directory.path()));
  const BenchSetup setup{directory.path(), compute, files, interrupt};
  WireFigures figures;
  if (options.store.has_value()) {
    constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
    WW_TRY(figures.transfers,
           MeasureTransfers(setup, *options.store, options.part_mebibytes * kMebibyte, options.repeat));
  }
  WW_TRY(figures.late, MeasureLateJoiners(setup, options.late_versions));
  constexpr std::uint64_t kMegabyte = 1'000'000;
  WW_TRY(figures.version, MeasureVersions(setup, options.model_megabytes * kMegabyte, options.repeat));
  if (options.global->json) {
    ReportJson(figures, compute, options.repeat);
  } else {
    ReportText(figures, compute, options.repeat);
  }
  return Ok();
}

}  // namespace

Command AddWireBench(CLI::App& app, FileSystem& files, const GlobalOptions& global) {
  const auto options = std::make_shared<WireBenchOptions>();
  options->global = &global;
  CLI::App& sub = *app.add_subcommand("wire", "measure what a version costs a trainer, a bucket and a mirror");
  AddPath(sub, "--dir", options->directory,
          "where bucket and mirror lie while it runs, and so the disk that is measured; the directory for temporary "
          "files unless given");
  sub.add_option("--store", options->store,
                 "an s3:// URL: measures transfers through it too, against curl; the bucket is made if need be")
      ->type_name("URL");
  AddNumber(sub, "--megabytes", options->model_megabytes, "the size of the model (1200 unless given)")
      ->check(CLI::Range(std::uint64_t{1}, kMaxMegabytes).description(""));
  AddNumber(sub, "--part-mebibytes", options->part_mebibytes, "the size of the object to transfer (256 unless given)")
      ->check(CLI::Range(std::uint64_t{1}, kMaxMegabytes).description(""));
  AddNumber(sub, "--late", options->late_versions, "how many versions a late joiner is behind (100 unless given)")
      ->check(CLI::Range(std::uint64_t{1}, kMaxVersions).description(""));
  AddNumber(sub, "--repeat", options->repeat, "how often to measure; the best counts (7 unless given)")
      ->check(CLI::Range(kMinRounds, kMaxRounds).description(fmt::format("(at least {})", kMinRounds)));
  sub.footer(
      "A made-up model is published and followed on a directory bucket, one in a hundred weights changed by one ulp "
      "for\n"
      "each version. Every figure stands beside its floor, measured in the same round, and beside what it must reach.\n"
      "Takes about five times the model's size of memory, and four times as much of the disk.\n"
      "\n"
      "Examples:\n"
      "  weightwire-bench wire\n"
      "  weightwire-bench wire --dir /data --json\n"
      "  AWS_ENDPOINT_URL=http://127.0.0.1:7480 weightwire-bench wire --store s3://bench/run");
  return {&sub, [options, &files] { return RunWireBench(*options, files); }};
}

}  // namespace weightwire
