#include <nanobind/nanobind.h>

#include "base/surface.h"
#include "binding.h"

NB_MODULE(_core, module) {
  module.doc() = "The C++ core of weightwire. Use the package, not this.";
  // What still lives when the interpreter ends, in a global or because a trainer holds it, is closed by the package.
  // nanobind would write a page about it, to people who can do nothing.
  nanobind::set_leak_warnings(false);
  weightwire::SetSurface(weightwire::Surface::kPython);
  weightwire::python::BindSettings(module);
  weightwire::python::BindPolicy(module);
  weightwire::python::BindDlpack(module);
  weightwire::python::BindReaders(module);
  weightwire::python::BindPreparedState(module);
  weightwire::python::BindModuleWalk(module);
  weightwire::python::BindPublisher(module);
  weightwire::python::BindFollower(module);
  weightwire::python::BindMirror(module);
  weightwire::python::BindRun(module);
}
