// Weights that are made while they are published: readers of the core, for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "codec/encode/unit_reader.h"

namespace weightwire::python {

// A reader, and what it reads from. Destroyed with the GIL held.
struct PyReader {
  nanobind::object owner;
  std::shared_ptr<const UnitReader> reader;
  bool reusable = false;  // it gives what is in the memory, whenever it is asked
};

}  // namespace weightwire::python
