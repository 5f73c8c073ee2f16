// What the jobs of a pipeline do: all effects of a publisher on the disk and the store, in the order that the protocol
// demands (spec/PROTOCOL.md, "Duties of a writer", 4 to 6).
//
// Thread safety: jobs of different lanes may be executed at once.
#pragma once

#include "base/clock.h"
#include "log/planted_bugs.h"
#include "log/run.h"
#include "publish/pipeline.h"
#include "publish/spool.h"

namespace weightwire {

struct JobTools {
  Run run;
  Spool* spool = nullptr;  // none: what is decided is kept in memory
  PlantedBugs bugs;
};

// Puts a part under its key. `again`: a former attempt may have got somewhere.
Status PutPart(Store& store, const PartRef& part, std::span<const std::uint8_t> bytes, bool again);

// Fills in the outcome.
void Execute(Job& job, const JobTools& tools);

}  // namespace weightwire
