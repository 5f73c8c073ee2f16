// Ctrl-C while something half-written lies on the disk: finish the piece at hand, clean up, and only then end.
#pragma once

#include <csignal>

#include "base/result.h"

namespace weightwire {

// While it exists, SIGINT and SIGTERM do not end the process but make Check fail; when it goes, a signal that came is
// raised again. So declare it before what has to be cleaned up, and call Check between pieces. A second signal ends the
// process at once.
//
// At most one exists at a time: signal handlers belong to the process.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  [[nodiscard]] Status Check() const;

 private:
  struct sigaction old_interrupt_ {};
  struct sigaction old_terminate_ {};
};

}  // namespace weightwire
