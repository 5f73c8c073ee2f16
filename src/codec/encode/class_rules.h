// Class rules: how units of a type are put into classes by their exponent (spec/FORMAT.md, "Tables"). A type's rules
// are a choice of the encoder; the file says which rule it was.
#pragma once

#include <span>

#include "codec/format/tables.h"
#include "tensor/dtype.h"

namespace weightwire {

// The ways in which units of a type may be put into classes, best guess first: one for floats, whose exponent is known;
// several for integers, which may hold anything. The encoder takes the one whose sample costs least.
std::span<const ClassRule> CandidateClassRules(DType dtype);

}  // namespace weightwire
