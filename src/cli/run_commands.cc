#include "cli/run_commands.h"

#include <chrono>
#include <cstdint>
#include <string>

#include "cli/durations.h"
#include "log/limits.h"

namespace weightwire {
namespace {

CLI::Option* AddRun(CLI::App& app, std::string& run, const std::string& text) {
  return app.add_option("RUN", run, text)->type_name("RUN")->required();
}

Command AddInit(CLI::App& app, InitOptions& options, const World& world) {
  CLI::App& sub = *app.add_subcommand("init", "make a run: one chain of versions in a bucket or a directory");
  AddRun(sub, options.run, "where: a URL or a path");
  sub.add_flag("--single-writer", options.single_writer,
               "go on where the store cannot keep two publishers apart, and record that there will only ever be one");
  AddJson(sub, options.json);
  sub.footer(
      "Finds out first whether the store refuses to create an object twice, which is what keeps two publishers apart.\n"
      "Where there is a run already, its id is shown and nothing is changed. 'publish' makes the run by itself.\n"
      "\n"
      "Examples:\n"
      "  weightwire init /shared/runs/grpo-7b\n"
      "  weightwire init s3://bucket/runs/grpo-7b");
  return {&sub, [&options, &world] { return RunInit(options, world); }};
}

Command AddLog(CLI::App& app, LogOptions& options, const World& world) {
  CLI::App& sub = *app.add_subcommand("log", "show the versions of a run, what they cost, and who follows");
  AddRun(sub, options.run, "the run");
  sub.add_option("--last", options.last, "only so many of the newest versions")->type_name("N");
  sub.add_flag("--watch", options.watch, "go on with each version that comes, until interrupted");
  AddJson(sub, options.json);
  sub.footer(
      "'bytes' of a version are those of its delta; of a version that has none (the first one, or a rebase) they are\n"
      "those of its anchor. 'anchor' says that the bucket holds a complete checkpoint of that version now.\n"
      "With --json: an object with 'versions', oldest first, each with 'version', 'step', 'bytes', 'anchor' and more,\n"
      "and 'followers'. With --json --watch: a line of JSON for each version.\n"
      "\n"
      "Examples:\n"
      "  weightwire log /shared/runs/grpo-7b --last 20\n"
      "  weightwire log /shared/runs/grpo-7b --watch");
  return {&sub, [&options, &world] { return RunLog(options, world); }};
}

Command AddLeases(CLI::App& app, LeasesOptions& options, const World& world) {
  CLI::App& sub = *app.add_subcommand("leases", "show who follows a run, and what they still need");
  AddRun(sub, options.run, "the run");
  AddJson(sub, options.json);
  sub.footer(
      "A follower keeps a lease in the bucket so that gc leaves what it needs. One that is not renewed expires, and\n"
      "counts no more. Followers that may only read keep none, and are not shown.\n"
      "\n"
      "Example:\n"
      "  weightwire leases /shared/runs/grpo-7b");
  return {&sub, [&options, &world] { return RunLeases(options, world); }};
}

Command AddVerify(CLI::App& app, VerifyOptions& options, const World& world) {
  CLI::App& sub = *app.add_subcommand("verify", "read a whole run and recompute everything it promises");
  AddRun(sub, options.run, "the run");
  sub.add_option("--from", options.from, "only from this version on")->type_name("VERSION");
  AddThreads(sub, options.threads);
  AddJson(sub, options.json);
  sub.footer(
      "Every record is compared with the one before, every object is hashed, every delta is replayed; at each anchor\n"
      "and at the newest version the digest is computed in full. Deltas that gc has removed are no damage as long as\n"
      "an anchor leads to the newest version. The model is held in memory, twice at an anchor.\n"
      "Exit status: 0, or 5 if anything is damaged.\n"
      "\n"
      "Example:\n"
      "  weightwire verify /shared/runs/grpo-7b");
  return {&sub, [&options, &world] { return RunVerify(options, world); }};
}

}  // namespace

std::vector<Command> AddRunCommands(CLI::App& app, RunCommandOptions& options, const World& world) {
  return {AddInit(app, options.init, world), AddLog(app, options.log, world), AddLeases(app, options.leases, world),
          AddVerify(app, options.verify, world)};
}

}  // namespace weightwire
