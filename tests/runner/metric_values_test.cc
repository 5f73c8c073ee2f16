#include "runner/metric_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>
#include <string>

#include "runner/error_kinds.h"
#include "runner/settings.h"

namespace weightwire {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, HaveNamesThatPrometheusAccepts) {
  std::set<std::string_view> names;
  for (const Metric* metric : AllMetrics()) {
    EXPECT_TRUE(names.insert(metric->name).second) << metric->name;
    EXPECT_TRUE(metric->name.starts_with("weightwire_")) << metric->name;
    EXPECT_TRUE(std::all_of(metric->name.begin(), metric->name.end(), [](unsigned char c) {
      return std::islower(c) != 0 || c == '_';
    })) << metric->name;
    EXPECT_EQ(metric->name.ends_with("_total"), metric->type == MetricType::kCounter) << metric->name;
    EXPECT_EQ(metric->buckets.empty(), metric->type != MetricType::kHistogram) << metric->name;
    EXPECT_TRUE(std::is_sorted(metric->buckets.begin(), metric->buckets.end())) << metric->name;
    EXPECT_TRUE(metric->help.ends_with('.')) << metric->name;
  }
}

TEST(Metrics, TheHistogramHasNoLabels) {
  for (const Metric* metric : AllMetrics()) {
    EXPECT_TRUE(metric->type != MetricType::kHistogram || metric->labels.empty()) << metric->name;
  }
}

TEST(Metrics, FailureCodesAreTheKindsOfErrors) {
  const auto codes = FailureCodes();
  ASSERT_EQ(codes.size(), AllErrorKinds().size() + 1);
  for (std::size_t i = 0; i < AllErrorKinds().size(); ++i) EXPECT_EQ(codes[i], AllErrorKinds()[i].name);
  EXPECT_EQ(codes.back(), "unexpected");
}

TEST(MetricValues, CountersStartAtZeroAndGaugesAreAbsent) {
  const std::string text = MetricValues().Text();
  EXPECT_THAT(text, HasSubstr("\nweightwire_updates_total 0\n"));
  EXPECT_THAT(text, HasSubstr("\nweightwire_update_failures_total{code=\"unavailable\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nweightwire_commit_duration_seconds_count 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("weightwire_version")));
}

TEST(MetricValues, GaugeHoldsTheLastValueUntilItIsRemoved) {
  MetricValues values;
  values.Set(metrics::kVersion, 3);
  values.Set(metrics::kVersion, 12);
  EXPECT_THAT(values.Text(), HasSubstr("# TYPE weightwire_version gauge\nweightwire_version 12\n"));
  values.Remove(metrics::kVersion);
  EXPECT_THAT(values.Text(), Not(HasSubstr("weightwire_version")));
}

TEST(MetricValues, CounterAddsUpByLabel) {
  MetricValues values;
  values.Add(metrics::kUpdateFailures, 1, {"corrupt"});
  values.Add(metrics::kUpdateFailures, 2, {"corrupt"});
  values.Add(metrics::kReceivedBytes, 1.5e12);
  const std::string text = values.Text();
  EXPECT_THAT(text, HasSubstr("# TYPE weightwire_update_failures_total counter\n"));
  EXPECT_THAT(text, HasSubstr("weightwire_update_failures_total{code=\"corrupt\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("weightwire_received_bytes_total 1500000000000\n"));
}

TEST(MetricValues, HistogramCountsValuesUpToEachBound) {
  MetricValues values;
  for (const double seconds : {0.0005, 0.001, 0.3, 1000.0}) values.Observe(metrics::kCommitDuration, seconds);
  const std::string text = values.Text();
  EXPECT_THAT(text, HasSubstr("weightwire_commit_duration_seconds_bucket{le=\"0.001\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("weightwire_commit_duration_seconds_bucket{le=\"0.2\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("weightwire_commit_duration_seconds_bucket{le=\"0.5\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("weightwire_commit_duration_seconds_bucket{le=\"60\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("weightwire_commit_duration_seconds_bucket{le=\"+Inf\"} 4\n"
                              "weightwire_commit_duration_seconds_sum 1000.3015\n"
                              "weightwire_commit_duration_seconds_count 4\n"));
}

TEST(MetricValues, LabelsAreEscaped) {
  MetricValues values;
  values.Set(metrics::kInfo, 1, {"a\"b\\c\nd", "0.1.0"});
  EXPECT_THAT(values.Text(), HasSubstr(R"(weightwire_info{run_id="a\"b\\c\nd",package_version="0.1.0"} 1)"));
}

TEST(MetricValues, NumbersThatAreNotFiniteAreSpelledAsPrometheusDoes) {
  MetricValues values;
  values.Set(metrics::kLagSeconds, std::numeric_limits<double>::infinity());
  EXPECT_THAT(values.Text(), HasSubstr("weightwire_lag_seconds +Inf\n"));
}

}  // namespace
}  // namespace weightwire
