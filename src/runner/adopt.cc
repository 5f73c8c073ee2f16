#include "runner/adopt.h"

#include "log/find_version.h"

namespace weightwire {
namespace {

// may_differ(error): whether the target just has other bits, if its digest cannot be told.
template <typename AnyTarget, typename MayDiffer>
Status Adopt(const Run& run, AnyTarget& target, const MayDiffer& may_differ) {
  WW_TRY(const auto newest, run.FindNewest(std::nullopt));
  if (!newest.has_value()) return Ok();
  WW_TRY(const Layout layout, run.ReadLayout(newest->record.layout));
  const auto state = target.DigestAs(layout);
  if (!state.ok()) return may_differ(state.error()) ? Ok() : Status(state.error());
  WW_TRY(const auto version, FindVersionByState(run, state.value()));
  if (!version.has_value()) return Ok();
  return target.Adopt(HeldOf(*version), layout);
}

}  // namespace

Status AdoptByDigest(const Run& run, Mirror& mirror) {
  return Adopt(run, mirror, [](const Error& error) { return error.code() != ErrorCode::kIo; });
}

Status AdoptByDigest(const Run& run, ArrayTarget& arrays) {
  return Adopt(run, arrays, [](const Error&) { return false; });
}

}  // namespace weightwire
