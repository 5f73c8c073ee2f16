#include "base/signals_blocked.h"

#include <pthread.h>

#include <initializer_list>

namespace weightwire {

SignalsBlocked::SignalsBlocked() {
  sigset_t others;
  sigfillset(&others);
  // What a thread brings upon itself it must take itself; and who counts where threads are wants to know of all.
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF}) sigdelset(&others, own);
  pthread_sigmask(SIG_BLOCK, &others, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

}  // namespace weightwire
