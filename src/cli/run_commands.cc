#include "cli/run_commands.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "cli/durations.h"
#include "log/limits.h"

namespace weightwire {
namespace {

CLI::Option* AddRun(CLI::App& app, std::string& run, const std::string& text) {
  return app.add_option("RUN", run, text)->type_name("RUN")->required();
}

// Of those that write anchors; readers have to ask for it too.
void AddCarryCode(CLI::App& app, bool& carry_code) {
  app.add_flag("--carry-code", carry_code,
               "put files into anchors that can run as code when loaded (.py, pickles); readers still have to ask for "
               "them");
}

// "15m" and the like, into a duration or an optional one.
template <typename Duration>
CLI::Option* AddDuration(CLI::App& app, const std::string& name, Duration& duration, const std::string& text) {
  return app
      .add_option_function<std::string>(
          name,
          [&duration, name](const std::string& given) {
            const auto parsed = ParseDuration(given);
            if (!parsed.ok()) throw CLI::ValidationError(name, parsed.error().message());
            if constexpr (std::is_same_v<Duration, std::optional<std::chrono::milliseconds>>) {
              duration = parsed.value();
            } else {
              duration = std::chrono::ceil<Duration>(parsed.value());
            }
          },
          text)
      ->type_name("TIME");
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

Command AddPublish(CLI::App& app, PublishOptions& options, const World& world) {
  CLI::App& sub = *app.add_subcommand("publish", "add a version to a run, from a checkpoint");
  AddRun(sub, options.run, "the run; made if there is none");
  AddPath(sub, "CHECKPOINT", options.checkpoint, "a safetensors file or a Hugging Face directory")->required();
  AddNumber(sub, "--step", options.step,
            "the trainer's step, for people; one more than the newest version's unless given");
  AddPath(sub, "--state", options.state_directory,
          "where the base copy and what is not sent yet are kept; in $XDG_STATE_HOME/weightwire or "
          "~/.local/state/weightwire, by the run's id, unless given");
  AddNumber(sub, "--anchor-every", options.anchor_every,
            "write an anchor, a full checkpoint, after so many versions (100 unless given; 0: never by number)");
  AddNumber(sub, "--anchor-percent", options.anchor_percent,
            "and when the deltas since the last one add up to this share of the model (100 unless given; 0: never)");
  AddDuration(sub, "--patience", options.patience,
              "how long to try again while the store cannot be reached, once the run is open (10m unless given)");
  sub.add_flag("--single-writer", options.single_writer, "as for 'init', if the run has to be made");
  AddCarryCode(sub, options.carry_code);
  sub.add_flag("--drop-lost", options.drop_lost_versions,
               "drop versions that wait to be sent but whose place another publisher has taken");
  AddThreads(sub, options.threads);
  AddJson(sub, options.json);
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
  return {&sub, [&options, &world] { return RunPublish(options, world); }};
}

Command AddLog(CLI::App& app, LogOptions& options, const World& world) {
  CLI::App& sub = *app.add_subcommand("log", "show the versions of a run, what they cost, and who follows");
  AddRun(sub, options.run, "the run");
  AddNumber(sub, "--last", options.last, "so many of the newest versions (100; with --json and without --watch, all)");
  sub.add_flag("--watch", options.watch, "go on with each version that comes, until interrupted");
  AddJson(sub, options.json);
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
  return {&sub, [&options, &world] { return RunLog(options, world); }};
}

Command AddCheckout(CLI::App& app, CheckoutOptions& options, const World& world) {
  CLI::App& sub = *app.add_subcommand("checkout", "get a version as a plain Hugging Face directory");
  sub.add_option("RUN", options.run, "the run, and a version of it after '@'; the newest unless given")
      ->type_name("RUN[@VERSION]")
      ->required();
  AddPath(sub, "DIR", options.directory, "the directory to make; must not exist")->required();
  sub.add_flag("--carry-code", options.carry_code,
               "bring files along that can run as code when loaded (.py, pickles); only from a bucket you trust");
  AddThreads(sub, options.threads);
  AddJson(sub, options.json);
  sub.footer(
      "Takes the cheapest way by bytes, checks everything, and shows nothing before it is complete. The directory is\n"
      "like any other: configuration and tokenizer are in it, and nothing of weightwire. To keep one up to date, use\n"
      "'follow'.\n"
      "\n"
      "Examples:\n"
      "  weightwire checkout /shared/runs/grpo-7b newest\n"
      "  weightwire checkout s3://bucket/runs/grpo-7b@120 version-120");
  return {&sub, [&options, &world] { return RunCheckout(options, world); }};
}

Command AddFollow(CLI::App& app, FollowOptions& options, const World& world) {
  CLI::App& sub = *app.add_subcommand("follow", "keep a directory at the newest version of a run");
  AddRun(sub, options.run, "the run; made, or waited for, if there is none");
  AddPath(sub, "DIR", options.directory, "the mirror: a Hugging Face directory; made if there is none")->required();
  sub.add_flag("--once", options.once, "bring it to the newest version, and end");
  AddNumber(sub, "--until", options.until, "go no further than this version, and end there")->type_name("VERSION");
  AddDuration(sub, "--timeout", options.timeout, "with --until: give up after so long, with an error");
  AddNumber(sub, "--stand-still", options.stand_still,
            "hold exactly this version, going back to it if need be, and stay there")
      ->type_name("VERSION");
  sub.add_option("--exec", options.exec,
                 "run this command after each update; the mirror stands still until it ends. If it fails, or we are "
                 "killed before, the next start runs it again. It finds "
                 "WEIGHTWIRE_VERSION, WEIGHTWIRE_STEP and WEIGHTWIRE_DIR in its environment")
      ->type_name("CMD");
  sub.add_option(
         "--vllm", options.vllm,
         "bring this vLLM server along, in a pause; for one in development mode without the plugin (docs/vllm.md)")
      ->type_name("URL");
  sub.add_flag(
      "--swap", options.swap,
      "keep whole copies, two at most, and a link DIR/current that is replaced at one stroke: for readers that "
      "take no lock");
  sub.add_flag("--every-version", options.every_version,
               "take each version on its own, instead of several in one update when behind");
  AddDuration(sub, "--poll", options.poll, "how often to ask for a newer version (2s unless given)");
  sub.add_flag("--adopt", options.adopt,
               "take over a directory that has files already: what it holds is found by its digest");
  sub.add_flag("--carry-code", options.carry_code,
               "bring files along that can run as code when loaded (.py, pickles); only from a bucket you trust");
  sub.add_flag_callback(
      "--no-check", [&options] { options.check = false; },
      "do not read and digest all of what the mirror holds at the start; only if nobody else can have changed it");
  sub.add_option("--name", options.name, "what 'leases' calls this follower; host and directory unless given")
      ->type_name("NAME");
  sub.add_flag_callback(
      "--no-lease", [&options] { options.keep_lease = false; },
      "write nothing to the bucket, so keep no lease; what is needed is then protected by gc's minimum age alone");
  AddThreads(sub, options.threads);
  sub.add_flag("--json", options.json, "print a line of JSON for each event, for programs");
  sub.footer(
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
      "A mirror whose weights somebody has changed is loaded anew; its other files are left as they are.\n"
      "\n"
      "Examples:\n"
      "  weightwire follow /shared/runs/grpo-7b mirror\n"
      "  weightwire follow /shared/runs/grpo-7b mirror --once\n"
      "  weightwire follow s3://bucket/runs/grpo-7b mirror --exec 'systemctl reload my-server'\n"
      "  weightwire follow s3://bucket/runs/grpo-7b mirror --vllm http://localhost:8000");
  return {&sub, [&options, &world] { return RunFollow(options, world); }};
}

Command AddAnchor(CLI::App& app, AnchorCommandOptions& options, const World& world) {
  CLI::App& sub = *app.add_subcommand("anchor", "write a full checkpoint of a version into the bucket");
  sub.add_option("RUN", options.run, "the run, and a version of it after '@'; the newest unless given")
      ->type_name("RUN[@VERSION]")
      ->required();
  AddPath(sub, "--from", options.from,
          "a directory that holds a version, such as a mirror; otherwise the version is fetched first");
  AddCarryCode(sub, options.carry_code);
  AddThreads(sub, options.threads);
  AddJson(sub, options.json);
  sub.footer(
      "Late followers begin at the nearest anchor, and gc can remove the deltas before it. Anybody who holds a "
      "version\n"
      "can write one: what is sent is digested on the way and must be the version's state.\n"
      "\n"
      "Examples:\n"
      "  weightwire anchor /shared/runs/grpo-7b --from mirror\n"
      "  weightwire anchor /shared/runs/grpo-7b@500");
  return {&sub, [&options, &world] { return RunAnchor(options, world); }};
}

Command AddGc(CLI::App& app, GcCommandOptions& options, const World& world) {
  CLI::App& sub = *app.add_subcommand("gc", "remove old deltas and anchors that nobody needs");
  AddRun(sub, options.run, "the run");
  AddNumber(sub, "--keep-anchors", options.gc.policy.anchors,
            "keep the newest so many anchors, and what leads from the oldest of them to the newest version (3 "
            "unless given, at least 2)");
  AddNumber(sub, "--keep-versions", options.gc.policy.versions, "keep so many of the newest versions reachable");
  AddDuration(sub, "--min-age", options.gc.policy.minimum_age, "keep what is younger (24h unless given)");
  AddDuration(sub, "--grace", options.gc.grace,
              "wait so long between marking what goes and removing it (15m unless given)");
  sub.add_flag("--dry-run", options.gc.dry_run, "only show what would go");
  AddJson(sub, options.json);
  sub.footer(
      "What a living lease needs stays. Records are never removed. A gc that is cut off is taken up by the next one.\n"
      "Times like 30s, 15m, 24h or 7d; all are compared by the store's own clock.\n"
      "\n"
      "Examples:\n"
      "  weightwire gc /shared/runs/grpo-7b --dry-run\n"
      "  weightwire gc /shared/runs/grpo-7b --keep-anchors 2 --min-age 6h");
  return {&sub, [&options, &world] { return RunGc(options, world); }};
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
  AddNumber(sub, "--from", options.from, "only from this version on")->type_name("VERSION");
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
  return {AddInit(app, options.init, world),     AddPublish(app, options.publish, world),
          AddLog(app, options.log, world),       AddCheckout(app, options.checkout, world),
          AddFollow(app, options.follow, world), AddAnchor(app, options.anchor, world),
          AddGc(app, options.gc, world),         AddVerify(app, options.verify, world),
          AddLeases(app, options.leases, world)};
}

}  // namespace weightwire
