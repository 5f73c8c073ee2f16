// weightwire follow RUN DIR: keeps a directory at the newest version of a run.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/failure_policy.h"
#include "base/quantities.h"
#include "base/result.h"
#include "cli/checkpoints.h"
#include "cli/command_tools.h"
#include "cli/commands/commands.h"
#include "cli/exec_command.h"
#include "cli/follow_metrics.h"
#include "cli/global_options.h"
#include "cli/http_server.h"
#include "cli/interrupt.h"
#include "cli/json.h"
#include "cli/listen_address.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "cli/retry.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "cli/vllm_server.h"
#include "follow/follower.h"
#include "follow/mirror/mirror.h"
#include "follow/mirror/swap_mirror.h"
#include "log/keys.h"
#include "runner/error_kinds.h"
#include "runner/follow_loop.h"
#include "runner/init_run.h"
#include "runner/mirror_follower.h"
#include "runner/policy.h"

namespace weightwire {
namespace {

struct FollowOptions {
  std::string run;
  std::filesystem::path directory;
  bool once = false;
  std::optional<Version> until;
  std::optional<std::chrono::milliseconds> timeout;  // for `once` and `until`
  std::optional<Version> pin;
  std::optional<std::string> exec;     // after each update
  std::optional<std::string> vllm;     // the URL of a server that is brought along
  std::optional<std::string> metrics;  // the address at which they are served
  bool wait_for_run = false;
  bool swap = false;  // whole copies behind a link, for readers that take no lock
  MirrorOptions mirror{.check = true};
  FollowerOptions follower;
  std::chrono::milliseconds poll = kPollInterval;
  const GlobalOptions* global = nullptr;
};

void PrintEvent(const JsonOutput& json) {
  PrintJsonLine(json);
  std::fflush(stdout);
}

void PrintEnd(const FollowOptions& options, FollowEnd end, const FollowerStatus& status) {
  const char* reason = end == FollowEnd::kReached ? "reached" : end == FollowEnd::kStopped ? "stopped" : "up to date";
  if (options.global->json) {
    PrintEvent({{"event", "end"},
                {"reason", end == FollowEnd::kUpToDate ? "up_to_date" : reason},
                {"version", OrNull(status.held)},
                {"versions_applied", status.versions_applied},
                {"anchors_loaded", status.anchors_loaded},
                {"bytes_received", status.bytes_fetched}});
  } else if (status.held.has_value()) {
    fmt::print("{}: {}, with version {}\n", options.directory.string(), reason, *status.held);
  } else {
    fmt::print("{}: {}; it holds no version yet\n", options.directory.string(), reason);
  }
}

void PrintWarning(const std::string& sentence) { messages::Warning(sentence); }

// Prints events, and the status line on a terminal.
class Reporter {
 public:
  Reporter(const FollowOptions& options, const Follower& follower, const std::optional<Held>& held, const Clock& clock)
      : options_(options), follower_(follower), clock_(clock) {
    if (held.has_value()) held_ = held->version;
  }

  void Stepped(FollowerStep step) {
    const bool rests =
        step == FollowerStep::kUpToDate || step == FollowerStep::kNothingNewer || step == FollowerStep::kMaintenance;
    if (!rests && step != FollowerStep::kLease && !began_.has_value()) began_ = clock_.Monotonic();
    if (step == FollowerStep::kUpToDate) began_.reset();
    if (line_.is_shown()) line_.Show(StatusLine());
  }

  void Applied() {
    const FollowerStatus status = follower_.status();
    const Record& record = follower_.held_record()->record;
    const std::uint64_t bytes = status.bytes_fetched - std::exchange(bytes_before_, status.bytes_fetched);
    const std::chrono::duration<double> took =
        clock_.Monotonic() - std::exchange(began_, std::nullopt).value_or(clock_.Monotonic());
    const std::optional<Version> from = std::exchange(held_, record.version);
    line_.Erase();
    if (options_.global->json) {
      PrintEvent({{"event", "version"},
                  {"version", record.version},
                  {"step", record.step},
                  {"from_version", OrNull(from)},
                  {"digest", ToHex(record.state)},
                  {"bytes_received", bytes},
                  {"seconds", took.count()}});
      return;
    }
    const std::string skipped =
        from.has_value() && *from + 1 < record.version ? fmt::format(" from version {}", *from) : "";
    fmt::print("version {} (step {}){}: received {} in {}\n", record.version, record.step, skipped, HumanBytes(bytes),
               HumanSeconds(took.count()));
    std::fflush(stdout);
  }

  void Troubled(const std::optional<Error>& error) {
    line_.Erase();
    if (options_.global->json && error.has_value()) {
      PrintEvent(
          {{"event", "retrying"}, {"code", std::string(KindOf(error->code()).name)}, {"message", error->message()}});
    } else if (options_.global->json) {
      PrintEvent({{"event", "recovered"}});
    } else if (error.has_value()) {
      messages::Warning(error->message() + "; trying again");
    } else {
      messages::Info("it works again");
    }
  }

  // The server of --vllm holds the version.
  void Served(Version version) {
    line_.Erase();
    if (options_.global->json) {
      PrintEvent({{"event", "served"}, {"version", version}});
      return;
    }
    fmt::print("{} serves version {}\n", *options_.vllm, version);
    std::fflush(stdout);
  }

  void Warn(const std::string& sentence) {
    line_.Erase();
    PrintWarning(sentence);
  }

  void Ended(FollowEnd end) {
    line_.Erase();
    PrintEnd(options_, end, follower_.status());
  }

 private:
  [[nodiscard]] std::string StatusLine() const {
    const FollowerStatus status = follower_.status();
    std::string text = status.held.has_value() ? fmt::format("version {}", *status.held) : std::string("no version");
    if (status.held.has_value() && status.newest.value_or(0) > *status.held) {
      text += fmt::format(", {} behind for {}", *status.newest - *status.held,
                          HumanDuration(std::chrono::duration_cast<std::chrono::seconds>(status.behind)));
    }
    return text + ", waits for " + status.waits_for;
  }

  const FollowOptions& options_;
  const Follower& follower_;
  const Clock& clock_;
  std::optional<Version> held_;
  std::uint64_t bytes_before_ = 0;
  std::optional<std::chrono::nanoseconds> began_;  // when the first thing was done for the next update
  LiveLine line_;
};

Status CheckOptions(const FollowOptions& options) {
  if (options.until.has_value() && options.pin.has_value()) {
    return Error(ErrorCode::kInvalidArgument,
                 "give either --until or --pin (WEIGHTWIRE_PIN): the first ends at a version, the second stays at one");
  }
  if (options.once && options.follower.max_lag > 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "give either --once or --max-lag (WEIGHTWIRE_MAX_LAG): the first updates now, the second waits");
  }
  if (options.timeout.has_value() && !options.until.has_value() && !options.once) {
    return Error(ErrorCode::kInvalidArgument,
                 "give --timeout together with --once or --until: without them, follow has nothing to finish in time");
  }
  if (options.swap && options.mirror.adopt) {
    return Error(ErrorCode::kInvalidArgument,
                 "give either --swap or --adopt: with --swap every version gets a copy of its own");
  }
  return Ok();
}

// Counts how long readers are locked out of the mirror.
class LockTimer {
 public:
  explicit LockTimer(const Clock& clock) : clock_(clock) {}

  void Locked(bool is_locked) {
    if (is_locked) {
      began_ = clock_.Monotonic();
    } else {
      total_ += clock_.Monotonic() - began_;
    }
  }
  // The time since the last call.
  [[nodiscard]] std::chrono::nanoseconds Take() { return std::exchange(total_, std::chrono::nanoseconds(0)); }

 private:
  const Clock& clock_;
  MonotonicTime began_{};
  std::chrono::nanoseconds total_{0};
};

// What --metrics needs. Its parts end in the reverse order.
struct ServedMetrics {
  explicit ServedMetrics(const Clock& clock) : values(clock), lock_timer(clock) {}

  // Serves the metrics, and says where.
  Status Start(const std::string& address) {
    WW_TRY(const ListenAddress parsed, ParseListenAddress(address));
    WW_TRY(server,
           HttpServer::Start(parsed, {"/metrics", std::string(kMetricsContentType), [this] { return values.Text(); }}));
    messages::Info(fmt::format("serves metrics at http://{}/metrics", TextOf(server->address())));
    return Ok();
  }

  FollowMetrics values;
  LockTimer lock_timer;
  std::unique_ptr<HttpServer> server;
};

Result<std::unique_ptr<Mirror>> OpenMirrorFor(const FollowOptions& options, FileSystem& files, const Compute& compute,
                                              ServedMetrics* metrics) {
  MirrorOptions mirror = options.mirror;
  if (metrics != nullptr) {
    mirror.content_locked = [metrics](bool is_locked) { metrics->lock_timer.Locked(is_locked); };
  }
  const auto open = options.swap ? OpenSwapMirror : OpenMirror;
  return open(files, options.directory, mirror, *compute.kernels, *compute.pool);
}

// What --until or --once waited for did not come before the end of --timeout.
Error TooLate(const FollowOptions& options, const std::optional<Held>& held) {
  const std::string missing = options.until.has_value() ? fmt::format("version {} did not come in time", *options.until)
                                                        : std::string("the update did not end in time");
  return {ErrorCode::kTimeout,
          fmt::format("{}; {} holds {}", missing, options.directory.string(),
                      held.has_value() ? fmt::format("version {}", held->version) : std::string("no version yet"))};
}

// Whether the version of --until or --pin exists.
Status CheckReached(const FollowOptions& options, const FollowerStatus& status, const Run& run) {
  const std::optional<Version> wanted = options.until.has_value() ? options.until : options.pin;
  if (!status.held.has_value()) {
    return Error(ErrorCode::kNotFound, fmt::format("the run at {} has no version yet", run.store().Name()));
  }
  if (wanted.has_value() && *status.held < *wanted) {
    return Error(ErrorCode::kNotFound,
                 fmt::format("the run at {} has no version {} yet; {} holds version {}", run.store().Name(), *wanted,
                             options.directory.string(), *status.held));
  }
  return Ok();
}

// Returns an error if there is no run, unless --wait-for-run waits for it, before anything is written.
Status CheckRun(const FollowOptions& options, Store& store, const InterruptGuard& interrupt,
                const InterruptSleeper& sleeper) {
  const auto retry_for =
      std::min(options.global->RetryFor(), options.timeout.value_or(std::chrono::milliseconds::max()));
  Status checked = RetryTransient(interrupt, retry_for, [&]() -> Result<bool> {
    const auto run = Run::Open(store);
    const bool may_be_missing = options.wait_for_run && !run.ok() && run.error().code() == ErrorCode::kNotFound;
    if (run.ok() || may_be_missing) return true;
    if (run.error().code() != ErrorCode::kNotFound) return run.error();
    return Error(ErrorCode::kNotFound,
                 run.error().message() + "; to wait until a publisher creates it, add --wait-for-run");
  });
  if (!checked.ok() && IsTransient(checked.error()) && sleeper.IsOver()) {
    return Error(ErrorCode::kTimeout,
                 fmt::format("the store did not answer before the end of --timeout: {}", checked.error().message()));
  }
  return checked;
}

// Opens the run, or waits for it with --wait-for-run. A reader never creates one. nullopt if a signal or the timeout
// ended the wait.
Result<std::optional<Run>> RunToFollow(const FollowOptions& options, Store& store, const Mirror& mirror,
                                       Sleeper& sleeper) {
  auto run = Run::Open(store);
  if (run.ok()) return std::optional(std::move(run).value());
  if (run.error().code() != ErrorCode::kNotFound) return run.error();
  // A run existed when the mirror got its version, so the location may be wrong.
  if (mirror.held().has_value()) {
    return Error(ErrorCode::kNotFound, fmt::format("there is no run at {}, though {} holds version {} of one",
                                                   store.Name(), options.directory.string(), mirror.held()->version));
  }
  PrintWarning(fmt::format("there is no run at {} yet; waiting for its first publisher", store.Name()));
  while (sleeper.SleepFor(options.poll)) {
    run = Run::Open(store);
    if (run.ok()) return std::optional(std::move(run).value());
    if (run.error().code() != ErrorCode::kNotFound && !IsTransient(run.error())) return run.error();
  }
  return std::optional<Run>();
}

// Moves the mirror from version to version, with the server of --vllm and the command of --exec.
class Session {
 public:
  Session(const FollowOptions& options, FileSystem& files, Follower& follower, Mirror& mirror, Reporter& reporter,
          const InterruptGuard& interrupt, InterruptSleeper& sleeper, ServedMetrics* metrics)
      : options_(options),
        follower_(follower),
        mirror_(mirror),
        reporter_(reporter),
        sleeper_(sleeper),
        metrics_(metrics),
        weights_(options.swap ? options.directory / kSwapLink : options.directory) {
    if (options.vllm.has_value()) server_.emplace(*options.vllm);
    if (options.exec.has_value()) {
      command_.emplace(*options.exec, ExecCommand::Directories{weights_, options.directory}, files, interrupt);
    }
  }

  // Works until the options' end, a signal or an error. In any case it then syncs the mirror and gives the lease back.
  Result<FollowEnd> Work() {
    FollowLoopOptions loop;
    loop.once = options_.once;
    loop.until = options_.until;
    loop.poll = options_.poll;
    loop.retry_for = options_.global->RetryFor();
    loop.always_gives_up = options_.global->retry_for.has_value();
    loop.every_version = options_.follower.every_version;
    FollowLoopEvents events;
    events.stepped = [this](FollowerStep step) { return Stepped(step); };
    events.troubled = [this](const std::optional<Error>& error) { reporter_.Troubled(error); };
    events.failed = [this](const Error& error) {
      if (metrics_ == nullptr) return;
      metrics_->values.Failed(error);
      metrics_->values.Update(follower_.status());
    };
    events.applied = [this]() -> Status {
      CountUpdate();  // before the event, so that who reads it finds it counted
      reporter_.Applied();
      WW_RETURN_IF_ERROR(UpdateServer());
      return RunCommand();
    };
    if (metrics_ != nullptr) static_cast<void>(metrics_->lock_timer.Take());  // opening the mirror was no update
    SystemClock clock;
    SystemRandom random;
    auto end = RunFollower(follower_, loop, {&clock, &sleeper_, &random}, events);
    const Status synced = mirror_.Sync();
    const Status left = follower_.ReleaseLease();
    if (!end.ok()) return end.error();
    if (!served_.ok()) return served_.error();
    if (!synced.ok()) return synced.error();
    if (end.value() == FollowEnd::kStopped && !InterruptGuard::interrupted()) return TooLate(options_, mirror_.held());
    if (!left.ok()) reporter_.Warn(left.error().message() + "; the lease stays until it expires");
    return end;
  }

 private:
  // Returns whether to continue.
  bool Stepped(FollowerStep step) {
    reporter_.Stepped(step);
    if (metrics_ != nullptr) metrics_->values.Update(follower_.status());
    if (step == FollowerStep::kUpToDate) served_ = UpdateServer();
    if (served_.ok()) served_ = CatchUpCommand(step);
    const bool is_too_late = sleeper_.IsOver() && !IsFinishedBy(step);
    return served_.ok() && !InterruptGuard::interrupted() && !is_too_late;
  }

  // Returns true if a step did, or found done, what --once or --until asks for.
  [[nodiscard]] bool IsFinishedBy(FollowerStep step) const {
    if (options_.once && step == FollowerStep::kUpToDate) return true;
    const auto held = mirror_.held();
    return options_.until.has_value() && held.has_value() && held->version >= *options_.until;
  }

  void CountUpdate() {
    if (metrics_ == nullptr) return;
    const std::chrono::nanoseconds locked = metrics_->lock_timer.Take();
    metrics_->values.Update(follower_.status());
    metrics_->values.Applied(options_.swap ? std::nullopt : std::optional(locked));
  }

  // Brings the server to the version that the mirror holds. Returns an error with --once, or if the server failed.
  // Otherwise prints the error; the next call tries again.
  Status UpdateServer() {
    if (!server_.has_value() || !mirror_.held().has_value()) return Ok();
    const Held held = *mirror_.held();
    const auto updated = server_->UpdateTo(held, weights_);
    if (!updated.ok()) {
      const Error& error = updated.error();
      if (options_.once || error.code() == ErrorCode::kIo) return error;
      if (std::exchange(server_error_, error.message()) != error.message()) reporter_.Warn(error.message());
      return Ok();
    }
    server_error_.clear();
    if (updated.value()) reporter_.Served(held.version);
    return Ok();
  }

  // Runs the command for what the mirror holds. Returns an error only with --once. Otherwise prints it, and the next
  // start runs the command again.
  Status RunCommand() {
    if (!command_.has_value()) return Ok();
    // A lease that cannot be renewed at this moment is tried again with everything else.
    Status ran = command_->Run(*mirror_.held(), [this] { static_cast<void>(follower_.KeepLease()); });
    if (ran.ok() || options_.once) return ran;
    reporter_.Warn(ran.error().message());
    return Ok();
  }

  // Runs the command for the version that an earlier start left without it, unless a newer version comes first.
  Status CatchUpCommand(FollowerStep step) {
    const bool is_up_to_date = step == FollowerStep::kUpToDate;
    if (step != FollowerStep::kApply && !is_up_to_date) return Ok();
    if (!std::exchange(command_may_be_due_, false) || !is_up_to_date || !command_.has_value()) return Ok();
    const auto held = mirror_.held();
    if (!held.has_value() || command_->HasSucceeded(*held)) return Ok();
    return RunCommand();
  }

  const FollowOptions& options_;
  Follower& follower_;
  Mirror& mirror_;
  Reporter& reporter_;
  InterruptSleeper& sleeper_;
  ServedMetrics* const metrics_;         // or nullptr
  const std::filesystem::path weights_;  // what readers open
  std::optional<VllmServer> server_;
  std::string server_error_;  // the last one printed, until the server has been updated
  std::optional<ExecCommand> command_;
  bool command_may_be_due_ = true;  // for the version held at the start
  Status served_ = Ok();            // of the server or the command
};

Status RunFollow(const FollowOptions& options, const CommandTools& tools) {
  WW_RETURN_IF_ERROR(CheckOptions(options));
  WW_TRY(const Compute compute, Compute::Make(options.global->threads));
  WW_TRY(const auto store, tools.open_store(options.run, StoreRetries::kCaller));
  const InterruptGuard interrupt(InterruptGuard::AtEnd::kForget);
  WW_RETURN_IF_ERROR(CheckApart(options.run, options.directory));
  InterruptSleeper sleeper = options.timeout.has_value() ? InterruptSleeper(*options.timeout) : InterruptSleeper();
  SystemClock clock;
  std::optional<ServedMetrics> metrics;
  if (options.metrics.has_value()) WW_RETURN_IF_ERROR(metrics.emplace(clock).Start(*options.metrics));
  ServedMetrics* const served = metrics.has_value() ? &*metrics : nullptr;
  if (Status checked = CheckRun(options, *store, interrupt, sleeper); !checked.ok()) {
    if (!InterruptGuard::interrupted()) return checked;
    PrintEnd(options, FollowEnd::kStopped, FollowerStatus());
    return Ok();
  }
  WW_TRY(const auto mirror, OpenMirrorFor(options, *tools.files, compute, served));
  WW_TRY(const std::optional<Run> run, RunToFollow(options, *store, *mirror, sleeper));
  if (!run.has_value()) {
    if (!InterruptGuard::interrupted()) return TooLate(options, mirror->held());
    PrintEnd(options, FollowEnd::kStopped, FollowerStatus());
    return Ok();
  }
  if (options.mirror.adopt) {
    const Progress progress("digesting what lies there");
    WW_RETURN_IF_ERROR(AdoptByDigest(*run, *mirror));
  }
  if (served != nullptr) served->values.SetRun(run->id());
  SystemRandom random;
  WW_TRY(const auto follower, MakeMirrorFollower(*run, *mirror, options.directory, options.follower,
                                                 {&clock, compute.kernels, compute.pool.get()}, *tools.files, random));
  if (options.pin.has_value()) follower->Pin(*options.pin);

  Reporter reporter(options, *follower, mirror->held(), clock);
  if (mirror->damage().has_value()) reporter.Warn(mirror->damage()->message());
  Session session(options, *tools.files, *follower, *mirror, reporter, interrupt, sleeper, served);
  WW_TRY(const FollowEnd end, session.Work());
  if (end == FollowEnd::kUpToDate) WW_RETURN_IF_ERROR(CheckReached(options, follower->status(), *run));
  reporter.Ended(end);
  return Ok();
}

}  // namespace

Command AddFollow(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<FollowOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("follow", "keep a directory at the newest version of a run");
  AddRun(sub, options->run, "the run");
  AddPath(sub, "DIR", options->directory, "the mirror: a Hugging Face directory; made if there is none")->required();
  sub.add_flag("--once", options->once, "update to the newest version, then end");
  AddNumber(sub, "--until", options->until, "follow up to VERSION, then end")->type_name("VERSION");
  AddDuration(sub, "--timeout", options->timeout,
              "with --once or --until: end with exit status 12 if that is not done after TIME");
  AddSetting(sub, settings::kPin, options->pin);
  AddSetting(sub, settings::kWaitForRun, options->wait_for_run);
  sub.add_option("--exec", options->exec,
                 "run this command after each update; the mirror stands still until it ends. If it fails, or we are "
                 "killed before, the next start runs it again. It finds "
                 "WEIGHTWIRE_VERSION, WEIGHTWIRE_STEP and WEIGHTWIRE_MIRROR in its environment")
      ->type_name("CMD");
  sub.add_option(
         "--vllm", options->vllm,
         "bring this vLLM server along, in a pause; for one in development mode without the plugin (docs/vllm.md)")
      ->type_name("URL");
  AddSetting(sub, settings::kMetrics, options->metrics)->type_name("ADDRESS");
  AddSetting(sub, settings::kSwap, options->swap);
  AddSetting(sub, settings::kEveryVersion, options->follower.every_version);
  AddSetting(sub, settings::kMaxLag, options->follower.max_lag);
  AddSetting(sub, settings::kPollInterval, options->poll);
  AddSetting(sub, settings::kAdopt, options->mirror.adopt);
  AddIncludeCodeInDirectory(sub, options->mirror.include_code);
  AddSetting(sub, settings::kVerify, options->mirror.check);
  AddSetting(sub, settings::kName, options->follower.name);
  AddSetting(sub, settings::kLease, options->follower.keep_lease);
  AddStoreOptions(sub, *tools.options);
  sub.footer(
      "With --json: one object on each line, with 'event':\n"
      "  version    The mirror holds another version: 'version', 'step', 'from_version' (null: it held\n"
      "             none), 'digest', 'bytes_received' and 'seconds', both of this update.\n"
      "  retrying   Something failed and is retried: 'code', as in 'weightwire --help', and 'message'.\n"
      "             One line for each change of the message.\n"
      "  recovered  What failed works again.\n"
      "  served     With --vllm: the server holds 'version'.\n"
      "  end        Following ended: 'reason' (up_to_date, reached or stopped), 'version' (null: none),\n"
      "             and since the start 'versions_applied', 'anchors_loaded' and 'bytes_received'.\n"
      "\n"
      "Each version is fetched, checked and decoded before a byte of the mirror changes; a crash at any point leaves "
      "the\n"
      "old version or the new one. Readers take a shared lock on DIR/.weightwire/content.lock (flock) while they "
      "read.\n"
      "With --swap nothing that DIR/current leads to is ever written to, and no lock is needed: what a reader has "
      "opened\n"
      "stays one version. A copy shares its blocks with the one before where the file system can (reflinks on XFS, "
      "Btrfs);\n"
      "elsewhere each version is written whole.\n"
      "SIGINT and SIGTERM end it cleanly; the next 'follow' goes on from what the mirror holds, once it has digested "
      "it.\n"
      "A mirror whose weights somebody has changed is loaded again; its other files are left as they are.\n"
      "\n"
      "Examples:\n"
      "  weightwire follow /shared/runs/grpo-7b mirror\n"
      "  weightwire follow /shared/runs/grpo-7b mirror --once\n"
      "  weightwire follow s3://bucket/runs/grpo-7b mirror --exec 'systemctl reload my-server'\n"
      "  weightwire follow s3://bucket/runs/grpo-7b mirror --vllm http://localhost:8000");
  return {&sub, [options, &tools] { return RunFollow(*options, tools); }};
}

}  // namespace weightwire
