// weightwire apply BASE DELTA... -o OUT (or --in-place): the state after the deltas.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
  const GlobalOptions* global = nullptr;
};

// The base, the state after all deltas seen through it, and the way there.
struct Staged {
  Checkpoint base;  // seen as the layout the first delta applies to
  StateView after;
  std::vector<std::shared_ptr<const StagedChange>> changes;
};

Error AlreadyApplied(const ApplyOptions& options, const std::filesystem::path& delta, bool is_first) {
  return {ErrorCode::kMismatch,
          fmt::format("cannot apply {}: {}{} already is at the state after it; nothing was changed", delta.string(),
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
                      delta.map.path().string(), options.base.string()));
    }
    return layout.error().In(fmt::format("cannot apply {} to {}", delta.map.path().string(), options.base.string()));
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
      return AlreadyApplied(options, delta.map.path(), staged.changes.empty());
    }
    const Progress progress("decoding " + delta.map.path().string());
    auto change = StageDelta(delta.file, staged.after, *compute.kernels, *compute.pool);
    if (!change.ok()) {
      return change.error().In(fmt::format("cannot apply {} to {}", delta.map.path().string(), options.base.string()));
    }
    staged.after = staged.after.After(change.value());
    staged.changes.push_back(std::move(change).value());
  }
  return staged;
}

// Returns what lies beside the base's weights and was left out.
Result<std::vector<std::string>> WriteOutput(const Staged& staged, const std::filesystem::path& output) {
  constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 22;
  const InterruptGuard interrupt;
  const Layout& layout = staged.after.layout();
  Progress progress("writing " + output.string(), layout.total_bytes());
  std::vector<std::uint8_t> scratch;
  return WriteCheckpointLike(staged.base, layout, output, [&](std::size_t index, const TensorSink& sink) -> Status {
    const std::uint64_t units = layout.unit_count(index);
    const std::uint64_t piece_units =
        kPieceBytes / static_cast<std::uint64_t>(UnitBytes(layout.tensors()[index].dtype));
    for (std::uint64_t first = 0; first < units; first += piece_units) {
      WW_RETURN_IF_ERROR(interrupt.Check());
      const auto bytes = staged.after.Units(index, first, std::min(piece_units, units - first), scratch);
      WW_RETURN_IF_ERROR(sink(bytes));
      progress.Add(bytes.size());
    }
    return Ok();
  });
}

void Report(const ApplyOptions& options, const StagedChange& change, const std::vector<std::string>& left_out) {
  std::uint64_t changed = 0;
  for (const StagedTensor& tensor : change.tensors()) changed += tensor.changed();
  const std::filesystem::path& result = options.in_place ? options.base : *options.output;
  if (options.global->json) {
    JsonOutput json;
    json["output"] = result.string();
    json["deltas"] = options.deltas.size();
    json["changed"] = changed;
    json["tensors_changed"] = change.tensors().size();
    json["state_before"] = ToHex(change.state_before());
    json["state_after"] = ToHex(change.state_after());
    if (!options.in_place) json["left_out"] = left_out;
    PrintJson(json);
    return;
  }
  fmt::print("{}: {} elements changed in {} tensors by {} {}\nstate before  {}\nstate after   {}\n", result.string(),
             WithCommas(changed), WithCommas(change.tensors().size()), options.deltas.size(),
             options.deltas.size() == 1 ? "delta" : "deltas", ToHex(change.state_before()),
             ToHex(change.state_after()));
  for (const std::string& path : left_out) fmt::print("left out      {}\n", Printable(path));
}

Status CheckOptions(const ApplyOptions& options) {
  const auto wrong = [](const char* sentence) { return Error(ErrorCode::kInvalidArgument, sentence); };
  if (options.in_place && options.output.has_value()) return wrong("give either -o OUT or --in-place, not both");
  if (!options.in_place && !options.output.has_value()) {
    return wrong("say where the result goes: -o OUT, or --in-place to change BASE itself");
  }
  if (!options.in_place && options.deltas.empty()) return wrong("name at least one delta to apply");
  return options.in_place ? Ok() : CheckNameIsFree(*options.output);
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
  const std::shared_ptr<const StagedChange> change = StagedChange::Fold(staged.changes);
  std::vector<std::string> left_out;
  if (options.in_place) {
    const Progress progress("updating " + options.base.string());
    WW_RETURN_IF_ERROR(UpdateInPlace(options.base, staged.base, *change, in_place));
  } else {
    WW_TRY(left_out, WriteOutput(staged, *options.output));
  }
  Report(options, *change, left_out);
  return Ok();
}

}  // namespace

Command AddApply(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<ApplyOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("apply", "apply deltas to a checkpoint, to a copy or in place");
  AddPath(sub, "BASE", options->base, "the checkpoint the first delta was made for")->required();
  sub.add_option_function<std::vector<std::string>>(
         "DELTA",
         [options](const std::vector<std::string>& given) { options->deltas.assign(given.begin(), given.end()); },
         "deltas, in the order in which they follow each other")
      ->type_name("PATH")
      ->expected(0, -1)
      ->take_all();
  AddPath(sub, "-o,--output", options->output,
          "write the result here, in the form of BASE, with what lies beside its weights; must not exist");
  sub.add_flag("--in-place", options->in_place,
               "change BASE itself; a crash at any point is mended by running 'weightwire apply --in-place BASE'");
  sub.footer(
      "Everything is checked before the first byte is written: the delta's hash, the digest of the whole base, and "
      "the\n"
      "digest of the result.\n"
      "\n"
      "-o copies the other files of a directory, too. Weights beside BASE's own, links to directories and .git are "
      "left\n"
      "out, and listed.\n"
      "\n"
      "Examples:\n"
      "  weightwire apply step-10 11.delta -o step-11\n"
      "  weightwire apply mirror 11.delta 12.delta 13.delta --in-place\n"
      "  weightwire apply mirror --in-place                  finish an update that was cut off");
  return {&sub, [options] { return RunApply(*options); }};
}

}  // namespace weightwire
