// weightwire apply BASE DELTA... -o OUT (or --in-place): the state after the deltas.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/real_file_system.h"
#include "base/result.h"
#include "cli/checkpoints.h"
#include "cli/commands/commands.h"
#include "cli/global_options.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "codec/decode/decoder.h"
#include "codec/decode/state_view.h"
#include "codec/digest/state.h"
#include "follow/in_place/in_place_update.h"
#include "follow/in_place/update_lock.h"
#include "tensor/checkpoint_writer.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

struct ApplyOptions {
  std::filesystem::path base;
  std::vector<std::filesystem::path> deltas;  // in order
  std::optional<std::filesystem::path> output;
  bool in_place = false;
  bool replace_output = false;  // a file, not a directory
  const GlobalOptions* global = nullptr;
};

// The base, the state after all deltas seen through it, and the way there.
struct Staged {
  Checkpoint base;  // seen as the layout the first delta applies to
  StateView after;
  std::vector<std::shared_ptr<const StagedChange>> changes;
};

Error AlreadyApplied(const ApplyOptions& options, const std::string& delta, bool is_first) {
  return {ErrorCode::kMismatch,
          fmt::format("cannot apply {}: {}{} already is at the state after it; nothing was changed", delta,
                      options.base.string(), is_first ? "" : ", with the deltas before it,")};
}

Result<Checkpoint> ViewForDelta(const Checkpoint& checkpoint, const LoadedDelta& delta, const ApplyOptions& options) {
  const auto layout = LayoutForDelta(delta.file, checkpoint.layout());
  if (!layout.ok()) {
    const auto& change = delta.file.index().layout_change;
    if (change.has_value() && change->after_hash == checkpoint.layout().hash()) {
      return Error(
          ErrorCode::kMismatch,
          fmt::format("cannot apply {} to {}: the base has the names, types and shapes that the delta leads to, "
                      "so it seems to be applied already; nothing was changed",
                      delta.name, options.base.string()));
    }
    return layout.error().In(fmt::format("cannot apply {} to {}", delta.name, options.base.string()));
  }
  auto view = checkpoint.ViewAs(layout.value());
  if (!view.ok()) return view.error().In(options.base.string());
  return view;
}

Result<Staged> StageAll(const std::vector<LoadedDelta>& deltas, const ApplyOptions& options, const Compute& compute) {
  WW_TRY(const Checkpoint checkpoint, OpenCheckpoint(options.base));
  WW_TRY(Checkpoint base, ViewForDelta(checkpoint, deltas.front(), options));
  std::vector<Digest> digests = DigestInFull(base, "digesting " + options.base.string(), compute);
  StateView view(std::make_shared<const Layout>(base.layout()), TensorBytes(base), std::move(digests));
  Staged staged{std::move(base), std::move(view), {}};
  for (const LoadedDelta& delta : deltas) {
    const auto& states = delta.file.index().state;
    const Sha256Digest state = StateDigest(staged.after.layout(), staged.after.digests());
    if (states.has_value() && state == states->after && state != states->before) {
      return AlreadyApplied(options, delta.name, staged.changes.empty());
    }
    const Progress progress("decoding " + delta.name);
    auto change = StageDelta(delta.file, staged.after, *compute.kernels, *compute.pool);
    if (!change.ok()) {
      return change.error().In(fmt::format("cannot apply {} to {}", delta.name, options.base.string()));
    }
    staged.after = staged.after.After(change.value());
    staged.changes.push_back(std::move(change).value());
  }
  return staged;
}

// Returns what is stored beside the base's weights and was left out.
Result<std::vector<std::string>> WriteNew(const Staged& staged, const std::filesystem::path& output) {
  constexpr std::uint64_t kPortionBytes = std::uint64_t{1} << 22;
  const InterruptGuard interrupt;
  const Layout& layout = staged.after.layout();
  Progress progress("writing " + output.string(), layout.total_bytes());
  std::vector<std::uint8_t> scratch;
  return WriteCheckpointLike(staged.base, layout, output, [&](std::size_t index, const TensorSink& sink) -> Status {
    const std::uint64_t units = layout.unit_count(index);
    const std::uint64_t piece_units =
        kPortionBytes / static_cast<std::uint64_t>(UnitBytes(layout.tensors()[index].dtype));
    for (std::uint64_t first = 0; first < units; first += piece_units) {
      WW_RETURN_IF_ERROR(interrupt.Check());
      const auto bytes = staged.after.Units(index, first, std::min(piece_units, units - first), scratch);
      WW_RETURN_IF_ERROR(sink(bytes));
      progress.Add(bytes.size());
    }
    return Ok();
  });
}

// The same; replaces a file in one step.
Result<std::vector<std::string>> WriteOutput(const Staged& staged, const ApplyOptions& options) {
  const std::filesystem::path& output = *options.output;
  std::error_code ignored;
  if (!options.replace_output || !std::filesystem::is_regular_file(output, ignored)) return WriteNew(staged, output);
  if (!staged.base.directory().empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} is a file and the result a directory; choose another name", output.string()));
  }
  const std::filesystem::path written = TemporarySibling(output);
  WW_TRY(auto left_out, WriteNew(staged, written));
  const Status renamed = Rename(written, output, Existing::kReplace);
  if (!renamed.ok()) {
    std::filesystem::remove(written, ignored);
    return renamed.error();
  }
  return left_out;
}

void Report(const ApplyOptions& options, const StagedChange& change, const std::vector<std::string>& left_out) {
  std::uint64_t changed = 0;
  for (const StagedTensor& tensor : change.tensors()) changed += tensor.changed();
  const std::filesystem::path& result = options.in_place ? options.base : *options.output;
  if (options.global->json) {
    JsonOutput json;
    json["output"] = result.string();
    json["deltas"] = options.deltas.size();
    json["changed_elements"] = changed;
    json["changed_tensors"] = change.tensors().size();
    json["digest_before"] = ToHex(change.state_before());
    json["digest_after"] = ToHex(change.state_after());
    if (!options.in_place) json["left_out"] = left_out;
    PrintJson(json);
    return;
  }
  fmt::print("{}: {} elements changed in {} tensors by {} {}\ndigest before  {}\ndigest after   {}\n", result.string(),
             WithCommas(changed), WithCommas(change.tensors().size()), options.deltas.size(),
             options.deltas.size() == 1 ? "delta" : "deltas", ToHex(change.state_before()),
             ToHex(change.state_after()));
  for (const std::string& path : left_out) fmt::print("left out       {}\n", Printable(path));
}

Status CheckOptions(const ApplyOptions& options) {
  const auto wrong = [](const char* sentence) { return Error(ErrorCode::kInvalidArgument, sentence); };
  if (options.in_place && options.output.has_value()) return wrong("give either -o OUT or --in-place, not both");
  if (!options.in_place && !options.output.has_value()) {
    return wrong("say where the result goes: -o OUT, or --in-place to change BASE itself");
  }
  if (!options.in_place && options.deltas.empty()) return wrong("name at least one delta to apply");
  if (std::count(options.deltas.begin(), options.deltas.end(), "-") > 1) return wrong("'-' can be given once");
  if (options.in_place) return options.replace_output ? wrong("--force goes with -o, not with --in-place") : Ok();
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(*options.output, ignored);
  if (!options.replace_output || !is_file) {
    Status free = CheckNameIsFree(*options.output);
    if (free.ok()) return free;
    return Error(free.error().code(), is_file ? free.error().message() + ", or give --force" : free.error().message());
  }
  if (std::filesystem::equivalent(*options.output, options.base, ignored)) {
    return wrong("-o names BASE itself; give --in-place to change it");
  }
  return Ok();
}

Status RunApply(const ApplyOptions& options) {
  WW_RETURN_IF_ERROR(CheckOptions(options));
  WW_TRY(const Compute compute, Compute::Make(options.global->threads));
  RealFileSystem files;
  const InPlaceTools in_place{files, *compute.kernels, *compute.pool};
  std::optional<UpdateLock> lock;
  if (options.in_place) {
    WW_TRY(UpdateLock taken, UpdateLock::Take(options.base));
    lock.emplace(std::move(taken));
    WW_TRY(const bool finished, FinishPendingUpdate(options.base, in_place));
    if (finished && !options.global->json)
      fmt::print("{}: finished the update that was pending\n", options.base.string());
    if (options.deltas.empty()) {
      WW_RETURN_IF_ERROR(OpenCheckpoint(options.base));
      if (!finished && !options.global->json) fmt::print("{}: no update is pending\n", options.base.string());
      if (options.global->json) PrintJson({{"finished", finished}});
      return Ok();
    }
  }
  std::vector<LoadedDelta> deltas;
  for (const std::filesystem::path& path : options.deltas) {
    WW_TRY(LoadedDelta delta, LoadDelta(path));
    deltas.push_back(std::move(delta));
  }
  WW_TRY(const Staged staged, StageAll(deltas, options, compute));
  const std::shared_ptr<const StagedChange> change = StagedChange::Fold(staged.changes, *compute.pool);
  std::vector<std::string> left_out;
  if (options.in_place) {
    const Progress progress("updating " + options.base.string());
    WW_RETURN_IF_ERROR(UpdateInPlace(options.base, staged.base, *change, in_place));
  } else {
    WW_TRY(left_out, WriteOutput(staged, options));
  }
  Report(options, *change, left_out);
  return Ok();
}

}  // namespace

Command AddApply(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<ApplyOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("apply", "apply deltas to a checkpoint, in a copy or in place");
  AddPath(sub, "BASE", options->base, "the checkpoint that the first delta was made for")->required();
  sub.add_option_function<std::vector<std::string>>(
         "DELTA",
         [options](const std::vector<std::string>& given) { options->deltas.assign(given.begin(), given.end()); },
         "deltas in their order; - is standard input")
      ->type_name("PATH")
      ->expected(0, -1)
      ->take_all();
  AddPath(sub, "-o,--output", options->output,
          "write the result to PATH, a file or directory as BASE is, which must not exist");
  sub.add_flag("--in-place", options->in_place,
               "change BASE itself; after a crash, 'weightwire apply --in-place BASE' finishes the update");
  sub.add_flag("--force", options->replace_output, "replace the file of -o if it exists");
  sub.footer(
      "Everything is checked before the first byte is written: the delta's hash, the digest of the whole base, and the "
      "digest of the result.\n"
      "\n"
      "-o copies the other files of a directory too. Weights beside BASE's own, links to directories and .git are left "
      "out, and listed.\n"
      "\n"
      "Examples:\n"
      "  weightwire apply step-10 11.delta -o step-11\n"
      "  weightwire apply mirror 11.delta 12.delta 13.delta --in-place\n"
      "  weightwire apply mirror --in-place                  finish an update that was cut off");
  return {&sub, [options] { return RunApply(*options); }};
}

}  // namespace weightwire
