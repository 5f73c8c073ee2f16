// The versions before and after the change in a mirror's journal, as the text of the journal's note.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "follow/targets/target.h"

namespace weightwire {

struct ChangeNote {
  Held before;
  Held after;
};

[[nodiscard]] std::string ToJson(const ChangeNote& note);
Result<ChangeNote> ParseChangeNote(std::string_view json);

}  // namespace weightwire
