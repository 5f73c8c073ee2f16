#include "runner/init_run.h"

#include <fmt/format.h>

#include "base/random.h"
#include "base/surface.h"
#include "store/probe.h"

namespace weightwire {

Result<Run> InitRun(Store& store, bool single_writer, bool* made) {
  if (made != nullptr) *made = false;
  auto there = Run::Open(store);
  if (there.ok() || there.error().code() != ErrorCode::kNotFound) return there;
  SystemRandom random;
  WW_TRY(const bool refuses, HonoursPutIfAbsent(store, random));
  if (!refuses && !single_writer) {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("{} does not refuse to create an object twice, so two publishers could overwrite each "
                             "other's versions; if there will only ever be one, say so ({})",
                             store.Name(), FlagText("single-writer")));
  }
  auto run = Run::Create(store, single_writer, random);
  if (run.ok() && made != nullptr) *made = true;
  return run;
}

}  // namespace weightwire
