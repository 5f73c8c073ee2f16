// Times of one thing that is measured again and again.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace weightwire {

class Timings {
 public:
  void Add(double seconds) { seconds_.push_back(seconds); }

  // Measures function(), which returns a Status or Result, and gives that back.
  template <typename Function>
  auto Time(Function&& function) {
    const auto start = std::chrono::steady_clock::now();
    auto result = function();
    Add(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    return result;
  }

  [[nodiscard]] bool empty() const { return seconds_.empty(); }
  [[nodiscard]] double last() const { return seconds_.back(); }
  // REQUIRES for both: not empty.
  [[nodiscard]] double best() const { return *std::min_element(seconds_.begin(), seconds_.end()); }
  [[nodiscard]] double median() const {
    std::vector<double> sorted = seconds_;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }

 private:
  std::vector<double> seconds_;
};

}  // namespace weightwire
