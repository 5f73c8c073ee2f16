// Taking and releasing Python's global interpreter lock (GIL), also while the interpreter ends.
//
// A thread that asks for the GIL while the interpreter ends gets pthread_exit from Python before 3.14, which unwinds
// through our C++ frames and aborts the process. A blocking call of a daemon thread, or a thread of the core, would
// meet that at every exit of a program. Here such a thread blocks forever instead, as Python 3.14 does; it holds no
// lock that the exit needs, and it ends with the process.
//
// Use these classes, never nanobind's gil_scoped_acquire and gil_scoped_release.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <utility>

namespace weightwire::python {

[[noreturn]] void BlockForever();

// Holds the GIL during its lifetime. Any thread may make one, whether it holds the GIL already or not.
class GilAcquired {
 public:
  GilAcquired() noexcept;
  ~GilAcquired() { PyGILState_Release(state_); }
  GilAcquired(const GilAcquired&) = delete;
  GilAcquired& operator=(const GilAcquired&) = delete;

 private:
  PyGILState_STATE state_;
};

// Releases the GIL during its lifetime. REQUIRES: the thread holds it.
class GilReleased {
 public:
  GilReleased() noexcept : state_(PyEval_SaveThread()) {}
  ~GilReleased();
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

// Calls `function`, which runs Python code, on a thread of the core. That code takes the GIL again and again, so the
// interpreter's end may arrive in it, too. REQUIRES: the GIL is held.
template <typename Function>
auto CallPython(Function&& function) {
  try {
    return std::forward<Function>(function)();
  } catch (const std::exception&) {
    throw;
  } catch (...) {  // pthread_exit, which is no std::exception
    BlockForever();
  }
}

}  // namespace weightwire::python
