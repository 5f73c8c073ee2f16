#include "base/real_file_system.h"
#include "bench/benchmarks.h"
#include "cli/command.h"

int main(int argc, char** argv) {
  weightwire::KeepFreedMemory();
  weightwire::RealFileSystem files;
  weightwire::GlobalOptions options;
  weightwire::Program program;
  program.name = "weightwire-bench";
  program.description = "measure weightwire on this machine";
  program.footer =
      "Examples:\n"
      "  weightwire-bench codec old.safetensors new.safetensors --threads 1\n"
      "  weightwire-bench catchup\n"
      "  weightwire-bench wire";
  program.add_commands = [&files, &options](CLI::App& app) -> std::vector<weightwire::Command> {
    return {weightwire::AddCodecBench(app, options), weightwire::AddCatchUpBench(app, options),
            weightwire::AddWireBench(app, files, options)};
  };
  return weightwire::RunProgram(program, options, argc, argv);
}
