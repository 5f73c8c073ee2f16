// Objects with threads, in a process that may fork, as data loaders make it.
#pragma once

#include <unistd.h>

#include <memory>
#include <utility>

namespace weightwire::python {

// A fork has a copy of the object and none of its threads: at its end it would wait for them for ever. There it has no
// end; the memory goes with the fork.
template <typename T, typename... Arguments>
std::shared_ptr<T> MakeForThisProcess(Arguments&&... arguments) {
  return std::shared_ptr<T>(std::make_unique<T>(std::forward<Arguments>(arguments)...).release(),
                            [process = ::getpid()](T* object) {
                              std::unique_ptr<T> owned(object);
                              if (::getpid() != process) static_cast<void>(owned.release());
                            });
}

}  // namespace weightwire::python
