// Making a run where there is none.
#pragma once

#include "base/result.h"
#include "log/run.h"
#include "store/store.h"

namespace weightwire {

// Opens the run, or makes it after finding out whether the store keeps two writers apart: kUnsupported where it does
// not, unless `single_writer` says that there will only ever be one, which the run records. `made`, if any, says
// whether it was made just now.
Result<Run> InitRun(Store& store, bool single_writer, bool* made);

}  // namespace weightwire
