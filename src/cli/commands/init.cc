// weightwire init RUN: makes a run, after finding out whether the store keeps two writers apart.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>

#include "base/result.h"
#include "cli/command_tools.h"
#include "cli/commands/commands.h"
#include "cli/global_options.h"
#include "cli/json.h"
#include "cli/messages.h"
#include "cli/options.h"
#include "log/run.h"
#include "runner/init_run.h"

namespace weightwire {
namespace {

struct InitOptions {
  std::string run;
  // Go on where the store does not honour put-if-absent, and record that there is one writer.
  bool single_writer = false;
  const GlobalOptions* global = nullptr;
};

Status RunInit(const InitOptions& options, const CommandTools& tools) {
  WW_TRY(const auto store, tools.open_store(options.run, StoreRetries::kStore));
  bool made = false;
  WW_TRY(const Run run, InitRun(*store, options.single_writer, &made));
  if (!made && options.single_writer && !run.manifest().single_writer) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("there is a run at {} already, and it was made for several writers; nothing was changed",
                             options.run));
  }
  // An error of this check is ignored.
  bool is_public = false;
  if (tools.is_public) {
    const auto found = tools.is_public(options.run, kRunManifestKey);
    is_public = found.ok() && found.value();
  }
  if (is_public) {
    messages::Warning(
        fmt::format("anybody can read {} without credentials, and so every version of the model", options.run));
  }
  if (options.global->json) {
    JsonOutput json;
    json["run"] = options.run;
    json["run_id"] = ToHex(run.id());
    json["created"] = made;
    json["single_writer"] = run.manifest().single_writer;
    json["public"] = is_public;
    PrintJson(json);
    return Ok();
  }
  if (!made) {
    fmt::print("{}: there is a run already, {}\n", options.run, ToHex(run.id()));
    return Ok();
  }
  fmt::print("{}: made the run {}\n", options.run, ToHex(run.id()));
  if (run.manifest().single_writer) fmt::print("It is for a single writer: two at a time would destroy it.\n");
  return Ok();
}

}  // namespace

Command AddInit(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<InitOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("init", "make a run: one chain of versions in a bucket or a directory");
  AddRun(sub, options->run, "where: a URL or a path");
  AddSetting(sub, settings::kSingleWriter, options->single_writer);
  AddStoreOptions(sub, *tools.options);
  sub.footer(
      "Finds out first whether the store refuses to create an object twice, which is what keeps two publishers apart.\n"
      "Where there is a run already, its id is shown and nothing is changed. 'publish' makes the run by itself.\n"
      "\n"
      "Examples:\n"
      "  weightwire init /shared/runs/grpo-7b\n"
      "  weightwire init s3://bucket/runs/grpo-7b");
  return {&sub, [options, &tools] { return RunInit(*options, tools); }};
}

}  // namespace weightwire
