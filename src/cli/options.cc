#include "cli/options.h"

namespace weightwire {

CLI::Option* AddRun(CLI::App& app, std::string& run, const std::string& text) {
  return app.add_option("RUN", run, text)->type_name("RUN")->required();
}

CLI::Option* AddRunAtVersion(CLI::App& app, std::string& run) {
  return app.add_option("RUN", run, "the run, and a version of it after '@'; the newest unless given")
      ->type_name("RUN[@VERSION]")
      ->required();
}

void AddThreads(CLI::App& app, std::size_t& threads) {
  AddNumber(app, "--threads", threads, "how many threads; as many as the machine has unless given")
      ->check(CLI::Range(std::size_t{1}, kMaxThreads).description(""));
}

void AddJson(CLI::App& app, bool& json) { app.add_flag("--json", json, "print JSON, for programs"); }

void AddIncludeCodeInAnchors(CLI::App& app, bool& include_code) {
  app.add_flag("--include-code", include_code,
               "put files into anchors that can run as code when loaded (.py, pickles); readers still have to ask for "
               "them");
}

void AddIncludeCodeInDirectory(CLI::App& app, bool& include_code) {
  app.add_flag("--include-code", include_code,
               "bring files along that can run as code when loaded (.py, pickles); only from a bucket you trust");
}

}  // namespace weightwire
