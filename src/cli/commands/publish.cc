// weightwire publish RUN CHECKPOINT: one version of a run from a checkpoint.
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/failure_policy.h"
#include "base/random.h"
#include "base/result.h"
#include "cli/checkpoints.h"
#include "cli/command_tools.h"
#include "cli/commands/commands.h"
#include "cli/global_options.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/policy.h"
#include "cli/publish_preview.h"
#include "cli/run_access.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "codec/digest/state.h"
#include "publish/policy.h"
#include "publish/publisher.h"
#include "publish/sooner.h"
#include "runner/init_run.h"
#include "runner/run_report.h"
#include "runner/state_directory.h"

namespace weightwire {
namespace {

struct PublishOptions {
  std::string run;
  std::filesystem::path checkpoint;
  // None: the step after the newest version's, or that one if the state is the same.
  std::optional<std::uint64_t> step;
  std::optional<std::filesystem::path> state_directory;
  std::uint64_t anchor_every = kAnchorEveryVersions;
  std::uint64_t anchor_percent = kAnchorEveryPercent;
  bool single_writer = false;
  bool include_code = false;
  bool discard_conflicting = false;
  bool allow_new_model = false;
  bool dry_run = false;
  const GlobalOptions* global = nullptr;
};

using std::chrono::nanoseconds;

// Runs the publisher's jobs on this thread. Retries transient errors for as long as the user allows.
class WorkLoop {
 public:
  WorkLoop(Publisher& publisher, const PublishOptions& options, const std::filesystem::path& state_directory,
           const Clock& clock)
      : publisher_(publisher), options_(options), state_directory_(state_directory), clock_(clock) {}

  // From now on an error of an anchor ends the loop too. It does not before, because no version waits for an anchor.
  void CountAnchors() { count_anchors_ = true; }

  // Works until `finished` returns true. An error after a signal, or if retrying does not help.
  template <typename Finished>
  Status WorkUntil(const Finished& finished) {
    while (!finished()) {
      if (InterruptGuard::interrupted()) return Error(ErrorCode::kIo, "interrupted");
      work_began_ = clock_.Monotonic();
      if (publisher_.Work()) {
        WW_RETURN_IF_ERROR(CheckError());
        continue;
      }
      if (publisher_.idle()) break;
      static_cast<void>(InterruptGuard::WaitFor(UntilDue()));
    }
    return Ok();
  }

  // The same; an error says where the unsent versions are kept, if there are any.
  template <typename Finished>
  Status SendUntil(const Finished& finished) {
    Status status = WorkUntil(finished);
    if (status.ok() || publisher_.idle() || status.error().code() == ErrorCode::kConflict) return status;
    return Error(status.error().code(),
                 fmt::format("{}; what is not sent yet stays in {} and goes with the next publish",
                             status.error().message(), state_directory_.string()));
  }

 private:
  [[nodiscard]] nanoseconds UntilDue() const {
    std::optional<MonotonicTime> next;
    for (const Lane lane : kAllLanes) next = Sooner(next, publisher_.Due(lane));
    return next.has_value() ? std::max(*next - clock_.Monotonic(), nanoseconds(0)) : kPublishIdlePause;
  }

  // Prints an error when it begins. Returns it if it cannot be retried, or has been for --retry-for.
  Status CheckError() {
    const PublisherStatus status = publisher_.status();
    if (status.fatal_error.has_value()) return *status.fatal_error;
    const std::optional<Error>& failed = count_anchors_ ? status.anchor_error : status.last_error;
    if (!failed.has_value()) {
      outage_.End();
      told_ = false;
      return Ok();
    }
    const Error& error = *failed;
    if (!IsTransient(error)) return error;
    outage_.Add(error, work_began_);
    if (!std::exchange(told_, true)) messages::Warning(error.message() + "; trying again");
    return outage_.Left(options_.global->RetryFor(), clock_.Monotonic()) <= nanoseconds(0) ? Status(error) : Ok();
  }

  Publisher& publisher_;
  const PublishOptions& options_;
  const std::filesystem::path& state_directory_;
  const Clock& clock_;
  bool count_anchors_ = false;
  nanoseconds work_began_{0};
  Outage outage_;
  bool told_ = false;  // of the outage
};

struct Outcome {
  TicketStatus ticket;
  ModelSize model;
  std::optional<Version> anchor;              // of the version: its own if it has no delta, or one that was due
  std::optional<std::uint64_t> anchor_bytes;  // its size
  std::uint64_t pending_versions = 0;         // of a dry run: unsent ones that are sent first
  double seconds = 0;

  // The version has no delta.
  [[nodiscard]] bool whole() const { return anchor.has_value() && !ticket.delta_bytes.has_value(); }
};

// The same object for a publish and for a dry run.
void ReportJson(const PublishOptions& options, const std::optional<Run>& run, const Outcome& outcome) {
  const TicketStatus& ticket = outcome.ticket;
  JsonOutput json;
  json["run"] = options.run;
  json["run_id"] = run.has_value() ? JsonOutput(ToHex(run->id())) : JsonOutput(nullptr);
  json["stage"] = options.dry_run && !ticket.IsFinal() ? JsonOutput(nullptr) : JsonOutput(NameOf(ticket.stage));
  json["dry_run"] = options.dry_run;
  json["version"] = OrNull(ticket.version);
  json["step"] = ticket.step;
  json["delta_bytes"] = OrNull(ticket.delta_bytes);
  json["anchor_bytes"] = OrNull(outcome.anchor_bytes);
  json["anchor_version"] = OrNull(outcome.anchor);
  json["changed_elements"] = ticket.changed;
  json["elements"] = outcome.model.elements;
  json["model_bytes"] = outcome.model.bytes;
  json["pending_versions"] = outcome.pending_versions;
  json["duration_seconds"] = outcome.seconds;
  PrintJson(json);
}

void ReportText(const PublishOptions& options, const Outcome& outcome) {
  const TicketStatus& ticket = outcome.ticket;
  if (ticket.stage == TicketStage::kAlreadyPublished) {
    fmt::print("{}: already published, as version {} (step {})\n", options.run, ticket.version.value_or(0),
               ticket.step);
    return;
  }
  fmt::print("{}: version {} (step {}){}\n", options.run, *ticket.version, ticket.step,
             options.dry_run ? "; dry run, nothing is written" : "");
  if (outcome.pending_versions > 0) {
    fmt::print("first sends {} unsent {}, so the following is an estimate\n", outcome.pending_versions,
               outcome.pending_versions == 1 ? "version" : "versions");
  }
  const char* const sent = options.dry_run ? "to send" : "sent   ";
  const std::string duration = options.dry_run ? "" : fmt::format(", in {}", HumanSeconds(outcome.seconds));
  if (outcome.whole()) {
    fmt::print("{} the whole model as an anchor, {}{}\n", options.dry_run ? "to send" : "sent",
               HumanBytes(outcome.anchor_bytes.value_or(0)), duration);
    return;
  }
  const std::uint64_t bytes = ticket.delta_bytes.value_or(0);
  fmt::print("changed {} of {} elements, {}\n", WithCommas(ticket.changed), WithCommas(outcome.model.elements),
             Percent(ticket.changed, outcome.model.elements));
  fmt::print("{} {}, {} of the model's {}{}\n", sent, HumanBytes(bytes), Percent(bytes, outcome.model.bytes),
             HumanBytes(outcome.model.bytes), duration);
  if (outcome.anchor.has_value()) {
    fmt::print("{} an anchor of version {}\n", options.dry_run ? "then writes" : "wrote", *outcome.anchor);
  }
}

// The step of a version whose step the user did not say.
Result<std::uint64_t> DefaultStep(const Run& run, const Checkpoint& checkpoint, const PublishOptions& options,
                                  const Compute& compute) {
  WW_TRY(const auto newest, run.FindNewest(std::nullopt));
  if (!newest.has_value()) return std::uint64_t{0};
  const Record& record = newest->record;
  bool same = false;
  if (checkpoint.layout().hash() == record.layout) {
    const auto digests = DigestInFull(checkpoint, "digesting " + options.checkpoint.string(), compute);
    same = StateDigest(checkpoint.layout(), digests) == record.state;
  }
  return NextStep(record, same);
}

PublisherOptions PublisherOptionsFrom(const PublishOptions& options, const Checkpoint& checkpoint,
                                      const std::filesystem::path& state_directory) {
  PublisherOptions publisher;
  publisher.anchor_every = options.anchor_every;
  publisher.anchor_percent = options.anchor_percent;
  publisher.state_directory = state_directory;
  publisher.base_on_disk = true;
  publisher.include_code = options.include_code;
  publisher.discard_conflicting = options.discard_conflicting;
  publisher.allow_new_model = options.allow_new_model;
  if (!checkpoint.directory().empty()) publisher.extra_files = checkpoint.directory();
  publisher.anchor_files.adapter = checkpoint.files().front().name == kAdapterFileName;
  return publisher;
}

// Publishes the checkpoint and waits until its version is final.
Result<TicketStatus> PublishCheckpoint(const PublishOptions& options, const Run& run, const Checkpoint& checkpoint,
                                       const Compute& compute, Publisher& publisher, WorkLoop& work) {
  // First sends what an earlier process has left, so that the newest version is known.
  WW_RETURN_IF_ERROR(work.SendUntil([&] { return publisher.idle(); }));
  std::uint64_t step = 0;
  if (options.step.has_value()) {
    step = *options.step;
  } else {
    WW_TRY(step, DefaultStep(run, checkpoint, options, compute));
  }
  const StateBits bits{std::make_shared<const Layout>(checkpoint.layout()), TensorBytes(checkpoint)};
  std::optional<Ticket> ticket;
  {
    const Progress progress("comparing with the version before");
    WW_TRY(ticket, publisher.Publish(bits, step));
  }
  WW_CHECK(ticket.has_value());  // nothing is pending, so there is room
  const Progress progress("sending");
  WW_RETURN_IF_ERROR(work.SendUntil([&] { return (*ticket)->IsFinal(); }));
  const TicketStatus status = **ticket;
  if (status.stage != TicketStage::kFailed) return status;
  return status.error.value_or(Error(ErrorCode::kIo, "the version was not published"));
}

// Writes the anchor that is due after a committed version, if one is.
Status WriteDueAnchor(Publisher& publisher, WorkLoop& work, Outcome& outcome) {
  const auto before = publisher.status().anchor;
  if (outcome.ticket.anchor_bytes.has_value()) {
    outcome.anchor = outcome.ticket.version;
    outcome.anchor_bytes = outcome.ticket.anchor_bytes;
  }
  const Progress progress("writing an anchor");
  work.CountAnchors();
  const Status worked = work.WorkUntil([&] { return publisher.idle(); });
  const PublisherStatus status = publisher.status();
  if (!worked.ok() && (InterruptGuard::interrupted() || !status.anchor_error.has_value())) {
    return worked.error().In(fmt::format("version {} is published, but no anchor of it", *outcome.ticket.version));
  }
  // The version exists anyway, and an anchor is due again with the next one.
  if (status.anchor_error.has_value()) {
    messages::Warning(fmt::format("version {} is published, but without its anchor: {}", *outcome.ticket.version,
                                  status.anchor_error->message()));
  }
  const auto& newest = status.anchor;
  if (!outcome.anchor.has_value() && newest.has_value() && newest != before) {
    outcome.anchor = newest->name.version;
    outcome.anchor_bytes = newest->bytes;
  }
  return Ok();
}

Status RunDry(const PublishOptions& options, const CommandTools& tools) {
  const auto started = std::chrono::steady_clock::now();
  WW_TRY(const Compute compute, Compute::Make(options.global->threads));
  WW_TRY(const Checkpoint checkpoint, OpenCheckpoint(options.checkpoint));
  WW_TRY(const auto store, tools.open_store(options.run, StoreRetries::kStore));
  auto opened = Run::Open(*store);
  if (!opened.ok() && opened.error().code() != ErrorCode::kNotFound) return opened.error();
  std::optional<Run> run;
  if (opened.ok()) run = std::move(opened).value();
  PublishPreview preview = PreviewFirst(checkpoint, options.step);
  if (run.has_value()) {
    PreviewRequest request;
    request.checkpoint = &checkpoint;
    request.name = options.checkpoint;
    request.step = options.step;
    request.anchors = {options.anchor_every, options.anchor_percent};
    request.allow_new_model = options.allow_new_model;
    WW_TRY(request.state_directory, StateDirectoryPath(options.state_directory, run->id()));
    WW_TRY(preview, PreviewPublish(*run, request, compute));
  }
  Outcome outcome;
  outcome.ticket.stage = preview.already_published ? TicketStage::kAlreadyPublished : TicketStage::kQueued;
  outcome.ticket.version = preview.version;
  outcome.ticket.step = preview.step;
  outcome.ticket.delta_bytes = preview.delta_bytes;
  outcome.ticket.changed = preview.changed;
  outcome.model = SizeOf(checkpoint.layout());
  outcome.pending_versions = preview.pending_versions;
  outcome.anchor_bytes = preview.anchor_bytes;
  if (preview.anchor_due) outcome.anchor_bytes = outcome.model.bytes;
  if (outcome.anchor_bytes.has_value()) outcome.anchor = preview.version;
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  if (options.global->json) {
    ReportJson(options, run, outcome);
  } else {
    ReportText(options, outcome);
  }
  return Ok();
}

Status RunPublish(const PublishOptions& options, const CommandTools& tools) {
  if (options.dry_run) return RunDry(options, tools);
  const auto started = std::chrono::steady_clock::now();
  WW_TRY(const Compute compute, Compute::Make(options.global->threads));
  WW_TRY(const Checkpoint checkpoint, OpenCheckpoint(options.checkpoint));
  WW_TRY(const auto store, tools.open_store(options.run, StoreRetries::kStore));
  WW_TRY(const Run run, InitRun(*store, options.single_writer, nullptr));
  WW_TRY(const auto state_directory, StateDirectory(options.state_directory, run.id()));
  SystemClock clock;
  SystemRandom random;
  const InterruptGuard interrupt;
  PublisherTools publisher_tools;
  publisher_tools.clock = &clock;
  publisher_tools.random = &random;
  publisher_tools.files = tools.files;
  publisher_tools.kernels = compute.kernels;
  publisher_tools.pool = compute.pool.get();
  WW_TRY(const auto publisher,
         Publisher::Open(run, PublisherOptionsFrom(options, checkpoint, state_directory), publisher_tools));
  for (const std::string& warning : publisher->status().warnings) messages::Warning(warning);

  WorkLoop work(*publisher, options, state_directory, clock);
  Outcome outcome;
  WW_TRY(outcome.ticket, PublishCheckpoint(options, run, checkpoint, compute, *publisher, work));
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  outcome.model = SizeOf(checkpoint.layout());
  if (outcome.ticket.stage == TicketStage::kCommitted) {
    WW_RETURN_IF_ERROR(WriteDueAnchor(*publisher, work, outcome));
  }
  if (options.global->json) {
    ReportJson(options, run, outcome);
  } else {
    ReportText(options, outcome);
  }
  return Ok();
}

}  // namespace

Command AddPublish(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<PublishOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("publish", "add a version to a run, from a checkpoint");
  AddRun(sub, options->run, "the run; made if there is none");
  AddPath(sub, "CHECKPOINT", options->checkpoint, "a safetensors file or a Hugging Face directory")->required();
  AddNumber(
      sub, "--step", options->step,
      "training step (default: the newest version's step plus one, or the same step if the weights are unchanged)");
  AddSetting(sub, settings::kStateDir, options->state_directory);
  AddSetting(sub, settings::kAnchorEvery, options->anchor_every);
  AddSetting(sub, settings::kAnchorPercent, options->anchor_percent);
  AddSetting(sub, settings::kSingleWriter, options->single_writer);
  AddSetting(sub, settings::kIncludeCodeInAnchors, options->include_code);
  AddSetting(sub, settings::kDiscardConflicting, options->discard_conflicting);
  AddSetting(sub, settings::kAllowNewModel, options->allow_new_model);
  sub.add_flag("--dry-run", options->dry_run, "show what would be sent, and write nothing");
  AddStoreOptions(sub, *tools.options);
  sub.footer(
      "The first version is sent as an anchor, later ones as deltas against the previous version. Versions that an\n"
      "interrupted publish left unsent are sent by the next one. Publishing the newest version again does nothing. If\n"
      "two publishers run at a time, one wins and the other fails.\n"
      "\n"
      "Examples:\n"
      "  weightwire publish /shared/runs/grpo-7b out/checkpoint-100 --step 100\n"
      "  weightwire publish s3://bucket/runs/grpo-7b model.safetensors");
  return {&sub, [options, &tools] { return RunPublish(*options, tools); }};
}

}  // namespace weightwire
