// Whether a state may be a version of the model that a run holds already.
//
// A run is for one model, whose tensors may come and go. If not one of them keeps its name and its shape, a wrong run
// or a wrong checkpoint was named, and the state is refused. Types do not matter: a model may be published in another
// precision. A second name of tied weights counts as a name.
//
// Pure functions.
#pragma once

#include <string>

#include "base/result.h"
#include "tensor/layout.h"

namespace weightwire {

// Whether both have a tensor of the same name and shape, or one of them has no tensor at all.
[[nodiscard]] bool SharesTensor(const Layout& one, const Layout& other);

// kMismatch if they share none. `newest` is the layout of the newest version of the run, which `run_name` names.
Status CheckSameModel(const Layout& newest, const Layout& published, const std::string& run_name);

}  // namespace weightwire
