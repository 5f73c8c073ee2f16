// Keeping the process's signals away from threads of ours.
#pragma once

#include <csignal>

namespace weightwire {

// Threads that are started while it lives take none of the process's signals. A signal that another thread than an
// interpreter's own takes may be noticed by that one only much later: so a library's threads leave them alone.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace weightwire
