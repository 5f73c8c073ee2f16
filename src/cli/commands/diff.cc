// weightwire diff OLD NEW: what changed and what it costs to send.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "cli/checkpoints.h"
#include "cli/commands/commands.h"
#include "cli/global_options.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/peers.h"
#include "cli/state_pair.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "codec/digest/state.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

struct DiffOptions {
  std::filesystem::path old_path;
  std::filesystem::path new_path;
  std::optional<std::filesystem::path> delta_path;  // where the delta is to be written, if it is
  bool replace_delta = false;                       // even if there is a file of that name
  std::string mode = "auto";
  bool compare = true;       // with what other systems' formats take
  bool all_tensors = false;  // unchanged ones too
  const GlobalOptions* global = nullptr;
};

struct Totals {
  std::uint64_t elements = 0;
  std::uint64_t changed = 0;
  std::uint64_t tensors_changed = 0;
  // Of the changes that are steps, not new tensors.
  std::uint64_t stepped = 0;
  std::uint64_t single_steps = 0;
};

// Everything there is to say.
struct DiffResult {
  const StatePair& pair;
  const EncodedDelta& delta;
  Sha256Digest state_before;
  Sha256Digest state_after;
  std::vector<std::size_t> removed;  // by the layout before
  std::vector<std::size_t> added;    // by the layout after
  Totals totals;
  std::optional<std::vector<PeerBytes>> peers;  // by the layout after
  std::optional<PeerBytes> peers_total;

  [[nodiscard]] const EntryReport& report(std::size_t tensor) const { return delta.reports[tensor]; }
  [[nodiscard]] bool is_changed(std::size_t tensor) const { return std::strcmp(report(tensor).mode, "unchanged") != 0; }
};

Result<std::vector<PeerBytes>> MeasurePeers(const DiffResult& result, const Compute& compute) {
  const StatePair& pair = result.pair;
  std::vector<std::size_t> order;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < pair.layout_after.size(); ++i) {
    if (!result.is_changed(i)) continue;
    order.push_back(i);
    total += pair.new_bytes[i].size();
  }
  // A tensor is one stream, so the largest ones first: no thread is left with one at the end.
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return pair.new_bytes[a].size() > pair.new_bytes[b].size(); });
  std::vector<PeerBytes> peers(pair.layout_after.size());
  std::vector<PeerMeter> meters;
  for (std::size_t i = 0; i < compute.pool->threads(); ++i) meters.emplace_back(*compute.kernels);
  Progress progress("measuring other formats", total);
  std::mutex mutex;
  Status first_error;  // guarded by mutex
  compute.pool->ParallelFor(order.size(), [&](std::size_t k, std::size_t worker) {
    const std::size_t tensor = order[k];
    const auto origin = pair.Origin(tensor);
    auto measured = meters[worker].Measure(origin ? pair.old_bytes[*origin] : std::span<const std::uint8_t>(),
                                           pair.new_bytes[tensor], UnitBytes(pair.layout_after.tensors()[tensor].dtype),
                                           [&](std::uint64_t bytes) { progress.Add(bytes); });
    if (measured.ok()) {
      peers[tensor] = measured.value();
    } else {
      const std::lock_guard lock(mutex);
      first_error = measured.error();
    }
  });
  if (!first_error.ok()) return first_error.error();
  return peers;
}

void CountChanges(DiffResult& result) {
  const StatePair& pair = result.pair;
  for (std::size_t i = 0; i < pair.layout_after.size(); ++i) {
    result.totals.elements += pair.layout_after.element_count(i);
    const bool added = !pair.Origin(i).has_value();
    if (added) result.added.push_back(i);
    if (!result.is_changed(i)) continue;
    ++result.totals.tensors_changed;
    result.totals.changed += result.report(i).changed;
    if (added) continue;
    result.totals.stepped += result.report(i).changed;
    result.totals.single_steps += result.report(i).single_steps;
  }
  for (std::size_t i = 0; i < pair.layout_before.size(); ++i) {
    if (!pair.layout_after.FindSame(pair.layout_before.tensors()[i]).has_value()) result.removed.push_back(i);
  }
}

JsonOutput RatioOrNull(std::uint64_t dividend, std::uint64_t divisor) {
  if (divisor == 0) return nullptr;
  return static_cast<double>(dividend) / static_cast<double>(divisor);
}

void ReportJson(const DiffResult& result, const DiffOptions& options) {
  const Layout& layout = result.pair.layout_after;
  JsonOutput json;
  json["elements"] = result.totals.elements;
  json["changed_elements"] = result.totals.changed;
  json["tensors"] = layout.size();
  json["changed_tensors"] = result.totals.tensors_changed;
  json["model_bytes"] = layout.total_bytes();
  json["delta_bytes"] = result.delta.file.size();
  json["bytes_per_changed_element"] = RatioOrNull(result.delta.file.size(), result.totals.changed);
  json["single_step_ratio"] = RatioOrNull(result.totals.single_steps, result.totals.stepped);
  if (result.peers_total.has_value()) {
    json["trl_raw_bytes"] = result.peers_total->trl_raw;
    json["trl_gap_bytes"] = result.peers_total->trl_gap;
    json["xor_zstd_bytes"] = result.peers_total->xor_zstd;
  }
  json["digest_before"] = ToHex(result.state_before);
  json["digest_after"] = ToHex(result.state_after);
  json["layout_before"] = ToHex(result.pair.layout_before.hash());
  json["layout_after"] = ToHex(layout.hash());
  json["added"] = JsonOutput::array();
  for (const std::size_t i : result.added) json["added"].push_back(layout.tensors()[i].name);
  json["removed"] = JsonOutput::array();
  for (const std::size_t i : result.removed) json["removed"].push_back(result.pair.layout_before.tensors()[i].name);
  json["per_tensor"] = JsonOutput::array();
  for (std::size_t i = 0; i < layout.size(); ++i) {
    if (!result.is_changed(i) && !options.all_tensors) continue;
    const EntryReport& report = result.report(i);
    const TensorSpec& spec = layout.tensors()[i];
    JsonOutput tensor;
    tensor["name"] = spec.name;
    tensor["dtype"] = NameOf(spec.dtype);
    tensor["shape"] = spec.shape;
    tensor["elements"] = layout.element_count(i);
    tensor["changed_elements"] = report.changed;
    tensor["single_steps"] = report.single_steps;
    tensor["delta_bytes"] = report.payload_bytes;
    tensor["bytes_per_changed_element"] = RatioOrNull(report.payload_bytes, report.changed);
    tensor["mode"] = report.mode;
    if (result.peers.has_value()) {
      tensor["trl_raw_bytes"] = (*result.peers)[i].trl_raw;
      tensor["trl_gap_bytes"] = (*result.peers)[i].trl_gap;
      tensor["xor_zstd_bytes"] = (*result.peers)[i].xor_zstd;
    }
    json["per_tensor"].push_back(std::move(tensor));
  }
  PrintJson(json);
}

std::string PerChanged(std::uint64_t bytes, std::uint64_t changed) {
  return Ratio(static_cast<double>(bytes), static_cast<double>(changed));
}

void ReportText(const DiffResult& result, const DiffOptions& options) {
  const Layout& layout = result.pair.layout_after;
  const Totals& totals = result.totals;
  fmt::print("{} tensors, {} elements, {}\n", WithCommas(layout.size()), WithCommas(totals.elements),
             HumanBytes(layout.total_bytes()));
  if (totals.tensors_changed == 0 && result.removed.empty()) {
    fmt::print("nothing changed; the delta takes {} bytes\n", WithCommas(result.delta.file.size()));
  } else {
    fmt::print("{} tensors changed: {} elements ({})", WithCommas(totals.tensors_changed), WithCommas(totals.changed),
               Percent(totals.changed, totals.elements));
    if (totals.stepped != 0) fmt::print(", {} of them by one ulp", Percent(totals.single_steps, totals.stepped));
    fmt::print("\n");
  }
  const auto print = [](const char* what, const TensorSpec& spec) {
    fmt::print("{:<9}{} {}\n", what, Printable(spec.name), Describe(spec));
  };
  for (const std::size_t i : result.added) print("added", layout.tensors()[i]);
  for (const std::size_t i : result.removed) print("removed", result.pair.layout_before.tensors()[i]);

  if (totals.changed != 0) {
    TextTable summary("lrrr");
    const auto add = [&](const char* name, std::uint64_t bytes) {
      summary.AddRow(
          {name, WithCommas(bytes), PerChanged(bytes, totals.changed), Percent(bytes, layout.total_bytes())});
    };
    summary.AddRow({"to send", "bytes", "per changed", "of the model"});
    add("weightwire, the whole file", result.delta.file.size());
    if (result.peers_total.has_value()) {
      add("XOR + zstd-1 (slime)", result.peers_total->xor_zstd);
      add("gaps + values (TRL gap)", result.peers_total->trl_gap);
      add("indices + values (TRL raw)", result.peers_total->trl_raw);
    }
    fmt::print("\n{}", summary.Render());
  }

  TextTable table("lllrrrrrlrrr");
  bool any = false;
  table.AddRow({"tensor", "type", "shape", "changed", "share", "±1 ulp", "bytes", "per changed", "mode",
                result.peers ? "XOR+zstd" : "", result.peers ? "TRL gap" : "", result.peers ? "TRL raw" : ""});
  for (std::size_t i = 0; i < layout.size(); ++i) {
    if (!result.is_changed(i) && !options.all_tensors) continue;
    any = true;
    const EntryReport& report = result.report(i);
    const TensorSpec& spec = layout.tensors()[i];
    const auto peer = [&](std::uint64_t PeerBytes::*member) {
      return result.peers.has_value() ? WithCommas((*result.peers)[i].*member) : std::string();
    };
    const bool stepped = result.pair.Origin(i).has_value();
    table.AddRow({spec.name, std::string(NameOf(spec.dtype)), fmt::format("[{}]", fmt::join(spec.shape, ", ")),
                  WithCommas(report.changed), Percent(report.changed, report.units),
                  stepped ? Percent(report.single_steps, report.changed) : "–", WithCommas(report.payload_bytes),
                  PerChanged(report.payload_bytes, report.changed), report.mode, peer(&PeerBytes::xor_zstd),
                  peer(&PeerBytes::trl_gap), peer(&PeerBytes::trl_raw)});
  }
  if (any) fmt::print("\n{}", table.Render());
  fmt::print("\ndigest before  {}\ndigest after   {}\n", ToHex(result.state_before), ToHex(result.state_after));
  if (options.delta_path.has_value()) fmt::print("written to     {}\n", options.delta_path->string());
}

// "-" instead of a file: the delta is the result then, and nothing else is printed.
bool WritesToStandardOutput(const DiffOptions& options) { return options.delta_path == std::filesystem::path("-"); }

Status WriteDelta(const DiffOptions& options, std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kPortionBytes = std::size_t{1} << 24;
  const InterruptGuard interrupt;
  if (WritesToStandardOutput(options)) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size()) return Ok();
    return Error(ErrorCode::kIo, "cannot write the delta to standard output");
  }
  WW_TRY(AtomicFile file,
         AtomicFile::Create(*options.delta_path, options.replace_delta ? Existing::kReplace : Existing::kRefuse));
  Progress progress("writing " + options.delta_path->string(), bytes.size());
  for (std::size_t at = 0; at < bytes.size(); at += kPortionBytes) {
    WW_RETURN_IF_ERROR(interrupt.Check());
    const auto portion = bytes.subspan(at, std::min(kPortionBytes, bytes.size() - at));
    WW_RETURN_IF_ERROR(file.Append(portion));
    progress.Add(portion.size());
  }
  return file.Commit();
}

Result<EncodedDelta> Encode(const StatePair& pair, const std::vector<Digest>& digests, CodingRequest coding,
                            const Compute& compute) {
  const EncodeRequest request = RequestFor(pair, digests, coding);
  const Progress progress("comparing and encoding");
  return EncodeDelta(request, *compute.kernels, *compute.pool);
}

Status RunDiff(const DiffOptions& options) {
  const auto coding = CodingNamed(options.mode);
  if (!coding.has_value() || (options.mode != "auto" && options.mode != "fast")) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("--mode: '{}' is none of auto, fast", options.mode));
  }
  if (WritesToStandardOutput(options) && options.global->json) {
    return Error(ErrorCode::kInvalidArgument, "give either --json or '-o -', because both write to standard output");
  }
  if (!WritesToStandardOutput(options) && options.delta_path.has_value() && !options.replace_delta) {
    const Status free = CheckNameIsFree(*options.delta_path);
    if (!free.ok()) return Error(free.error().code(), free.error().message() + ", or give --force");
  }
  for (const std::filesystem::path& input : {options.old_path, options.new_path}) {
    std::error_code ignored;  // what is not there is said later, or is no obstacle
    if (options.delta_path.has_value() && std::filesystem::equivalent(*options.delta_path, input, ignored)) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("{} cannot be written: it is one of the two checkpoints", options.delta_path->string()));
    }
  }
  WW_TRY(const Compute compute, Compute::Make(options.global->threads));
  WW_TRY(const Checkpoint old_state, OpenCheckpoint(options.old_path));
  WW_TRY(const Checkpoint new_state, OpenCheckpoint(options.new_path));
  const StatePair pair{old_state.layout(), new_state.layout(), TensorBytes(old_state), TensorBytes(new_state)};
  const std::vector<Digest> digests = DigestInFull(old_state, "digesting " + options.old_path.string(), compute);
  WW_TRY(const EncodedDelta delta, Encode(pair, digests, *coding, compute));

  DiffResult result{.pair = pair,
                    .delta = delta,
                    .state_before = StateDigest(pair.layout_before, digests),
                    .state_after = StateDigest(pair.layout_after, delta.digests_after),
                    .removed = {},
                    .added = {},
                    .totals = {},
                    .peers = {},
                    .peers_total = {}};
  CountChanges(result);
  if (options.compare && !WritesToStandardOutput(options)) {
    WW_TRY(result.peers, MeasurePeers(result, compute));
    result.peers_total = PeerBytes();
    for (const PeerBytes& peer : *result.peers) *result.peers_total += peer;
  }
  if (options.delta_path.has_value()) WW_RETURN_IF_ERROR(WriteDelta(options, delta.file));
  if (options.global->json) {
    ReportJson(result, options);
  } else if (!WritesToStandardOutput(options)) {
    ReportText(result, options);
  }
  return Ok();
}

}  // namespace

Command AddDiff(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<DiffOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("diff", "show what changed between two checkpoints and what it costs to send");
  AddPath(sub, "OLD", options->old_path, "the old checkpoint")->required();
  AddPath(sub, "NEW", options->new_path, "the new checkpoint; tensors may have been added, removed or reshaped")
      ->required();
  AddPath(sub, "-o,--output", options->delta_path, "write the delta to this file; - is standard output");
  sub.add_flag("--force", options->replace_delta, "replace the file of -o if it exists");
  sub.add_option("--mode", options->mode,
                 "make the smallest delta (auto), or one that is larger and applies fastest (fast) (default: auto)")
      ->type_name("auto|fast");
  sub.add_flag("--all", options->all_tensors, "list the unchanged tensors too");
  sub.add_flag_callback(
      "--no-other-formats", [options] { options->compare = false; },
      "do not measure the size in other formats (TRL, slime), which can be slow");
  sub.footer(
      "'bytes' of a tensor are those of its changes; the file also holds an index, tables and hashes. 'per changed' "
      "are bytes for each changed element (packed types: each changed byte).\n"
      "\n"
      "Examples:\n"
      "  weightwire diff old.safetensors new.safetensors\n"
      "  weightwire diff step-10 step-11 -o 11.delta --mode fast\n"
      "  weightwire diff step-10 step-11 --json --no-other-formats");
  return {&sub, [options] { return RunDiff(*options); }};
}

}  // namespace weightwire
