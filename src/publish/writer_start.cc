#include "publish/writer_start.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/failure_policy.h"
#include "publish/policy.h"
#include "store/probe.h"

namespace weightwire {

Status CheckPutIfAbsent(const Run& run, Random& random) {
  if (run.manifest().single_writer) return Ok();
  Store& store = run.store();
  WW_TRY(const bool honours, HonoursPutIfAbsent(store, random));
  if (honours) return Ok();
  return Error(ErrorCode::kUnsupported,
               fmt::format("{} does not refuse to create an object twice, so two publishers could destroy each other's "
                           "versions; make the run with --single-writer if there is only one",
                           store.Name()));
}

// Not the one that the newest record names alone: an anchor by policy is complete only after its version's record, and
// without it every start would find one due.
Result<std::optional<KnownAnchor>> FindNewestAnchor(const Run& run, const Record& newest) {
  WW_TRY(std::vector<AnchorName> names, run.ListAnchors(newest.chain));
  std::erase_if(names, [&](const AnchorName& name) { return name.version > newest.version; });
  for (int i = 0; i < kMaxAnchorsExamined && !names.empty(); ++i, names.pop_back()) {
    auto anchor = run.ReadAnchor(names.back());
    if (!anchor.ok()) {
      if (IsRetryable(anchor.error())) return anchor.error();
      continue;  // gone or damaged
    }
    WW_TRY(const auto record, run.ReadRecord(names.back().version));
    const AnchorManifest& manifest = anchor.value().manifest;
    const bool fits = record.has_value() && record->record.state == manifest.state &&
                      record->record.layout == manifest.layout && !Contradicts(record->record, anchor.value()) &&
                      !Contradicts(newest, anchor.value());
    if (fits) return std::optional(std::move(anchor).value());
  }
  return std::optional<KnownAnchor>();
}

}  // namespace weightwire
