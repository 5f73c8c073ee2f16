// What a journal of a mirror leads from and to, as text that the journal carries.
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
