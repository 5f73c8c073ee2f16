// What the extension module consists of.
#pragma once

#include <nanobind/nanobind.h>

namespace weightwire::python {

void BindPublisher(nanobind::module_& module);
void BindFollower(nanobind::module_& module);
void BindMirror(nanobind::module_& module);
void BindRun(nanobind::module_& module);
void BindReaders(nanobind::module_& module);
void BindPreparedState(nanobind::module_& module);
void BindModuleWalk(nanobind::module_& module);
void BindSettings(nanobind::module_& module);
void BindPolicy(nanobind::module_& module);
void BindDlpack(nanobind::module_& module);

}  // namespace weightwire::python
