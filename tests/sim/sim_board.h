// The board by which ranks talk (publish/board_messages.h), and a rank's connection to it.
//
// As a TCPStore is: it lives in rank 0's process and ends with it. A connection keeps what is put in order and loses
// nothing, until it breaks: then the last request may have arrived or not. Some can be made again, others are broken
// for good. A connection may also stand still for a while, without an error.
//
// The board watches over what must never be: a key that is put twice, unless nobody could know that it was there.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "sim/world.h"

namespace weightwire::sim {

class Board {
 public:
  // `host` is the machine of rank 0. Both must outlive it.
  Board(World& world, const Machine& host) : world_(world), host_(host) {}

  // Called when something is put.
  std::function<void(const std::string& key, const std::string& text)> on_put;

  // `again`: after a break.
  void Put(const std::string& key, const std::string& text, bool again);
  [[nodiscard]] std::optional<std::string> Find(const std::string& key) const;
  void Remove(const std::string& key) { texts_.erase(key); }
  [[nodiscard]] const std::map<std::string, std::string>& texts() const { return texts_; }
  // Whether it was put once more after a break, perhaps when it had served its purpose and been removed.
  [[nodiscard]] bool WasPutAgain(const std::string& key) const { return put_again_.contains(key); }

  // The process it lives in has ended.
  void Close() { closed_ = true; }
  [[nodiscard]] bool closed() const { return closed_ || host_.dead(); }
  // That process does nothing any more, but is still there: whoever asks waits.
  void Freeze() { frozen_ = true; }
  [[nodiscard]] bool frozen() const { return frozen_; }

 private:
  World& world_;
  const Machine& host_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::string> ever_put_;
  std::set<std::string> put_again_;
  bool closed_ = false;
  bool frozen_ = false;
};

// One rank's way to the board. Each call may take long: nothing was done yet if IsStalled() afterwards, and the caller
// calls again later. After an error every call gives one, until it is connected again.
class BoardClient {
 public:
  // Waits for the board are errors after `timeout`. The machine must outlive it.
  BoardClient(std::shared_ptr<Board> board, Machine& machine, MonotonicTime timeout)
      : board_(std::move(board)), machine_(machine), timeout_(timeout) {}

  [[nodiscard]] bool IsStalled() const;
  [[nodiscard]] bool IsBroken() const { return broken_; }
  // Makes a connection that broke again, if that can be.
  Status Connect();

  Status Put(const std::string& key, const std::string& text, bool again);
  Result<std::optional<std::string>> Find(const std::string& key);
  Status Remove(const std::string& key);

 private:
  // Whether the request arrives. If not, and there is no error, it stalls.
  Result<bool> Send(std::string_view what, const std::string& key);
  void StallFor(MonotonicTime time);

  const std::shared_ptr<Board> board_;
  Machine& machine_;
  const MonotonicTime timeout_;
  std::optional<MonotonicTime> stalled_until_;
  bool breaks_then_ = false;
  bool broken_ = false;
  bool for_good_ = false;
  bool arrived_ = false;  // what was sent when it broke
};

}  // namespace weightwire::sim
