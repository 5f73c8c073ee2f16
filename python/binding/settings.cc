// The tables of settings, metrics and kinds of errors, and values as people write them.
#include "runner/settings.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/quantities.h"
#include "binding.h"
#include "errors.h"
#include "runner/error_kinds.h"
#include "runner/metrics.h"

namespace nb = nanobind;

namespace weightwire::python {
namespace {

nb::dict ToDict(const Setting& setting) {
  const auto text = [](std::string_view view) { return std::string(view); };
  nb::dict dict;
  dict["name"] = text(setting.name);
  dict["type"] = text(NameOf(setting.type));
  dict["default"] = text(setting.default_text);
  dict["help"] = text(setting.help);
  dict["commands"] = WordsOf(setting.commands);
  dict["python"] = WordsOf(setting.python);
  dict["engine"] = setting.engine;
  dict["environment"] = setting.environment ? nb::object(nb::str(EnvironmentName(setting).c_str())) : nb::none();
  dict["option"] = OptionName(setting);
  dict["python_name"] = PythonName(setting);
  dict["note"] = text(setting.note);
  dict["choices"] = WordsOf(setting.choices);
  dict["positive"] = setting.positive;
  return dict;
}

nb::list Settings() {
  nb::list list;
  for (const Setting& setting : AllSettings()) list.append(ToDict(setting));
  return list;
}

nb::list ErrorKinds() {
  nb::list list;
  for (const ErrorKind& kind : AllErrorKinds()) {
    nb::dict dict;
    dict["name"] = std::string(kind.name);
    dict["exit_status"] = kind.exit_status;
    dict["exception"] = std::string(kind.exception);
    dict["retryable"] = kind.retryable;
    dict["meaning"] = std::string(kind.meaning);
    list.append(dict);
  }
  return list;
}

nb::list Metrics() {
  nb::list list;
  for (const Metric* metric : AllMetrics()) {
    nb::dict dict;
    dict["name"] = std::string(metric->name);
    dict["type"] = std::string(NameOf(metric->type));
    dict["help"] = std::string(metric->help);
    dict["labels"] = WordsOf(metric->labels);
    dict["buckets"] = std::vector<double>(metric->buckets.begin(), metric->buckets.end());
    list.append(dict);
  }
  return list;
}

std::vector<std::string> FailureCodeList() {
  std::vector<std::string> codes;
  for (const std::string_view code : FailureCodes()) codes.emplace_back(code);
  return codes;
}

nb::dict OtherVariablesDict() {
  nb::dict dict;
  for (const OtherVariable& other : OtherVariables()) dict[std::string(other.name).c_str()] = std::string(other.help);
  return dict;
}

// The warnings for a mapping of variables, such as os.environ.
std::vector<std::string> UnknownEnvironment(const nb::object& environment) {
  std::vector<std::string> names;
  for (const nb::handle name : environment) names.push_back(nb::cast<std::string>(name));
  std::vector<std::string> warnings;
  for (const std::string& name : UnknownVariables(names)) warnings.push_back(UnknownVariableWarning(name));
  return warnings;
}

double DurationSeconds(const std::string& text) {
  return std::chrono::duration<double>(ValueOrRaise(ParseDuration(text))).count();
}

}  // namespace

void BindSettings(nb::module_& module) {
  module.def("settings", &Settings);
  module.def("error_kinds", &ErrorKinds);
  module.def("metrics", &Metrics);
  module.def("failure_codes", &FailureCodeList);
  module.def("other_variables", &OtherVariablesDict);
  module.def("unknown_environment", &UnknownEnvironment);
  module.def("parse_duration", &DurationSeconds);
  module.def("parse_size", [](const std::string& text) { return ValueOrRaise(ParseSize(text)); });
  module.def("parse_flag", [](const std::string& text) { return ValueOrRaise(ParseFlag(text)); });
}

}  // namespace weightwire::python
