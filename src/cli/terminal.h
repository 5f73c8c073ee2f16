// Progress of a command that runs, on standard error (messages.h).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace weightwire {

// One line that says what is being done and how far it is. It appears when something takes longer than a moment, and is
// erased by the destructor. Any thread may call Add.
class Progress {
 public:
  // `total` is in any unit; 0 if it is not known, and then the seconds passed are shown.
  explicit Progress(std::string what, std::uint64_t total = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Add(std::uint64_t amount) { done_.fetch_add(amount, std::memory_order_relaxed); }

  // The line as it would be shown.
  [[nodiscard]] static std::string Line(const std::string& what, std::uint64_t done, std::uint64_t total,
                                        std::chrono::seconds passed);

 private:
  void Show();

  const std::string what_;
  const std::uint64_t total_;
  std::atomic<std::uint64_t> done_{0};

  std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;   // guarded by mutex_
  std::thread painter_;  // only if progress is shown
};

// One line that is written again and again.
class LiveLine {
 public:
  LiveLine();
  // Erases it.
  ~LiveLine();
  LiveLine(const LiveLine&) = delete;
  LiveLine& operator=(const LiveLine&) = delete;

  [[nodiscard]] bool is_shown() const { return is_shown_; }
  void Show(const std::string& text);
  // Before something else is printed.
  void Erase();

 private:
  const bool is_shown_;
};

}  // namespace weightwire
