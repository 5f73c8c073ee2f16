#include "runner/metric_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

#include "base/check.h"
#include "runner/settings.h"

namespace weightwire {
namespace {

std::string Escaped(std::string_view text, bool quoted) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\n') {
      escaped += "\\n";
      continue;
    }
    if (c == '\\' || (quoted && c == '"')) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

// {code="corrupt"}, or nothing without labels.
std::string LabelText(const Metric& metric, const MetricValues::Labels& values) {
  const std::vector<std::string> names = WordsOf(metric.labels);
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += fmt::format("{}{}=\"{}\"", i == 0 ? "{" : ",", names[i], Escaped(values[i], /*quoted=*/true));
  }
  return text.empty() ? text : text + "}";
}

bool HasAllLabels(const Metric& metric, const MetricValues::Labels& values) {
  return WordsOf(metric.labels).size() == values.size();
}

}  // namespace

MetricValues::MetricValues() {
  for (const Metric* metric : AllMetrics()) {
    if (metric->type == MetricType::kHistogram) {
      observations_[metric->name].buckets.resize(metric->buckets.size() + 1);
    } else if (metric->type == MetricType::kCounter && metric->labels.empty()) {
      values_[metric->name][{}] = 0;
    }
  }
  for (const std::string_view code : FailureCodes()) {
    values_[metrics::kUpdateFailures.name][{std::string(code)}] = 0;
  }
}

void MetricValues::Set(const Metric& gauge, double value, const Labels& labels) {
  WW_CHECK(gauge.type == MetricType::kGauge && HasAllLabels(gauge, labels));
  const std::lock_guard lock(mutex_);
  values_[gauge.name][labels] = value;
}

void MetricValues::Remove(const Metric& gauge, const Labels& labels) {
  WW_CHECK(gauge.type == MetricType::kGauge && HasAllLabels(gauge, labels));
  const std::lock_guard lock(mutex_);
  values_[gauge.name].erase(labels);
}

void MetricValues::Add(const Metric& counter, double amount, const Labels& labels) {
  WW_CHECK(counter.type == MetricType::kCounter && HasAllLabels(counter, labels) && amount >= 0);
  const std::lock_guard lock(mutex_);
  values_[counter.name][labels] += amount;
}

void MetricValues::Observe(const Metric& histogram, double value) {
  WW_CHECK(histogram.type == MetricType::kHistogram);
  const auto bucket = std::lower_bound(histogram.buckets.begin(), histogram.buckets.end(), value);
  const std::lock_guard lock(mutex_);
  Observations& observations = observations_[histogram.name];
  ++observations.buckets[static_cast<std::size_t>(std::distance(histogram.buckets.begin(), bucket))];
  observations.sum += value;
}

std::string MetricValues::Text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  const auto add_head = [&text](const Metric& metric) {
    text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", metric.name, Escaped(metric.help, /*quoted=*/false),
                        metric.name, NameOf(metric.type));
  };
  for (const Metric* metric : AllMetrics()) {
    if (metric->type == MetricType::kHistogram) {
      add_head(*metric);
      const Observations& observations = observations_.at(metric->name);
      std::uint64_t count = 0;
      for (std::size_t i = 0; i < observations.buckets.size(); ++i) {
        count += observations.buckets[i];
        const double bound = i < metric->buckets.size() ? metric->buckets[i] : HUGE_VAL;
        text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", metric->name, Number(bound), count);
      }
      text += fmt::format("{0}_sum {1}\n{0}_count {2}\n", metric->name, Number(observations.sum), count);
    } else if (const auto series = values_.find(metric->name); series != values_.end() && !series->second.empty()) {
      add_head(*metric);
      for (const auto& [labels, value] : series->second) {
        text += fmt::format("{}{} {}\n", metric->name, LabelText(*metric, labels), Number(value));
      }
    }
  }
  return text;
}

}  // namespace weightwire
