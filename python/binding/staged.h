// A staged change as Python sees it, without a copy.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "codec/decode/staged_change.h"

namespace weightwire::python {

// A list of (name, dtype, shape, unit bytes, whole, pieces), one for each tensor that changes, by the layout after.
// `whole` is all bytes of a tensor that is new, and None otherwise; a piece is (first unit, offsets from it, new units,
// old units). The arrays look into the change, which lives as long as any of them, and cannot be written to.
nanobind::list StagedTensors(std::shared_ptr<const StagedChange> change);

}  // namespace weightwire::python
