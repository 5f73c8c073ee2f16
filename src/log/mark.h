// A mark: what a gc is about to remove, said before it does (spec/PROTOCOL.md, "Marks").
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "log/id.h"

namespace weightwire {

struct Mark {
  Id run;
  Id id;
  std::vector<std::string> keys;  // one that ends with "/" stands for everything below it

  // Whether the object `key` is named, itself or by a folder.
  [[nodiscard]] bool Names(std::string_view key) const;
  bool operator==(const Mark&) const = default;
};

[[nodiscard]] std::string ToJson(const Mark& mark);
// Refuses keys that nobody may remove: records, layouts, run.json, anything that is no part and no anchor.
Result<Mark> ParseMark(std::string_view json);

}  // namespace weightwire
