// weightwire inspect DELTA: what is in a delta file.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "cli/checkpoints.h"
#include "cli/commands/commands.h"
#include "cli/global_options.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/text.h"
#include "codec/decode/decoder.h"
#include "codec/format/delta_index.h"
#include "codec/format/order.h"
#include "tensor/safetensors.h"

namespace weightwire {
namespace {

struct InspectOptions {
  std::filesystem::path delta;
  // A checkpoint that the delta applies to or leads to, where names come from.
  std::optional<std::filesystem::path> base;
  const GlobalOptions* global = nullptr;
};

// Time in which half of what can change has changed (spec/FORMAT.md, "Positions").
constexpr double kHalvingTime = 1 << 20;

struct Inspected {
  const LoadedDelta& delta;
  std::optional<Layout> after;  // if something was given that says it
  std::vector<TableSet> sets;   // with the widths of their units
  std::string file_hash;
  std::uint64_t header_bytes = 0;
  std::uint64_t payload_bytes = 0;

  [[nodiscard]] const DeltaIndex& index() const { return delta.file.index(); }
  [[nodiscard]] const TableSet& set_of(const IndexEntry& entry) const { return delta.file.sets()[entry.table_set]; }
};

Result<std::optional<Layout>> LayoutAfter(const LoadedDelta& delta, const InspectOptions& options) {
  Layout given;
  std::string source;
  if (options.base.has_value()) {
    WW_TRY(const Checkpoint checkpoint, OpenCheckpoint(*options.base));
    given = checkpoint.layout();
    source = options.base->string();
  } else {
    return std::optional<Layout>();
  }
  const auto& change = delta.file.index().layout_change;
  if (change.has_value() && change->after_hash == given.hash()) return std::optional(std::move(given));
  const auto before = LayoutForDelta(delta.file, given);
  if (!before.ok()) {
    return Error(ErrorCode::kMismatch,
                 fmt::format("{} is not what {} applies to: its tensors have other names, types or shapes", source,
                             options.delta.string()));
  }
  WW_TRY(Layout after, ApplyLayoutChange(before.value(), change));
  return std::optional(std::move(after));
}

const char* ModeName(const IndexEntry& entry, const Inspected& inspected) {
  if (entry.mode == EntryMode::kWhole) return "whole";
  if (entry.mode == EntryMode::kDense) return "dense";
  if (entry.mode == EntryMode::kGaps) return "gaps";
  return inspected.set_of(entry).uniform ? "uniform" : "conditioned";
}

std::string NameOfEntry(const IndexEntry& entry, const Inspected& inspected) {
  if (!inspected.after.has_value() || entry.tensor >= inspected.after->size()) return fmt::format("#{}", entry.tensor);
  return inspected.after->tensors()[entry.tensor].name;
}

std::string DescribeBox(const Box& box) {
  std::vector<std::string> ranges;
  for (std::size_t d = 0; d < box.start.size(); ++d) {
    ranges.push_back(fmt::format("{}:{}", box.start[d], box.start[d] + box.extent[d]));
  }
  return fmt::format("[{}]", fmt::join(ranges, ", "));
}

// One class of a set: how often its units change, and how far.
struct ClassSummary {
  int number = 0;
  double change_chance = 0;         // of the sparse sets, before an entry's scale
  std::vector<double> step_chance;  // of each symbol
};

std::vector<ClassSummary> Summarize(const TableSet& set) {
  std::vector<ClassSummary> classes;
  for (int c = 0; c < kClassCount; ++c) {
    const SymbolWeights& symbols = set.symbols[static_cast<std::size_t>(c)];
    if (symbols.codes.empty() && !symbols.tail) continue;
    ClassSummary summary;
    summary.number = c;
    const int code = set.rate_codes[set.uniform ? 0 : static_cast<std::size_t>(c)];
    if (!set.dense) summary.change_chance = 1 - std::exp2(-static_cast<double>(RateOf(code)) / kHalvingTime);
    for (const std::uint32_t width : NormalizedWidths(symbols, set.AlphabetSize())) {
      summary.step_chance.push_back(width / 65536.0);
    }
    classes.push_back(std::move(summary));
  }
  return classes;
}

// The widths of a set's units are known from the tensors that use it, where a layout tells; otherwise the smallest that
// the set fits must do.
Result<std::vector<TableSet>> SetsWithWidths(const Inspected& inspected) {
  std::vector<TableSet> sets = inspected.delta.file.sets();
  for (TableSet& set : sets) {
    set.unit_bits = 8;
    while (set.unit_bits < 64 && !set.CheckFits().ok()) set.unit_bits *= 2;
    WW_RETURN_IF_ERROR(set.CheckFits());
  }
  if (!inspected.after.has_value()) return sets;
  for (const IndexEntry& entry : inspected.index().entries) {
    if (!HasTables(entry.mode) || entry.tensor >= inspected.after->size()) continue;
    TableSet& set = sets[entry.table_set];
    set.unit_bits = 8 * UnitBytes(inspected.after->tensors()[entry.tensor].dtype);
    WW_RETURN_IF_ERROR(set.CheckFits());
  }
  return sets;
}

// The smallest magnitude of a symbol, as a label; dense sets have "unchanged" first.
std::string SymbolLabel(const TableSet& set, std::size_t symbol) {
  if (set.dense && symbol == 0) return "0";
  const int bucket = static_cast<int>(symbol) - (set.dense ? 1 : 0);
  return fmt::format("±{}{}", MagnitudeOf(bucket, 0), BucketExtraBits(bucket) > 0 ? "…" : "");
}

std::string DescribeRule(const TableSet& set) {
  const char* order = set.rule.order == Order::kInteger ? "integers" : "sign and magnitude";
  if (set.rule.bits == 0) return fmt::format("{}, one class", order);
  return fmt::format("{}, class = bits {}..{} of the base minus {}", order, set.rule.shift,
                     set.rule.shift + set.rule.bits - 1, set.rule.lowest);
}

const char* KindOf(const TableSet& set) { return set.dense ? "dense" : set.uniform ? "uniform" : "conditioned"; }

void ReportJson(const Inspected& inspected, const InspectOptions& options) {
  const DeltaFile& file = inspected.delta.file;
  const DeltaIndex& index = inspected.index();
  JsonOutput json;
  json["delta"] = options.delta.string();
  json["format_version"] = kDeltaFormatVersion;
  json["hash"] = inspected.file_hash;
  json["delta_bytes"] = file.size_bytes();
  json["header_bytes"] = inspected.header_bytes;
  json["index_bytes"] = file.index_bytes();
  json["tables_bytes"] = file.tables_bytes();
  json["payload_bytes"] = inspected.payload_bytes;
  json["layout_before"] = ToHex(index.layout_hash);
  json["layout_after"] = ToHex(index.layout_change ? index.layout_change->after_hash : index.layout_hash);
  json["digest_before"] = index.state ? JsonOutput(ToHex(index.state->before)) : JsonOutput();
  json["digest_after"] = index.state ? JsonOutput(ToHex(index.state->after)) : JsonOutput();
  json["aliases"] = index.aliases;
  if (index.layout_change.has_value()) {
    json["removed"] = index.layout_change->removed;
    json["added"] = JsonOutput::array();
    for (const TensorSpec& spec : index.layout_change->added) {
      json["added"].push_back(JsonOutput{{"name", spec.name}, {"dtype", NameOf(spec.dtype)}, {"shape", spec.shape}});
    }
  }
  json["entries"] = JsonOutput::array();
  for (const IndexEntry& entry : index.entries) {
    JsonOutput item;
    item["tensor"] = entry.tensor;
    if (inspected.after.has_value()) item["name"] = NameOfEntry(entry, inspected);
    item["mode"] = ModeName(entry, inspected);
    item["delta_bytes"] = entry.PayloadBytes();
    if (entry.box.has_value()) item["box"] = JsonOutput{{"start", entry.box->start}, {"extent", entry.box->extent}};
    if (entry.mode != EntryMode::kWhole) {
      item["changed_elements"] = entry.changed;
      item["tile_units"] = std::uint64_t{1} << entry.tile_log2;
      item["tiles"] = entry.tile_bytes.size();
    }
    if (HasTables(entry.mode)) item["table_set"] = entry.table_set;
    if (entry.mode == EntryMode::kSparse) item["scale"] = entry.scale;
    item["digest_before"] = entry.before.ToHex();
    item["digest_after"] = entry.after.ToHex();
    json["entries"].push_back(std::move(item));
  }
  json["table_sets"] = JsonOutput::array();
  for (const TableSet& set : inspected.sets) {
    JsonOutput item;
    item["mode"] = KindOf(set);
    item["order"] = set.rule.order == Order::kInteger ? "integer" : "sign-magnitude";
    item["shift"] = set.rule.shift;
    item["bits"] = set.rule.bits;
    item["lowest"] = set.rule.lowest;
    item["classes"] = JsonOutput::array();
    for (const ClassSummary& summary : Summarize(set)) {
      JsonOutput entry;
      entry["class"] = summary.number;
      if (!set.dense) entry["change_chance"] = summary.change_chance;
      entry["symbol_chances"] = summary.step_chance;
      item["classes"].push_back(std::move(entry));
    }
    json["table_sets"].push_back(std::move(item));
  }
  PrintJson(json);
}

void ReportTables(const Inspected& inspected) {
  constexpr std::size_t kShownSymbols = 6;
  const std::vector<TableSet>& sets = inspected.sets;
  std::vector<std::size_t> users(sets.size(), 0);
  for (const IndexEntry& entry : inspected.index().entries) {
    if (HasTables(entry.mode)) ++users[entry.table_set];
  }
  for (std::size_t i = 0; i < sets.size(); ++i) {
    fmt::print("\ntable set {}: {}, {}; used by {} {}\n", i, KindOf(sets[i]), DescribeRule(sets[i]), users[i],
               users[i] == 1 ? "entry" : "entries");
    TextTable table("rrl");
    table.AddRow({"class", sets[i].dense ? "" : "changes", "by (ulps)"});
    for (const ClassSummary& summary : Summarize(sets[i])) {
      std::vector<std::string> steps;
      std::size_t shown = 0;
      double rest = 0;
      for (std::size_t s = 0; s < summary.step_chance.size(); ++s) {
        const double chance = summary.step_chance[s];
        if (chance >= 0.001 && shown < kShownSymbols) {
          steps.push_back(fmt::format("{} {:.1f} %", SymbolLabel(sets[i], s), 100 * chance));
          ++shown;
        } else {
          rest += chance;
        }
      }
      if (rest >= 0.0005) steps.push_back(fmt::format("more {:.1f} %", 100 * rest));
      table.AddRow({fmt::format("{}", summary.number),
                    sets[i].dense ? "" : fmt::format("{:.3g} %", 100 * summary.change_chance),
                    fmt::format("{}", fmt::join(steps, ", "))});
    }
    fmt::print("{}", table.Render());
  }
}

void ReportText(const Inspected& inspected, const InspectOptions& options) {
  const DeltaFile& file = inspected.delta.file;
  const DeltaIndex& index = inspected.index();
  TextTable head("ll");
  head.AddRow({"delta", fmt::format("{}, format version {}", options.delta.string(), kDeltaFormatVersion)});
  head.AddRow({"hash", inspected.file_hash});
  head.AddRow(
      {"size", fmt::format("{} bytes: header {}, index {}, tables {}, payload {}", WithCommas(file.size_bytes()),
                           WithCommas(inspected.header_bytes), WithCommas(file.index_bytes()),
                           WithCommas(file.tables_bytes()), WithCommas(inspected.payload_bytes))});
  head.AddRow({"layout before", ToHex(index.layout_hash)});
  if (index.layout_change.has_value()) head.AddRow({"layout after", ToHex(index.layout_change->after_hash)});
  head.AddRow({"digest before", index.state ? ToHex(index.state->before) : "none: a part of a delta"});
  if (index.state.has_value()) head.AddRow({"digest after", ToHex(index.state->after)});
  for (const auto& [alias, kept] : index.aliases) head.AddRow({"tied", fmt::format("{} is {}", alias, kept)});
  if (index.layout_change.has_value()) {
    for (const std::size_t removed : index.layout_change->removed) {
      head.AddRow({"removes", fmt::format("#{} of the layout before", removed)});
    }
    for (const TensorSpec& spec : index.layout_change->added) {
      head.AddRow({"adds", fmt::format("{} {}", spec.name, Describe(spec))});
    }
    for (const auto& [alias, kept] : index.layout_change->aliases) {
      head.AddRow({"tied after", fmt::format("{} is {}", alias, kept)});
    }
  }
  head.AddRow({"entries", fmt::format("{}", index.entries.size())});
  fmt::print("{}", head.Render());

  if (!index.entries.empty()) {
    TextTable table("llrrrrrrl");
    table.AddRow({"tensor", "mode", "changed", "bytes", "per changed", "tile", "set", "scale", "box"});
    for (const IndexEntry& entry : index.entries) {
      const bool whole = entry.mode == EntryMode::kWhole;
      table.AddRow({NameOfEntry(entry, inspected), ModeName(entry, inspected), whole ? "" : WithCommas(entry.changed),
                    WithCommas(entry.PayloadBytes()),
                    whole ? "" : Ratio(static_cast<double>(entry.PayloadBytes()), static_cast<double>(entry.changed)),
                    whole ? "" : WithCommas(std::uint64_t{1} << entry.tile_log2),
                    HasTables(entry.mode) ? fmt::format("{}", entry.table_set) : "",
                    entry.mode == EntryMode::kSparse ? fmt::format("{:+}", entry.scale) : "",
                    entry.box ? DescribeBox(*entry.box) : ""});
    }
    fmt::print("\n{}", table.Render());
  }
  ReportTables(inspected);
}

Status RunInspect(const InspectOptions& options) {
  WW_TRY(const LoadedDelta delta, LoadDelta(options.delta));
  Inspected inspected{.delta = delta, .after = {}, .sets = {}, .file_hash = {}, .header_bytes = 0, .payload_bytes = 0};
  WW_TRY(inspected.after, LayoutAfter(delta, options));
  auto sets = SetsWithWidths(inspected);
  if (!sets.ok()) return sets.error().In(options.delta.string());
  inspected.sets = std::move(sets).value();
  WW_TRY(const SafetensorsView view, SafetensorsView::Parse(delta.map.bytes()));
  inspected.file_hash = ToHex(view.Find(kIndexEntry)->bytes.first(sizeof(Sha256Digest)));
  inspected.payload_bytes = view.Find(kPayloadEntry)->bytes.size();
  inspected.header_bytes =
      delta.file.size_bytes() - delta.file.index_bytes() - delta.file.tables_bytes() - inspected.payload_bytes;
  if (options.global->json) {
    ReportJson(inspected, options);
  } else {
    ReportText(inspected, options);
  }
  return Ok();
}

}  // namespace

Command AddInspect(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<InspectOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("inspect", "show what is in a delta file");
  AddPath(sub, "DELTA", options->delta, "the delta; - is standard input")->required();
  AddPath(sub, "--base", options->base, "take the tensors' names from this checkpoint, old or new");
  sub.footer(
      "Without --base, tensors are named by their index in the new layout (#17).\n"
      "\n"
      "Examples:\n"
      "  weightwire inspect 11.delta\n"
      "  weightwire inspect 11.delta --base step-10");
  return {&sub, [options] { return RunInspect(*options); }};
}

}  // namespace weightwire
