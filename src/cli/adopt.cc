#include "cli/adopt.h"

#include "cli/progress.h"
#include "log/find_version.h"

namespace weightwire {

Status AdoptByDigest(const Run& run, Mirror& mirror) {
  WW_TRY(const auto newest, run.FindNewest(std::nullopt));
  if (!newest.has_value()) return Ok();
  WW_TRY(const Layout layout, run.ReadLayout(newest->record.layout));
  const Progress progress("digesting what lies there");
  const auto state = mirror.DigestAs(layout);
  // No checkpoint, or one of another layout: it will be loaded whole.
  if (!state.ok()) return state.error().code() == ErrorCode::kIo ? Status(state.error()) : Ok();
  WW_TRY(const auto version, FindVersionByState(run, state.value()));
  if (!version.has_value()) return Ok();
  return mirror.Adopt(HeldOf(*version), layout);
}

}  // namespace weightwire
