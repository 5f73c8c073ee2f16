// The metrics of everything that follows a run: the engine plug-ins and `weightwire follow --metrics`.
//
// One table gives each metric its name, type, labels and help. MetricValues (runner/metric_values.h) prints them for
// the command. The binding exports the table as _core.metrics(), from which the plug-ins register theirs with
// prometheus_client.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace weightwire {

enum class MetricType : std::uint8_t { kGauge, kCounter, kHistogram };

struct Metric {
  std::string_view name;
  MetricType type;
  std::string_view help;                 // one sentence, with a full stop
  std::string_view labels = {};          // their names, separated by spaces
  std::span<const double> buckets = {};  // of a histogram: upper bounds, ascending, without infinity
};

namespace metrics {

// From the write of a few parameters in place to the replacement of a large model.
inline constexpr double kCommitBuckets[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60};

inline constexpr Metric kVersion{
    .name = "weightwire_version",
    .type = MetricType::kGauge,
    .help = "The version that the follower holds. Absent while it holds none.",
};
inline constexpr Metric kLagVersions{
    .name = "weightwire_lag_versions",
    .type = MetricType::kGauge,
    .help = "How many versions of the run are newer than the one held.",
};
inline constexpr Metric kLagSeconds{
    .name = "weightwire_lag_seconds",
    .type = MetricType::kGauge,
    .help = "How long the follower has known of a version that is newer than the one held; 0 if it knows of none.",
};
inline constexpr Metric kUpdates{
    .name = "weightwire_updates_total",
    .type = MetricType::kCounter,
    .help = "Updates that were made. One update may skip versions.",
};
inline constexpr Metric kUpdateFailures{
    .name = "weightwire_update_failures_total",
    .type = MetricType::kCounter,
    .help = "Failed attempts to find, fetch or make an update, by the kind of error. The version held stays.",
    .labels = "code",
};
inline constexpr Metric kCommitDuration{
    .name = "weightwire_commit_duration_seconds",
    .type = MetricType::kHistogram,
    .help = "How long an update kept the weights from being used: it paused the engine, or locked the mirror.",
    .buckets = kCommitBuckets,
};
inline constexpr Metric kReceivedBytes{
    .name = "weightwire_received_bytes_total",
    .type = MetricType::kCounter,
    .help = "Bytes received from the bucket.",
};
inline constexpr Metric kInfo{
    .name = "weightwire_info",
    .type = MetricType::kGauge,
    .help = "Always 1. The labels name the run and the version of the package.",
    .labels = "run_id package_version",
};

}  // namespace metrics

// All metrics, in the order of the documentation.
[[nodiscard]] std::span<const Metric* const> AllMetrics();

// "gauge", "counter" or "histogram", as Prometheus says it.
[[nodiscard]] std::string_view NameOf(MetricType type);

// The values of the label "code": the kinds of errors (runner/error_kinds.h), and "unexpected" for other exceptions.
// Each begins at 0, because a rate cannot be taken of a series that begins with its first failure.
[[nodiscard]] std::span<const std::string_view> FailureCodes();

}  // namespace weightwire
