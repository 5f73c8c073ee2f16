#include "module_walk.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <array>
#include <utility>

#include "binding.h"

namespace nb = nanobind;

namespace weightwire::python {
namespace {

// Names of attributes, made once and never freed: looking one up in a dictionary then takes no new string.
PyObject* Interned(const char* name) { return PyUnicode_InternFromString(name); }
struct Attributes {
  PyObject* parameters = Interned("_parameters");
  PyObject* buffers = Interned("_buffers");
  PyObject* temporary = Interned("_non_persistent_buffers_set");
  PyObject* children = Interned("_modules");
  // A module that has one of these makes its state itself, or lets others change it.
  std::array<PyObject*, 3> own_ways = {Interned("state_dict"), Interned("_save_to_state_dict"),
                                       Interned("get_extra_state")};
  std::array<PyObject*, 2> hooks = {Interned("_state_dict_hooks"), Interned("_state_dict_pre_hooks")};
};
const Attributes& Known() {
  static const Attributes attributes;
  return attributes;
}

// The parts of a module that its state comes from; nullopt if it has others.
struct Parts {
  nb::object attributes;
  PyObject* parameters;
  PyObject* buffers;
  PyObject* temporary;  // the set of buffers that are not part of the state
  PyObject* children;

  static std::optional<Parts> Of(nb::handle module) {
    PyObject* const attributes = PyObject_GenericGetDict(module.ptr(), nullptr);
    if (attributes == nullptr) {
      PyErr_Clear();
      return std::nullopt;
    }
    const Attributes& known = Known();
    Parts parts{nb::steal(attributes), PyDict_GetItem(attributes, known.parameters),
                PyDict_GetItem(attributes, known.buffers), PyDict_GetItem(attributes, known.temporary),
                PyDict_GetItem(attributes, known.children)};
    for (PyObject* const dict : {parts.parameters, parts.buffers, parts.children}) {
      if (dict == nullptr || PyDict_Check(dict) == 0) return std::nullopt;
    }
    if (parts.temporary == nullptr || PySet_Check(parts.temporary) == 0) return std::nullopt;
    for (PyObject* const own : known.own_ways) {
      if (PyDict_GetItem(attributes, own) != nullptr) return std::nullopt;
    }
    for (PyObject* const hooks : known.hooks) {
      PyObject* const found = PyDict_GetItem(attributes, hooks);
      if (found != nullptr && (PyDict_Check(found) == 0 || PyDict_Size(found) != 0)) return std::nullopt;
    }
    return parts;
  }

  [[nodiscard]] bool IsState(PyObject* key, PyObject* buffer) const {
    return buffer != Py_None && (PySet_GET_SIZE(temporary) == 0 || PySet_Contains(temporary, key) == 0);
  }
  [[nodiscard]] std::size_t size() const {
    return static_cast<std::size_t>(PyDict_Size(parameters) + PyDict_Size(buffers) + PyDict_Size(children));
  }
};

bool SameKey(PyObject* a, PyObject* b) { return a == b || PyObject_RichCompareBool(a, b, Py_EQ) == 1; }

}  // namespace

class ModuleWalk::Recorder {
 public:
  explicit Recorder(ModuleWalk& walk) : walk_(walk), plain_(nb::module_::import_("torch.nn").attr("Module")) {}

  bool Record(nb::handle module, const std::string& prefix) {
    const nb::object type = nb::borrow(reinterpret_cast<PyObject*>(Py_TYPE(module.ptr())));
    for (PyObject* const own : Known().own_ways) {
      if (!nb::getattr(type, nb::handle(own), nb::none()).is(nb::getattr(plain_, nb::handle(own)))) return false;
    }
    const auto parts = Parts::Of(module);
    if (!parts.has_value()) return false;
    walk_.steps_.push_back({Kind::kModule, type, true, parts->size()});
    Py_ssize_t at = 0;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    while (PyDict_Next(parts->parameters, &at, &key, &value) != 0) Add(Kind::kParameter, prefix, key, value != Py_None);
    for (at = 0; PyDict_Next(parts->buffers, &at, &key, &value) != 0;) {
      Add(Kind::kBuffer, prefix, key, parts->IsState(key, value));
    }
    for (at = 0; PyDict_Next(parts->children, &at, &key, &value) != 0;) {
      walk_.steps_.push_back({Kind::kChild, nb::borrow(key), value != Py_None, 0});
      if (value != Py_None && !Record(value, prefix + nb::cast<std::string>(nb::handle(key)) + ".")) return false;
    }
    return true;
  }

 private:
  void Add(Kind kind, const std::string& prefix, PyObject* key, bool present) {
    walk_.steps_.push_back({kind, nb::borrow(key), present, 0});
    if (present) walk_.names_.push_back(prefix + nb::cast<std::string>(nb::handle(key)));
  }

  ModuleWalk& walk_;
  const nb::object plain_;
};

class ModuleWalk::Follower {
 public:
  Follower(const ModuleWalk& walk, nb::list& tensors) : walk_(walk), tensors_(tensors) {}

  bool Follow(nb::handle module) {
    const Step* const step = Next(Kind::kModule);
    if (step == nullptr || reinterpret_cast<PyObject*>(Py_TYPE(module.ptr())) != step->key.ptr()) return false;
    const auto parts = Parts::Of(module);
    if (!parts.has_value() || parts->size() != step->members) return false;
    Py_ssize_t at = 0;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    while (PyDict_Next(parts->parameters, &at, &key, &value) != 0) {
      if (!Take(Kind::kParameter, key, value, value != Py_None)) return false;
    }
    for (at = 0; PyDict_Next(parts->buffers, &at, &key, &value) != 0;) {
      if (!Take(Kind::kBuffer, key, value, parts->IsState(key, value))) return false;
    }
    for (at = 0; PyDict_Next(parts->children, &at, &key, &value) != 0;) {
      const Step* const child = Next(Kind::kChild);
      if (child == nullptr || !SameKey(child->key.ptr(), key) || child->present != (value != Py_None)) return false;
      if (child->present && !Follow(value)) return false;
    }
    return true;
  }

  [[nodiscard]] bool AtEnd() const { return next_ == walk_.steps_.size(); }

 private:
  const Step* Next(Kind kind) {
    if (AtEnd() || walk_.steps_[next_].kind != kind) return nullptr;
    return &walk_.steps_[next_++];
  }
  bool Take(Kind kind, PyObject* key, PyObject* value, bool present) {
    const Step* const step = Next(kind);
    if (step == nullptr || !SameKey(step->key.ptr(), key) || step->present != present) return false;
    if (present) tensors_.append(nb::handle(value));
    return true;
  }

  const ModuleWalk& walk_;
  nb::list& tensors_;
  std::size_t next_ = 0;
};

std::optional<ModuleWalk> ModuleWalk::Of(nb::handle module) {
  ModuleWalk walk;
  if (!Recorder(walk).Record(module, "")) return std::nullopt;
  return walk;
}

nb::list ModuleWalk::names() const {
  nb::list names;
  for (const std::string& name : names_) names.append(nb::str(name.c_str(), name.size()));
  return names;
}

nb::object ModuleWalk::Tensors(nb::handle module) const {
  nb::list tensors;
  Follower follower(*this, tensors);
  if (!follower.Follow(module) || !follower.AtEnd()) return nb::none();
  return tensors;
}

void BindModuleWalk(nb::module_& module) {
  nb::class_<ModuleWalk>(module, "ModuleWalk")
      .def_static("of", &ModuleWalk::Of)
      .def("names", &ModuleWalk::names)
      .def("tensors", &ModuleWalk::Tensors);
}

}  // namespace weightwire::python
