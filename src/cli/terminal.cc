#include "cli/terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/messages.h"
#include "cli/policy.h"

namespace weightwire {
Progress::Progress(std::string what, std::uint64_t total) : what_(std::move(what)), total_(total) {
  if (messages::ShownProgress() != messages::ProgressStyle::kNone) painter_ = std::thread([this] { Show(); });
}

Progress::~Progress() {
  if (!painter_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  end_.notify_one();
  painter_.join();
}

std::string Progress::Line(const std::string& what, std::uint64_t done, std::uint64_t total,
                           std::chrono::seconds passed) {
  if (total == 0) return fmt::format("{} … {} s", what, passed.count());
  const double share = 100.0 * static_cast<double>(std::min(done, total)) / static_cast<double>(total);
  return fmt::format("{} … {:.0f} %", what, share);
}

void Progress::Show() {
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  if (end_.wait_for(lock, kProgressDelay, [this] { return ended_; })) return;
  do {
    const auto passed = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start);
    messages::Progress(Line(what_, done_.load(std::memory_order_relaxed), total_, passed));
  } while (!end_.wait_for(lock, kProgressInterval, [this] { return ended_; }));
  messages::Progress("");
}

LiveLine::LiveLine() : is_shown_(messages::ShownProgress() != messages::ProgressStyle::kNone) {}

LiveLine::~LiveLine() { Erase(); }

void LiveLine::Show(const std::string& text) {
  if (is_shown_) messages::Progress(text);
}

void LiveLine::Erase() {
  if (is_shown_) messages::Progress("");
}

}  // namespace weightwire
