#include "cli/publish_preview.h"

#include <fmt/format.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "cli/checkpoints.h"
#include "cli/state_pair.h"
#include "cli/terminal.h"
#include "codec/digest/state.h"
#include "follow/rebuild.h"
#include "publish/same_model.h"
#include "runner/run_report.h"
#include "store/transfer.h"

namespace weightwire {
namespace {

// Entries of the spool. A directory that cannot be read counts as empty.
std::uint64_t CountSpooled(const std::filesystem::path& state_directory) {
  std::error_code error;
  std::uint64_t count = 0;
  for (std::filesystem::directory_iterator entry(state_directory / "spool", error), end; !error && entry != end;
       entry.increment(error)) {
    ++count;
  }
  return count;
}

// The base copy in the state directory, if it is the version.
std::optional<Checkpoint> OpenBase(const std::filesystem::path& state_directory, const Layout& layout,
                                   const Sha256Digest& state, const Compute& compute) {
  auto opened = OpenCheckpoint(state_directory / "base.safetensors");
  if (!opened.ok()) return std::nullopt;
  auto view = opened.value().ViewAs(layout);
  if (!view.ok()) return std::nullopt;
  if (StateDigest(layout, DigestInFull(view.value(), "digesting the base copy", compute)) != state) return std::nullopt;
  return std::move(view).value();
}

}  // namespace

Result<std::uint64_t> NextStep(const Record& newest, bool same_state) {
  if (same_state) return newest.step;
  if (newest.step == std::numeric_limits<std::uint64_t>::max()) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("no step comes after {}, that of version {}: give --step", newest.step, newest.version));
  }
  return newest.step + 1;
}

PublishPreview PreviewFirst(const Checkpoint& checkpoint, std::optional<std::uint64_t> step) {
  const ModelSize model = SizeOf(checkpoint.layout());
  PublishPreview preview;
  preview.step = step.value_or(0);
  preview.anchor_bytes = model.bytes;
  preview.changed = model.elements;
  return preview;
}

Result<PublishPreview> PreviewPublish(const Run& run, const PreviewRequest& request, const Compute& compute) {
  const Checkpoint& checkpoint = *request.checkpoint;
  const Layout& layout = checkpoint.layout();
  WW_TRY(const auto newest, run.FindNewest(std::nullopt));
  const std::uint64_t pending = CountSpooled(request.state_directory);
  if (!newest.has_value()) {
    PublishPreview first = PreviewFirst(checkpoint, request.step);
    first.version = pending;
    first.pending_versions = pending;
    return first;
  }
  const Record& record = newest->record;
  WW_TRY(const Layout before, run.ReadLayout(record.layout));
  if (!request.allow_new_model) WW_RETURN_IF_ERROR(CheckSameModel(before, layout, run.store().Name()));

  PublishPreview preview;
  preview.pending_versions = pending;
  preview.version = record.version + 1 + pending;
  preview.delta_bytes = 0;
  bool same = false;
  if (layout.hash() == record.layout) {
    const auto digests = DigestInFull(checkpoint, "digesting " + request.name.string(), compute);
    same = StateDigest(layout, digests) == record.state;
  }
  WW_TRY(const std::uint64_t next_step, NextStep(record, same));
  preview.step = request.step.value_or(next_step);
  if (same && preview.step == record.step && pending == 0) {
    preview.already_published = true;
    preview.version = record.version;
    preview.delta_bytes.reset();
    return preview;
  }
  if (!same) {
    const auto base = OpenBase(request.state_directory, before, record.state, compute);
    MemoryTarget rebuilt(*compute.kernels, *compute.pool);
    std::vector<std::span<const std::uint8_t>> old_bytes;
    if (base.has_value()) {
      old_bytes = TensorBytes(*base);
    } else {
      SystemRandom random;
      SystemClock clock;
      FollowerOptions options;
      options.keep_lease = false;
      options.fetch_threads = TransferOptions().threads;
      const Progress progress(fmt::format("fetching version {}", record.version));
      WW_RETURN_IF_ERROR(
          Rebuild(run, record.version, rebuilt, NewId(random), options, {&clock, compute.kernels, compute.pool.get()}));
      for (std::size_t i = 0; i < before.size(); ++i) old_bytes.push_back(rebuilt.bytes(i));
    }
    const StatePair pair{before, layout, std::move(old_bytes), TensorBytes(checkpoint)};
    const Progress progress("comparing with the previous version");
    WW_TRY(const EncodedDelta delta,
           EncodeDelta(RequestFor(pair, DigestTensors(pair.old_bytes, *compute.kernels, *compute.pool),
                                  CodingRequest::kSmallest),
                       *compute.kernels, *compute.pool));
    preview.delta_bytes = delta.file.size();
    for (const EntryReport& report : delta.reports) preview.changed += report.changed;
  }
  WW_TRY(const auto anchor, FindNewestAnchor(run, record));
  preview.anchor_due = IsAnchorDue(request.anchors, anchor, preview.version,
                                   record.delta_bytes + preview.delta_bytes.value_or(0), layout.total_bytes());
  return preview;
}

}  // namespace weightwire
