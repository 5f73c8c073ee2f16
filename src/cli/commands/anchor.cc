// weightwire anchor RUN[@VERSION]: writes a full checkpoint of a version into the bucket.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/file.h"
#include "base/result.h"
#include "cli/checkout_with_retries.h"
#include "cli/checkpoints.h"
#include "cli/command_tools.h"
#include "cli/commands/commands.h"
#include "cli/global_options.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/retry.h"
#include "cli/run_access.h"
#include "cli/temporary_directory.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "codec/digest/state.h"
#include "follow/mirror/reader.h"
#include "log/find_version.h"
#include "publish/anchor_writer.h"
#include "runner/run_report.h"

namespace weightwire {
namespace {

struct AnchorCommandOptions {
  std::string run;
  // A checkpoint that is the version: a mirror, another directory, or a safetensors file. None: it is fetched first.
  std::optional<std::filesystem::path> from;
  bool include_code = false;
  bool dry_run = false;
  const GlobalOptions* global = nullptr;
};

// Which version the directory holds: as the mirror says, or found by its digest.
Result<KnownRecord> VersionOf(const Run& run, const Checkpoint& checkpoint, const std::optional<SharedRead>& mirror,
                              const std::string& name, const Compute& compute) {
  if (mirror.has_value()) {
    if (mirror->held().run != run.id()) {
      return Error(ErrorCode::kMismatch, fmt::format("{} follows another run than {}", name, run.store().Name()));
    }
    return FindVersion(run, mirror->held().version);
  }
  WW_TRY(const KnownRecord newest, FindVersion(run, std::nullopt));
  WW_TRY(const Layout layout, run.ReadLayout(newest.record.layout));
  WW_TRY(const Checkpoint view, checkpoint.ViewAs(layout));
  const Sha256Digest state = StateDigest(layout, DigestInFull(view, "digesting " + name, compute));
  WW_TRY(const auto found, FindVersionByState(run, state));
  if (found.has_value()) return *found;
  return Error(ErrorCode::kMismatch, fmt::format("{} holds no version of the run at {}; its state is {}", name,
                                                 run.store().Name(), ToHex(state)));
}

Result<KnownAnchor> Write(const Run& run, const KnownRecord& version, const Checkpoint& checkpoint,
                          const AnchorCommandOptions& command, FileSystem& files, const Compute& compute,
                          const InterruptGuard& interrupt) {
  WW_TRY(const Layout layout, run.ReadLayout(version.record.layout));
  WW_TRY(Checkpoint view, checkpoint.ViewAs(layout));
  AnchorOptions options;
  options.file_system = &files;
  if (!checkpoint.directory().empty()) {
    WW_TRY(ExtraFiles extra, FindExtraFiles(files, checkpoint.directory(), command.include_code));
    options.extra = std::move(extra.files);
    for (const std::string& sentence : extra.left_out) messages::Warning(sentence);
  }
  SystemRandom random;
  const AnchorSubject subject{
      {version.record.version, NewId(random)}, version.record.state, version.record.delta_bytes};
  AnchorWriter writer(run, subject, std::make_shared<CheckpointSource>(std::move(view)), options, *compute.kernels);
  Progress progress(fmt::format("writing an anchor of version {}", version.record.version), layout.total_bytes());
  std::uint64_t sent = 0;
  WW_RETURN_IF_ERROR(RetryTransient(interrupt, command.global->RetryFor(), [&]() -> Result<bool> {
    WW_TRY(const bool done, writer.Step());
    progress.Add(writer.bytes_sent() - sent);
    sent = writer.bytes_sent();
    return done;
  }));
  return writer.anchor();
}

// What the writer finds out while it sends.
Status CheckHolds(const Checkpoint& checkpoint, const KnownRecord& version, const Layout& layout,
                  const std::string& name, const Compute& compute) {
  WW_TRY(const Checkpoint view, checkpoint.ViewAs(layout));
  if (StateDigest(layout, DigestInFull(view, "digesting " + name, compute)) == version.record.state) return Ok();
  return Error(ErrorCode::kMismatch, fmt::format("{} does not hold version {}", name, version.record.version));
}

// The size is that of the tensors, without the files beside them.
Status ReportDry(const AnchorCommandOptions& options, const Run& run, const KnownRecord& version,
                 const Layout& layout) {
  WW_TRY(const RunAddress address, ParseRunAddress(options.run));
  if (options.global->json) {
    JsonOutput json;
    json["run"] = address.location;
    json["run_id"] = ToHex(run.id());
    json["version"] = version.record.version;
    json["dry_run"] = true;
    json["files"] = nullptr;
    json["anchor_bytes"] = layout.total_bytes();
    PrintJson(json);
    return Ok();
  }
  fmt::print("{}: an anchor of version {} would take {}; dry run, nothing is written\n", address.location,
             version.record.version, HumanBytes(layout.total_bytes()));
  return Ok();
}

Status RunAnchor(const AnchorCommandOptions& options, const CommandTools& tools) {
  WW_TRY(const RunAddress address, ParseRunAddress(options.run));
  WW_TRY(const Compute compute, Compute::Make(options.global->threads));
  WW_TRY(const OpenedRun opened, OpenRun(address.location, tools));
  const Run& run = opened.run;
  WW_RETURN_IF_ERROR(run.CheckMayWrite());
  std::optional<KnownAnchor> anchor;
  {
    const InterruptGuard interrupt;
    std::optional<TemporaryDirectory> fetched;
    std::optional<SharedRead> mirror;
    std::filesystem::path directory;
    std::optional<KnownRecord> version;
    if (options.from.has_value()) {
      directory = *options.from;
      WW_TRY(const auto found, tools.files->Stat(directory));
      if (found.has_value() && found->kind == FileKind::kDirectory) {
        auto read = SharedRead::Begin(*tools.files, directory);
        if (read.ok()) {
          mirror.emplace(std::move(read).value());
        } else if (read.error().code() != ErrorCode::kNotFound) {
          return read.error();
        }
      }
    } else {
      WW_TRY(version, FindVersion(run, address.version));
      if (options.dry_run) {
        WW_TRY(const Layout layout, run.ReadLayout(version->record.layout));
        return ReportDry(options, run, *version, layout);
      }
      std::error_code error;
      const auto folder = std::filesystem::temp_directory_path(error);
      if (error) return SystemError("find", "the directory for temporary files", error.value());
      fetched.emplace(*tools.files, TemporarySibling(folder / "weightwire-anchor"));
      WW_RETURN_IF_ERROR(
          CheckOutWithRetries(run, *version, fetched->path(), options.include_code, compute, interrupt, tools));
      directory = fetched->path();
    }
    WW_TRY(const Checkpoint checkpoint, OpenCheckpoint(directory));
    if (!version.has_value()) {
      WW_TRY(version, VersionOf(run, checkpoint, mirror, directory.string(), compute));
      if (address.version.has_value() && *address.version != version->record.version) {
        return Error(ErrorCode::kMismatch, fmt::format("{} holds version {}, not version {}", directory.string(),
                                                       version->record.version, *address.version));
      }
    }
    if (options.dry_run) {
      WW_TRY(const Layout layout, run.ReadLayout(version->record.layout));
      WW_RETURN_IF_ERROR(CheckHolds(checkpoint, *version, layout, directory.string(), compute));
      return ReportDry(options, run, *version, layout);
    }
    WW_TRY(anchor, Write(run, *version, checkpoint, options, *tools.files, compute, interrupt));
  }
  const AnchorManifest& manifest = anchor->manifest;
  if (options.global->json) {
    JsonOutput json;
    json["run"] = address.location;
    json["run_id"] = ToHex(run.id());
    json["version"] = manifest.name.version;
    json["dry_run"] = false;
    json["files"] = manifest.files.size();
    json["anchor_bytes"] = manifest.TotalBytes();
    PrintJson(json);
    return Ok();
  }
  fmt::print("{}: wrote an anchor of version {}: {} {}, {}\n", address.location, manifest.name.version,
             WithCommas(manifest.files.size()), manifest.files.size() == 1 ? "file" : "files",
             HumanBytes(manifest.TotalBytes()));
  return Ok();
}

}  // namespace

Command AddAnchor(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<AnchorCommandOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("anchor", "write a full checkpoint of a version into the bucket");
  AddRunAtVersion(sub, options->run);
  AddPath(sub, "--from", options->from,
          "read the version from PATH: a mirror, another Hugging Face directory, or a safetensors file (default: fetch "
          "it from the bucket)");
  AddSetting(sub, settings::kIncludeCodeInAnchors, options->include_code);
  sub.add_flag("--dry-run", options->dry_run, "show what would be sent, and write nothing");
  AddStoreOptions(sub, *tools.options);
  sub.footer(
      "Late followers begin at the nearest anchor, and gc can remove the deltas before it. Anybody who holds a "
      "version\n"
      "can write one: what is sent is digested on the way and must be the version's state.\n"
      "\n"
      "Examples:\n"
      "  weightwire anchor /shared/runs/grpo-7b --from mirror\n"
      "  weightwire anchor /shared/runs/grpo-7b@500");
  return {&sub, [options, &tools] { return RunAnchor(*options, tools); }};
}

}  // namespace weightwire
