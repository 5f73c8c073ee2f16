// weightwire log RUN: the versions of a run, what each cost to send, and who follows.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/failure_policy.h"
#include "base/result.h"
#include "cli/command_tools.h"
#include "cli/commands/commands.h"
#include "cli/followers.h"
#include "cli/global_options.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/policy.h"
#include "cli/run_access.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "runner/follow_loop.h"

namespace weightwire {
namespace {

struct LogOptions {
  std::string run;
  std::optional<std::uint64_t> last;  // only so many of the newest versions
  bool watch = false;                 // go on with what comes
  const GlobalOptions* global = nullptr;
};

// Unless told otherwise: a record costs a request, and a run may have hundreds of thousands.
constexpr std::uint64_t kShownVersions = 100;

constexpr std::uint64_t kRoundsPerLook = 5;

// What of a version is shown.
struct Line {
  Record record;
  std::uint64_t bytes = 0;  // of its delta; of its anchor where it has no delta
  ModelSize model;
  bool anchor = false;
};

// Reads versions, and knows what they have in common.
class Reader {
 public:
  explicit Reader(const Run& run) : run_(run) {}

  // Anchors of versions from `from` on.
  Status ReadAnchors(Version from) {
    WW_TRY(const std::vector<AnchorName> names, run_.ListAnchors(from));
    for (const AnchorName& name : names) anchored_.insert(name.version);
    return Ok();
  }

  // Nothing if there is no such version (yet).
  Result<std::optional<Line>> Read(Version version) {
    WW_TRY(auto known, run_.ReadRecord(version));
    if (!known.has_value()) return std::optional<Line>();
    if (before_.has_value() && before_->record.version + 1 == version)
      WW_RETURN_IF_ERROR(CheckFollows(*before_, *known));
    before_ = known;
    Line line{known->record, 0, {}, anchored_.contains(version)};
    WW_TRY(line.model, ModelOf(line.record.layout));
    if (line.record.delta.has_value()) {
      line.bytes = line.record.OwnDeltaBytes();
    } else {
      line.bytes = line.record.anchor->bytes;
    }
    return std::optional(std::move(line));
  }

 private:
  Result<ModelSize> ModelOf(const Sha256Digest& layout_hash) {
    const auto known = models_.find(layout_hash);
    if (known != models_.end()) return known->second;
    WW_TRY(const Layout layout, run_.ReadLayout(layout_hash));
    return models_.emplace(layout_hash, SizeOf(layout)).first->second;
  }

  const Run& run_;
  std::set<Version> anchored_;
  std::map<Sha256Digest, ModelSize> models_;
  std::optional<KnownRecord> before_;
};

JsonOutput ToJsonOutput(const Line& line) {
  const Record& record = line.record;
  JsonOutput json;
  json["version"] = record.version;
  json["step"] = record.step;
  json["time"] = record.time;
  json["bytes"] = line.bytes;
  json["anchor"] = line.anchor;
  json["delta"] = record.delta.has_value();
  json["changed"] = record.changed;
  json["elements"] = line.model.elements;
  json["model_bytes"] = line.model.bytes;
  json["state"] = ToHex(record.state);
  json["writer"] = ToHex(record.writer);
  return json;
}

// Fixed widths, so that lines that come later stand below the others.
constexpr const char* kColumns = "{:>8}  {:>10}  {:<20}  {:>9}  {:>10}  {:>9}{}\n";

constexpr std::size_t kTimeWithoutFraction = std::string_view("0000-00-00T00:00:00").size();

void PrintHead() { fmt::print(kColumns, "version", "step", "published", "changed", "bytes", "of model", "  anchor"); }

void Print(const Line& line) {
  const Record& record = line.record;
  std::string mark = line.anchor ? "  anchor" : "";
  if (!record.delta.has_value()) mark += record.version == 0 ? "  first" : "  rebase";
  // To the second: the column has no room for the fraction.
  const std::string published = record.time.substr(0, kTimeWithoutFraction) + "Z";
  fmt::print(kColumns, record.version, record.step, published,
             record.delta.has_value() ? Percent(record.changed, line.model.elements) : "all", HumanBytes(line.bytes),
             Percent(line.bytes, line.model.bytes), mark);
}

Status ShowFollowers(const Run& run, std::optional<Version> newest) {
  WW_TRY(const Followers followers, ReadFollowers(run, newest));
  if (!followers.all.empty()) fmt::print("\n{}", FollowerTable(followers.all));
  return Ok();
}

// Followers, told of whenever what they hold, or how far behind they are, changes.
class FollowerWatch {
 public:
  FollowerWatch(const Run& run, bool json) : run_(run), json_(json) {}

  Status Show(std::optional<Version> newest) {
    const auto followers = ReadFollowers(run_, newest);
    if (!followers.ok()) return IsTransient(followers.error()) ? Ok() : Status(followers.error());
    for (const KnownFollower& follower : followers.value().all) {
      const Seen seen{follower.lease.holds, follower.behind, follower.alive};
      const auto [known, is_new] = seen_.try_emplace(follower.lease.follower, seen);
      if (!is_new && known->second == seen) continue;
      known->second = seen;
      Print(follower);
    }
    return Ok();
  }

 private:
  using Seen = std::tuple<std::optional<Version>, std::optional<std::uint64_t>, bool>;

  void Print(const KnownFollower& follower) const {
    if (json_) {
      JsonOutput json;
      json["follower"] = ToJsonOutput(follower);
      PrintJsonLine(json);
      return;
    }
    const Lease& lease = follower.lease;
    std::string text = lease.holds.has_value() ? fmt::format("holds version {}", *lease.holds) : "holds nothing yet";
    if (follower.behind.has_value()) text += fmt::format(", {} behind", *follower.behind);
    if (!follower.alive) text += ", has not renewed its lease";
    fmt::print("  follower {}: {}\n", lease.name.empty() ? ToHex(lease.follower) : lease.name, text);
  }

  const Run& run_;
  const bool json_;
  std::map<Id, Seen> seen_;
};

// What comes, line by line, until a signal does.
Status Watch(const Run& run, Reader& reader, Version next, bool json) {
  const InterruptGuard interrupt(InterruptGuard::AtEnd::kForget);
  FollowerWatch followers(run, json);
  for (std::uint64_t round = 0;; ++round) {
    std::fflush(stdout);
    for (;;) {
      auto line = reader.Read(next);
      if (!line.ok() && IsTransient(line.error())) break;
      if (!line.ok()) return line.error();
      if (!line.value().has_value()) break;
      // An anchor of a version may be complete only after it; of one without a delta it is before.
      if (!line.value()->record.delta.has_value()) line.value()->anchor = true;
      if (json) {
        PrintJsonLine(ToJsonOutput(*line.value()));
      } else {
        Print(*line.value());
      }
      ++next;
    }
    // Leases cost a request each, and say something new only now and then.
    if (round % kRoundsPerLook == 0) {
      WW_RETURN_IF_ERROR(followers.Show(next == 0 ? std::nullopt : std::optional(next - 1)));
    }
    std::fflush(stdout);
    if (!interrupt.WaitFor(kWatchInterval)) return Ok();
  }
}

Status RunLog(const LogOptions& options, const CommandTools& tools) {
  WW_TRY(const OpenedRun opened, OpenRun(options.run, tools));
  const Run& run = opened.run;
  WW_TRY(const auto newest, run.FindNewest(std::nullopt));
  const std::uint64_t count = newest.has_value() ? newest->record.version + 1 : 0;
  // A person wants the newest; a program that asks once gets all.
  const std::uint64_t shown = options.last.value_or(options.global->json && !options.watch ? count : kShownVersions);
  const Version first = count - std::min(count, shown);
  Reader reader(run);
  std::vector<Line> lines;
  if (count > 0) {
    Progress progress("reading records", count - first);
    WW_RETURN_IF_ERROR(reader.ReadAnchors(first));
    for (Version version = first; version < count; ++version) {
      WW_TRY(auto line, reader.Read(version));
      if (!line.has_value()) {
        return Error(ErrorCode::kCorrupt,
                     fmt::format("the record of version {} is missing from {}, though version {} is there", version,
                                 options.run, count - 1));
      }
      lines.push_back(*std::move(line));
      progress.Add(1);
    }
  }
  const std::optional<Version> newest_version = count > 0 ? std::optional(count - 1) : std::nullopt;
  if (options.global->json && options.watch) {
    for (const Line& line : lines) PrintJsonLine(ToJsonOutput(line));
    return Watch(run, reader, count, true);
  }
  if (options.global->json) {
    JsonOutput json;
    json["run"] = ToHex(run.id());
    json["location"] = options.run;
    json["newest"] = OrNull(newest_version);
    json["single_writer"] = run.manifest().single_writer;
    json["versions"] = JsonOutput::array();
    for (const Line& line : lines) json["versions"].push_back(ToJsonOutput(line));
    WW_TRY(const Followers followers, ReadFollowers(run, newest_version));
    json["followers"] = JsonOutput::array();
    for (const KnownFollower& follower : followers.all) json["followers"].push_back(ToJsonOutput(follower));
    PrintJson(json);
    return Ok();
  }
  fmt::print("run {} at {}\n", ToHex(run.id()), options.run);
  if (lines.empty()) {
    fmt::print("no version yet\n");
  } else {
    const ModelSize& model = lines.back().model;
    fmt::print("{} {} of a model of {} elements, {}\n\n", WithCommas(count), count == 1 ? "version" : "versions",
               WithCommas(model.elements), HumanBytes(model.bytes));
    PrintHead();
    for (const Line& line : lines) Print(line);
  }
  if (!options.watch) return ShowFollowers(run, newest_version);
  if (lines.empty()) PrintHead();
  return Watch(run, reader, count, false);
}

}  // namespace

Command AddLog(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<LogOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("log", "show the versions of a run, what they cost, and who follows");
  AddRun(sub, options->run, "the run");
  AddNumber(sub, "--last", options->last, "so many of the newest versions (100; with --json and without --watch, all)");
  sub.add_flag("--watch", options->watch, "go on with each version that comes, until interrupted");
  AddStoreOptions(sub, *tools.options);
  sub.footer(
      "'bytes' of a version are those of its delta; of a version that has none (the first one, or a rebase) they are\n"
      "those of its anchor. 'anchor' says that the bucket holds a complete checkpoint of that version now.\n"
      "With --json: an object with 'versions', oldest first, each with 'version', 'step', 'bytes', 'anchor' and more,\n"
      "and 'followers'. With --watch: what comes, and each follower whenever it gets ahead or falls behind; with "
      "--json\n"
      "a line of JSON for each, of a follower with the one key 'follower'.\n"
      "\n"
      "Examples:\n"
      "  weightwire log /shared/runs/grpo-7b --last 20\n"
      "  weightwire log /shared/runs/grpo-7b --watch");
  return {&sub, [options, &tools] { return RunLog(*options, tools); }};
}

}  // namespace weightwire
