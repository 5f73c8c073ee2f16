// The tensors that a torch module's state_dict() would give, found again without calling it: that makes a new tensor
// for each, with a call of Python for each module.
//
// A walk remembers the structure of a module: the types of its submodules and the names of what they hold. It refuses
// modules that say themselves what belongs to their state (hooks, overridden methods), at any time.
//
// Thread safety: REQUIRES the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <vector>

namespace weightwire::python {

class ModuleWalk {
 public:
  // nullopt if the module, or one inside, is not an ordinary one.
  static std::optional<ModuleWalk> Of(nanobind::handle module);

  // As state_dict() has them.
  [[nodiscard]] nanobind::list names() const;
  // The tensors of a module of this structure, by those names; None if it has another one.
  [[nodiscard]] nanobind::object Tensors(nanobind::handle module) const;

 private:
  enum class Kind : std::uint8_t { kModule, kParameter, kBuffer, kChild };
  struct Step {
    Kind kind;
    nanobind::object key;     // a module's type; a name in its module
    bool present = false;     // not None, and for a buffer: part of the state
    std::size_t members = 0;  // of a module: parameters, buffers and children
  };
  class Recorder;
  class Follower;

  std::vector<Step> steps_;
  std::vector<std::string> names_;
};

}  // namespace weightwire::python
