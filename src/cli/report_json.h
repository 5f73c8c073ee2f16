// The answers of runner/run_report.h as JSON.
#pragma once

#include <optional>
#include <string_view>

#include "cli/json.h"
#include "log/run.h"
#include "runner/run_report.h"

namespace weightwire {

// Appends the fields of a VersionInfo or a FollowerInfo.
template <typename Info>
void AddFields(JsonOutput& json, const Info& info) {
  const auto set = [&json]<typename T>(std::string_view name, const T& value) {
    if constexpr (requires { value.has_value(); }) {
      json[name] = OrNull(value);
    } else {
      json[name] = value;
    }
  };
  VisitFields(info, set);
}

template <typename Info>
[[nodiscard]] JsonOutput ToJsonOutput(const Info& info) {
  JsonOutput json;
  AddFields(json, info);
  return json;
}

// {"run": its URL or path, "run_id": its id}: how the answer of every command about a run begins.
[[nodiscard]] inline JsonOutput JsonOf(const Run& run) {
  return {{"run", run.store().Name()}, {"run_id", ToHex(run.id())}};
}

}  // namespace weightwire
