#include "cli/init.h"

#include <fmt/format.h>

#include <cstdio>

#include "cli/json_output.h"
#include "log/run.h"
#include "runner/init_run.h"

namespace weightwire {

Status RunInit(const InitOptions& options, const World& world) {
  WW_TRY(const auto store, world.open_store(options.run));
  bool made = false;
  WW_TRY(const Run run, InitRun(*store, options.single_writer, &made));
  if (!made && options.single_writer && !run.manifest().single_writer) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("there is a run at {} already, and it was made for several writers; nothing was changed",
                             options.run));
  }
  // What cannot be found out is no reason to fail.
  bool is_public = false;
  if (world.is_public) {
    const auto found = world.is_public(options.run, kRunManifestKey);
    is_public = found.ok() && found.value();
  }
  if (is_public) {
    fmt::print(stderr, "weightwire: anybody can read {} without credentials, and so every version of the model\n",
               options.run);
  }
  if (options.json) {
    JsonOutput json;
    json["run"] = ToHex(run.id());
    json["location"] = options.run;
    json["made"] = made;
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

}  // namespace weightwire
