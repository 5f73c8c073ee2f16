#include "interruptible.h"

#include <future>

#include "base/signals_blocked.h"
#include "errors.h"
#include "runner/policy.h"

namespace weightwire::python {

void RunInterruptibly(SystemSleeper& sleeper, const std::function<Status()>& work) {
  std::future<Status> ended = [&] {
    const SignalsBlocked blocked;
    return std::async(std::launch::async, work);
  }();
  while (ended.wait_for(kInterruptCheckInterval) != std::future_status::ready) {
    try {
      CheckSignals();
    } catch (...) {
      sleeper.Stop();
      ended.wait();
      throw;
    }
  }
  OkOrRaise(ended.get());
}

}  // namespace weightwire::python
