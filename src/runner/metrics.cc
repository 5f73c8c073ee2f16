#include "runner/metrics.h"

#include <array>
#include <vector>

#include "runner/error_kinds.h"

namespace weightwire {
namespace {

constexpr std::array kTable = {
    &metrics::kVersion,        &metrics::kLagVersions,    &metrics::kLagSeconds,    &metrics::kUpdates,
    &metrics::kUpdateFailures, &metrics::kCommitDuration, &metrics::kReceivedBytes, &metrics::kInfo,
};

}  // namespace

std::span<const Metric* const> AllMetrics() { return kTable; }

std::string_view NameOf(MetricType type) {
  switch (type) {
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kCounter:
      return "counter";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "";
}

std::span<const std::string_view> FailureCodes() {
  static const std::vector<std::string_view> kCodes = [] {
    std::vector<std::string_view> names;
    for (const ErrorKind& kind : AllErrorKinds()) names.push_back(kind.name);
    names.emplace_back("unexpected");
    return names;
  }();
  return kCodes;
}

}  // namespace weightwire
