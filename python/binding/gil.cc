#include "gil.h"

#include <unistd.h>

namespace weightwire::python {

void BlockForever() {
  for (;;) ::pause();
}

namespace {

// Calls a function of Python that takes the GIL. pthread_exit arrives here as an exception that nobody may swallow, so
// its handler must not end.
template <typename Function>
auto TakeGil(Function&& function) noexcept {
  try {
    return function();
  } catch (...) {
    BlockForever();
  }
}

}  // namespace

GilAcquired::GilAcquired() noexcept : state_(TakeGil([] { return PyGILState_Ensure(); })) {}

GilReleased::~GilReleased() {
  TakeGil([this] { PyEval_RestoreThread(state_); });
}

}  // namespace weightwire::python
