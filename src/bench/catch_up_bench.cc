// weightwire-bench catchup: what staging and applying several versions at once costs, beside one.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench/benchmarks.h"
#include "bench/catch_up.h"
#include "cli/checkpoints.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/text.h"

namespace weightwire {
namespace {

constexpr std::array<std::uint64_t, 5> kVersions = {1, 2, 3, 6, 12};
constexpr std::size_t kMinRounds = 3;
constexpr std::size_t kMaxRounds = 1'000'000;
constexpr std::uint64_t kMaxMegabytes = 1'000'000;
constexpr std::uint64_t kMaxRows = 1'000'000;

constexpr double kMaxStage = 1.3;
constexpr double kMaxApply = 1.3;

struct CatchUpBenchOptions {
  std::uint64_t model_megabytes = 160;
  std::uint64_t rows = 195;  // 200 tensors
  std::size_t repeat = 7;
  const GlobalOptions* global = nullptr;
};

// The time of staging, relative to one version times the number of versions.
double StageRatio(const CatchUps& f, const CatchUp& row) {
  return row.stage.best() / (static_cast<double>(row.versions) * f.rows.front().stage.best());
}
// Against one version that changes the same elements.
double ApplyRatio(const CatchUp& row) { return row.apply.best() / row.apply_single.best(); }

void ReportJson(const CatchUps& f, const Compute& compute, std::size_t repeat) {
  JsonOutput json;
  json["model_bytes"] = f.model_bytes;
  json["tensors"] = f.tensors;
  json["threads"] = compute.pool->threads();
  json["isa"] = compute.kernels->name;
  json["repeat"] = repeat;
  json["rows"] = JsonOutput::array();
  for (const CatchUp& row : f.rows) {
    JsonOutput out;
    out["versions"] = row.versions;
    out["changed"] = row.changed;
    out["stage_s"] = row.stage.best();
    out["stage_ratio"] = StageRatio(f, row);
    out["stage_peak_bytes"] = row.stage_peak_bytes;
    out["apply_s"] = row.apply.best();
    out["apply_single_s"] = row.apply_single.best();
    out["apply_ratio"] = ApplyRatio(row);
    out["write_s"] = row.write.best();
    json["rows"].push_back(std::move(out));
  }
  PrintJson(json);
}

void ReportText(const CatchUps& f, const Compute& compute, std::size_t repeat) {
  fmt::print("{} model in {} tensors; {} {}, {}, best of {}\n\n", HumanBytes(f.model_bytes), WithCommas(f.tensors),
             compute.pool->threads(), compute.pool->threads() == 1 ? "thread" : "threads", compute.kernels->name,
             repeat);
  TextTable table("rrrrrrrrr");
  table.AddRow({"versions", "changed", "staged", "to so many times one", "applied", "one version with the same changes",
                "to that", "written only", "staging takes at most"});
  const auto mark = [](double ratio, double most) {
    return fmt::format("{:.2f} × {}", ratio, ratio <= most ? "" : "(above the limit)");
  };
  for (const CatchUp& row : f.rows) {
    table.AddRow({WithCommas(row.versions), WithCommas(row.changed), HumanSeconds(row.stage.best()),
                  mark(StageRatio(f, row), kMaxStage), HumanSeconds(row.apply.best()),
                  HumanSeconds(row.apply_single.best()), mark(ApplyRatio(row), kMaxApply),
                  HumanSeconds(row.write.best()), HumanBytes(row.stage_peak_bytes)});
  }
  fmt::print("{}\nlimits: staging {} ×, applying {} ×\n", table.Render(), kMaxStage, kMaxApply);
}

Status RunCatchUpBench(const CatchUpBenchOptions& options) {
  WW_TRY(const Compute compute, Compute::Make(options.global->threads));
  const CatchUpModel model{options.model_megabytes * 1'000'000, options.rows};
  WW_TRY(const CatchUps figures, MeasureCatchingUp(model, kVersions, options.repeat, compute));
  if (options.global->json) {
    ReportJson(figures, compute, options.repeat);
  } else {
    ReportText(figures, compute, options.repeat);
  }
  return Ok();
}

}  // namespace

Command AddCatchUpBench(CLI::App& app, const GlobalOptions& global) {
  const auto options = std::make_shared<CatchUpBenchOptions>();
  options->global = &global;
  CLI::App& sub = *app.add_subcommand("catchup", "measure staging and applying several versions at once");
  AddNumber(sub, "--megabytes", options->model_megabytes, "size of the model")
      ->check(CLI::Range(std::uint64_t{1}, kMaxMegabytes).description(""));
  AddNumber(sub, "--rows", options->rows, "rows of a matrix, of 2048 columns: fewer rows make more tensors")
      ->check(CLI::Range(std::uint64_t{1}, kMaxRows).description(""));
  AddNumber(sub, "--repeat", options->repeat, "how often to measure; the best counts")
      ->check(CLI::Range(kMinRounds, kMaxRounds).description(fmt::format("(at least {})", kMinRounds)));
  sub.footer(
      "Each version changes 1 % of the weights. Staging several is compared with one version times their number;\n"
      "applying them, with one version that changes the same weights, and with writing those weights and nothing "
      "else.\n"
      "\n"
      "Example:\n"
      "  weightwire-bench catchup --megabytes 160 --threads 2 --json");
  return {&sub, [options] { return RunCatchUpBench(*options); }};
}

}  // namespace weightwire
