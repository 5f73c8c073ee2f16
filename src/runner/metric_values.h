// The values of the metrics in runner/metrics.h, and their text for a Prometheus server.
//
// A gauge appears once it is set. Counters begin at 0, and so does the histogram.
//
// Thread safety: any method may be called by any thread at any time.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runner/metrics.h"

namespace weightwire {

// The content-type of MetricValues::Text().
inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

class MetricValues {
 public:
  // The values of a metric's labels, in the order of the table.
  using Labels = std::vector<std::string>;

  MetricValues();

  // REQUIRES: `gauge` is a gauge of the table, and `labels` has one value for each of its labels.
  void Set(const Metric& gauge, double value, const Labels& labels = {});
  // Removes a gauge, because its value is unknown.
  void Remove(const Metric& gauge, const Labels& labels = {});
  // REQUIRES: the same of a counter, and amount ≥ 0.
  void Add(const Metric& counter, double amount, const Labels& labels = {});
  // REQUIRES: `histogram` is a histogram of the table.
  void Observe(const Metric& histogram, double value);

  // All of them in Prometheus' text format 0.0.4.
  [[nodiscard]] std::string Text() const;

 private:
  struct Observations {
    std::vector<std::uint64_t> buckets;  // of each bucket alone; the last one is for larger values
    double sum = 0;
  };

  mutable std::mutex mutex_;
  std::map<std::string_view, std::map<Labels, double>> values_;  // by name; of gauges and counters
  std::map<std::string_view, Observations> observations_;
};

}  // namespace weightwire
