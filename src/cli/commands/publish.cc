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
  bool single_writer = false;        // if the run has to be made
  bool include_code = false;         // into anchors, what could run as code too
  bool discard_conflicting = false;  // what is spooled and another publisher has taken the place of
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
  std::uint64_t bytes = 0;        // sent for the version: its delta, or its anchor if it has no delta
  bool first_of_chain = false;    // it has no delta
  std::optional<Version> anchor;  // one that was written after it
  double seconds = 0;
};

void ReportJson(const PublishOptions& options, const Run& run, const Outcome& outcome) {
  const TicketStatus& ticket = outcome.ticket;
  JsonOutput json;
  json["run"] = ToHex(run.id());
  json["location"] = options.run;
  json["outcome"] = NameOf(ticket.stage);
  json["version"] = ticket.version.has_value() ? JsonOutput(*ticket.version) : JsonOutput(nullptr);
  json["step"] = ticket.step;
  json["changed"] = ticket.changed;
  json["elements"] = outcome.model.elements;
  json["bytes"] = outcome.bytes;
  json["model_bytes"] = outcome.model.bytes;
  json["anchor"] = outcome.first_of_chain || outcome.anchor.has_value();
  json["seconds"] = outcome.seconds;
  PrintJson(json);
}

void ReportText(const PublishOptions& options, const Outcome& outcome) {
  const TicketStatus& ticket = outcome.ticket;
  if (ticket.stage == TicketStage::kAlreadyPublished) {
    fmt::print("{}: already published, as version {} (step {})\n", options.run, ticket.version.value_or(0),
               ticket.step);
    return;
  }
  fmt::print("{}: version {} (step {})\n", options.run, *ticket.version, ticket.step);
  if (outcome.first_of_chain) {
    fmt::print("sent the whole model as an anchor, {}, in {}\n", HumanBytes(outcome.bytes),
               HumanSeconds(outcome.seconds));
    return;
  }
  fmt::print("changed {} of {} elements, {}\n", WithCommas(ticket.changed), WithCommas(outcome.model.elements),
             Percent(ticket.changed, outcome.model.elements));
  fmt::print("sent    {}, {} of the model's {}, in {}\n", HumanBytes(outcome.bytes),
             Percent(outcome.bytes, outcome.model.bytes), HumanBytes(outcome.model.bytes),
             HumanSeconds(outcome.seconds));
  if (outcome.anchor.has_value()) fmt::print("wrote an anchor of version {}\n", *outcome.anchor);
}

// The step of a version whose step the user did not say.
Result<std::uint64_t> DefaultStep(const Run& run, const Checkpoint& checkpoint, const PublishOptions& options,
                                  const Compute& compute) {
  WW_TRY(const auto newest, run.FindNewest(std::nullopt));
  if (!newest.has_value()) return std::uint64_t{0};
  const Record& record = newest->record;
  if (checkpoint.layout().hash() == record.layout) {
    const auto digests = DigestInFull(checkpoint, "digesting " + options.checkpoint.string(), compute);
    if (StateDigest(checkpoint.layout(), digests) == record.state) return record.step;
  }
  if (record.step == std::numeric_limits<std::uint64_t>::max()) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("no step comes after {}, that of version {}: give --step", record.step, record.version));
  }
  return record.step + 1;
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
  outcome.first_of_chain = before.has_value() && before->name.version == *outcome.ticket.version;
  if (outcome.first_of_chain) outcome.bytes = before->bytes;
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
  if (!outcome.first_of_chain && newest.has_value() && newest != before) outcome.anchor = newest->name.version;
  return Ok();
}

Status RunPublish(const PublishOptions& options, const CommandTools& tools) {
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
  outcome.bytes = outcome.ticket.delta_bytes.value_or(0);
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
  AddNumber(sub, "--step", options->step,
            "the trainer's step, for people; one more than the newest version's unless given");
  AddPath(sub, "--state-dir", options->state_directory,
          "where the base copy and what is not sent yet are kept; in $XDG_STATE_HOME/weightwire or "
          "~/.local/state/weightwire, by the run's id, unless given");
  AddNumber(
      sub, "--anchor-every", options->anchor_every,
      fmt::format("write an anchor, a full checkpoint, after so many versions ({} unless given; 0: never by number)",
                  kAnchorEveryVersions));
  AddNumber(sub, "--anchor-percent", options->anchor_percent,
            fmt::format("and when the deltas since the last one add up to this share of the model ({} unless given; 0: "
                        "never)",
                        kAnchorEveryPercent));
  sub.add_flag("--single-writer", options->single_writer, "as for 'init', if the run has to be made");
  AddIncludeCodeInAnchors(sub, options->include_code);
  sub.add_flag("--discard-conflicting", options->discard_conflicting,
               "drop versions that wait to be sent but whose place another publisher has taken");
  AddStoreOptions(sub, *tools.options);
  sub.footer(
      "The first version goes as an anchor, later ones as deltas against the version before. A publish that was cut "
      "off\n"
      "goes on with the next one. Publishing the newest version again does nothing. Of two publishers at a time one "
      "wins,\n"
      "and the other is told.\n"
      "\n"
      "Examples:\n"
      "  weightwire publish /shared/runs/grpo-7b out/checkpoint-100 --step 100\n"
      "  weightwire publish s3://bucket/runs/grpo-7b model.safetensors");
  return {&sub, [options, &tools] { return RunPublish(*options, tools); }};
}

}  // namespace weightwire
