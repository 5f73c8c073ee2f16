#include "cli/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "base/result.h"
#include "cli/apply.h"
#include "cli/bench_codec.h"
#include "cli/bench_wire.h"
#include "cli/command_options.h"
#include "cli/diff.h"
#include "cli/digest.h"
#include "cli/inspect.h"
#include "cli/interrupt.h"
#include "cli/run_commands.h"

namespace weightwire {
namespace {

constexpr std::size_t kMaxRepetitions = 1'000'000;
constexpr std::uint64_t kMaxBenchMegabytes = 1'000'000;

constexpr const char* kDescription =
    "weightwire moves a model's weights from a trainer to inference servers, through nothing but a bucket, as lossless "
    "deltas: what changed between two states, in a small file that turns the one into the other bit for bit, and "
    "refuses to touch anything else.\n"
    "A checkpoint is a safetensors file or a Hugging Face directory. A run (RUN) is a chain of versions of one model, "
    "in a bucket or a directory: a URL or a path.";

constexpr const char* kFooter =
    "A run:\n"
    "  weightwire publish /shared/run out/checkpoint-10    add a version\n"
    "  weightwire follow /shared/run mirror                keep a directory at the newest version\n"
    "  weightwire log /shared/run                          what there is, and who follows\n"
    "\n"
    "Two checkpoints:\n"
    "  weightwire diff step-10 step-11 -o 11.delta         what changed, and a file that carries it\n"
    "  weightwire apply step-10 11.delta -o copy-of-11     the same weights somewhere else\n"
    "  weightwire digest copy-of-11                        equal for equal weights\n"
    "\n"
    "Each command has its own --help. WEIGHTWIRE_ISA chooses the instruction set (for example 'scalar').\n"
    "Exit status: 0; 2 wrong arguments; 3 not found; 4 refused by the system; 5 damaged bytes; 6 another base, layout\n"
    "or state; 7 not supported; 8 beyond a limit; 9 a write whose answer was lost; 10 refused by the store; 11 not "
    "now, try\n"
    "again.";

Command AddDiff(CLI::App& app, DiffOptions& options) {
  CLI::App& sub = *app.add_subcommand("diff", "show what changed between two checkpoints and what it costs to send");
  AddPath(sub, "OLD", options.old_path, "the checkpoint before")->required();
  AddPath(sub, "NEW", options.new_path, "the checkpoint after; tensors may have been added, removed or reshaped")
      ->required();
  AddPath(sub, "-o,--output", options.delta_path, "write the delta to this file");
  sub.add_flag("--force", options.replace_delta, "replace the file given with -o if there is one");
  sub.add_option("--mode", options.mode,
                 "how to code what changed: auto (the smallest for each tensor), conditioned (positions by the base's "
                 "exponents), gaps or fast (larger, applies fastest), dense, whole")
      ->type_name("MODE");
  sub.add_flag("--all", options.all_tensors, "list the unchanged tensors too");
  sub.add_flag_callback(
      "--no-compare", [&options] { options.compare = false; },
      "do not work out what other formats (TRL, slime) would take; that can be slow");
  AddThreads(sub, options.threads);
  AddJson(sub, options.json);
  sub.footer(
      "'bytes' of a tensor are those of its changes; the file also holds an index, tables and hashes. 'per changed' "
      "are\n"
      "bytes for each changed element (packed types: each changed byte).\n"
      "\n"
      "Examples:\n"
      "  weightwire diff old.safetensors new.safetensors\n"
      "  weightwire diff step-10 step-11 -o 11.delta --mode fast\n"
      "  weightwire diff step-10 step-11 --json --no-compare");
  return {&sub, [&options] { return RunDiff(options); }};
}

Command AddApply(CLI::App& app, ApplyOptions& options) {
  CLI::App& sub = *app.add_subcommand("apply", "apply deltas to a checkpoint, to a copy or in place");
  AddPath(sub, "BASE", options.base, "the checkpoint the first delta was made for")->required();
  sub.add_option_function<std::vector<std::string>>(
         "DELTA",
         [&options](const std::vector<std::string>& given) { options.deltas.assign(given.begin(), given.end()); },
         "deltas, in the order in which they follow each other")
      ->type_name("PATH")
      ->expected(0, -1);
  AddPath(sub, "-o,--output", options.output,
          "write the result here, in the form of BASE, with what lies beside its weights; must not exist");
  sub.add_flag("--in-place", options.in_place,
               "change BASE itself; a crash at any point is mended by running 'weightwire apply --in-place BASE'");
  AddThreads(sub, options.threads);
  AddJson(sub, options.json);
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
  return {&sub, [&options] { return RunApply(options); }};
}

Command AddInspect(CLI::App& app, InspectOptions& options) {
  CLI::App& sub = *app.add_subcommand("inspect", "show what is in a delta file");
  AddPath(sub, "DELTA", options.delta, "the file")->required();
  CLI::Option* base =
      AddPath(sub, "--base", options.base, "a checkpoint it applies or leads to, for the tensors' names");
  AddPath(sub, "--layout", options.layout, "a layout's canonical JSON, for the same")->excludes(base);
  AddJson(sub, options.json);
  sub.footer(
      "Tensors are named by their index in the layout after the change (#17) unless a base or a layout is given.\n"
      "\n"
      "Examples:\n"
      "  weightwire inspect 11.delta\n"
      "  weightwire inspect 11.delta --base step-10");
  return {&sub, [&options] { return RunInspect(options); }};
}

Command AddDigest(CLI::App& app, DigestOptions& options) {
  CLI::App& sub = *app.add_subcommand("digest", "show the digest that names a checkpoint's state");
  AddPath(sub, "CHECKPOINT", options.checkpoint, "the checkpoint")->required();
  sub.add_flag("--tensors", options.tensors, "the digest of each tensor too");
  AddThreads(sub, options.threads);
  AddJson(sub, options.json);
  sub.footer(
      "Two checkpoints have the same state digest exactly when names, types, shapes and bits of their tensors are the\n"
      "same, however they are spread over files.\n"
      "\n"
      "Examples:\n"
      "  weightwire digest step-11\n"
      "  weightwire digest model.safetensors --tensors");
  return {&sub, [&options] { return RunDigest(options); }};
}

CLI::App& AddBench(CLI::App& app) {
  CLI::App& sub = *app.add_subcommand("bench", "measure weightwire on this machine");
  sub.require_subcommand(0, 1);
  sub.footer(
      "Examples:\n"
      "  weightwire bench codec old.safetensors new.safetensors --threads 1\n"
      "  weightwire bench wire");
  return sub;
}

Command AddBenchCodec(CLI::App& bench, BenchCodecOptions& options) {
  CLI::App& sub = *bench.add_subcommand("codec", "measure encoding and applying against the speed of memory");
  AddPath(sub, "OLD", options.old_path, "the checkpoint before")->required();
  AddPath(sub, "NEW", options.new_path, "the checkpoint after, with the same tensors")->required();
  AddThreads(sub, options.threads);
  AddNumber(sub, "--repeat", options.repeat, "how often to measure; the best counts")
      ->check(
          CLI::Range(kLeastRepetitions, kMaxRepetitions).description(fmt::format("(at least {})", kLeastRepetitions)));
  sub.add_flag(
      "--ordinary-pages", options.ordinary_pages,
      "NEW lies in ordinary pages, as most trainers have their weights, and OLD, the base copy, in large ones");
  AddJson(sub, options.json);
  sub.footer(
      "Both states and a copy are held in memory. Against the floors (reading both states, or one, once, with the "
      "widest\n"
      "loads) stand encoding, applying and digesting, and XOR of whole tensors with zstd level 1, which is what most\n"
      "other systems do. Every result is compared with NEW.\n"
      "\n"
      "Example:\n"
      "  weightwire bench codec old.safetensors new.safetensors --threads 1 --json");
  return {&sub, [&options] { return RunBenchCodec(options); }};
}

Command AddBenchWire(CLI::App& bench, BenchWireOptions& options, const World& world) {
  CLI::App& sub = *bench.add_subcommand("wire", "measure what a version costs a trainer, a bucket and a mirror");
  AddPath(sub, "--dir", options.directory,
          "where bucket and mirror lie while it runs, and so the disk that is measured; the directory for temporary "
          "files unless given");
  sub.add_option("--store", options.store,
                 "an s3:// URL: measures transfers through it too, against curl; the bucket is made if need be")
      ->type_name("URL");
  AddNumber(sub, "--megabytes", options.model_megabytes, "the size of the model (1200 unless given)")
      ->check(CLI::Range(std::uint64_t{1}, kMaxBenchMegabytes).description(""));
  AddNumber(sub, "--part-mebibytes", options.part_mebibytes, "the size of the object to transfer (256 unless given)")
      ->check(CLI::Range(std::uint64_t{1}, kMaxBenchMegabytes).description(""));
  AddNumber(sub, "--late", options.late_versions, "how many versions a late joiner is behind (100 unless given)")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{kMaxRepetitions}).description(""));
  AddNumber(sub, "--repeat", options.repeat, "how often to measure; the best counts (7 unless given)")
      ->check(
          CLI::Range(kLeastWireRounds, kMaxRepetitions).description(fmt::format("(at least {})", kLeastWireRounds)));
  AddThreads(sub, options.threads);
  AddJson(sub, options.json);
  sub.footer(
      "A made-up model is published and followed on a directory bucket, one in a hundred weights changed by one ulp "
      "for\n"
      "each version. Every figure stands beside its floor, measured in the same round, and beside what it must reach.\n"
      "Takes about five times the model's size of memory, and four times as much of the disk.\n"
      "\n"
      "Examples:\n"
      "  weightwire bench wire\n"
      "  weightwire bench wire --dir /data --json\n"
      "  AWS_ENDPOINT_URL=http://127.0.0.1:7480 weightwire bench wire --store s3://bench/run");
  return {&sub, [&options, &world] { return RunBenchWire(options, *world.files); }};
}

// "weightwire: …" on one line, whatever a file's name holds.
int Fail(const std::string& sentence, ErrorCode code) {
  std::string line = sentence;
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  fmt::print(stderr, "weightwire: {}\n", line);
  return static_cast<int>(code);
}

// The innermost command that was named, as a user would type it.
std::string NamedCommand(const CLI::App& app) {
  std::string name = "weightwire";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  return name;
}

int Finish(const Status& status) {
  if (!status.ok()) return Fail(status.error().message(), status.error().code());
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return Fail("cannot write to standard output", ErrorCode::kIo);
  }
  return 0;
}

int ParseAndRun(int argc, const char* const* argv, const World& world) {
  CLI::App app(kDescription, "weightwire");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("weightwire ") + kVersion, "print the version and exit");
  app.set_help_flag("-h,--help", "print this and exit");
  app.get_formatter()->column_width(28);
  app.require_subcommand(0, 1);
  DiffOptions diff;
  ApplyOptions apply;
  InspectOptions inspect;
  DigestOptions digest;
  BenchCodecOptions bench_codec;
  BenchWireOptions bench_wire;
  RunCommandOptions run_commands;
  std::vector<Command> commands = {AddDiff(app, diff), AddApply(app, apply), AddInspect(app, inspect),
                                   AddDigest(app, digest)};
  for (Command& command : AddRunCommands(app, run_commands, world)) commands.push_back(std::move(command));
  CLI::App& bench = AddBench(app);
  commands.push_back(AddBenchCodec(bench, bench_codec));
  commands.push_back(AddBenchWire(bench, bench_wire, world));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    app.exit(asked);
    return Finish(Ok());
  } catch (const CLI::ParseError& error) {
    return Fail(fmt::format("{}; see '{} --help'", error.what(), NamedCommand(app)), ErrorCode::kInvalidArgument);
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return Finish(command.run());
  }
  fmt::print("{}", app.help());  // of 'bench', if that was named
  return Finish(Ok());
}

}  // namespace

int RunCommand(int argc, const char* const* argv, const World& world) {
  int status = 0;
  try {
    status = ParseAndRun(argc, argv, world);
  } catch (const std::bad_alloc&) {
    status = Fail("there is not enough memory", ErrorCode::kIo);
  } catch (const std::system_error& error) {  // of fmt::print, or of a thread that cannot be started
    const bool no_thread = error.code() == std::errc::resource_unavailable_try_again;
    status = Fail(no_thread ? "cannot start a thread: the limit of this user or container is reached"
                            : "cannot write to standard output",
                  ErrorCode::kIo);
  }
  InterruptGuard::RaiseCaught();
  return status;
}

}  // namespace weightwire
