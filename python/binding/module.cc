#include <nanobind/nanobind.h>

#include "binding.h"

NB_MODULE(_core, module) {
  module.doc() = "The C++ core of weightwire. Use the package, not this.";
  weightwire::python::BindDlpack(module);
  weightwire::python::BindReaders(module);
  weightwire::python::BindPublisher(module);
  weightwire::python::BindRankPublisher(module);
  weightwire::python::BindFollower(module);
}
