#include "prepared_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "binding.h"
#include "errors.h"

namespace nb = nanobind;

namespace weightwire::python {

PreparedState::PreparedState(const nb::list& tensors, const nb::dict& aliases) {
  PublishedState state = ToStateBits(tensors, aliases);
  bits_ = std::move(state.bits);
  for (const nb::object& reader : state.kept_readers) {
    const auto& made = nb::cast<const PyReader&>(reader);
    readers_.push_back(made.reader);
    reusable_ = reusable_ && made.reusable;
    owners_of_readers_.push_back(reader);
  }
  arrays_ = std::move(state.kept);
  for (std::size_t i = 0; i < bits_.layout->size(); ++i) elements_ += bits_.layout->element_count(i);
}

bool PreparedState::Watch(const nb::list& values, const nb::dict& copied) {
  if (!reusable_) return false;
  std::vector<TensorMemory> found;
  found.reserve(nb::len(values));
  for (const nb::handle value : values) {
    const auto memory = memory_.Read(value);
    if (!memory.has_value() || !memory->is_on_host()) return false;
    found.push_back(*memory);
  }
  std::vector<Copy> copies;
  std::vector<MemoryOwner> owners;
  for (const auto& [index, copy] : copied) {
    const TensorMemory& from = found[nb::cast<std::size_t>(index)];
    const auto to = memory_.Read(copy);
    if (!to.has_value() || !from.in_order || !to->in_order || from.dtype != to->dtype ||
        from.elements != to->elements) {
      return false;
    }
    copies.push_back({nb::cast<std::size_t>(index), const_cast<void*>(to->address),
                      nb::cast<std::size_t>(nb::handle(copy).attr("nbytes"))});
    owners.push_back(memory_.Own(copy));
  }
  values_ = std::move(found);
  copies_ = std::move(copies);
  copy_owners_ = std::move(owners);
  return true;
}

bool PreparedState::RenewWith(const nb::list& values, WriteCounts* counts) {
  Release();
  const std::size_t count = nb::len(values);
  if (values_.empty() || count != values_.size()) return false;
  owners_.reserve(count);
  PyObject** const items = PySequence_Fast_ITEMS(values.ptr());
  for (std::size_t i = 0; i < count; ++i) {
    // Tensors lie anywhere, so looking at the next ones early saves most of the time.
    constexpr std::size_t kAhead = 8;
    __builtin_prefetch(items[std::min(i + kAhead, count - 1)]);
    const auto memory = memory_.Read(items[i]);
    if (!memory.has_value() || !(*memory == values_[i])) return false;
    // The tensor alone is not enough: another thread may give it other memory and free this.
    owners_.push_back(memory_.Own(items[i]));
    if (counts != nullptr) counts->Add(items[i]);
  }
  values_in_use_ = values;
  for (const Copy& copy : copies_) {
    std::memcpy(copy.to, values_[copy.value].address, copy.size_bytes);
    if (counts != nullptr) counts->Skip(copy.value);
  }
  if (counts != nullptr) counts->Keep(values);
  return true;
}

bool PreparedState::Renew(const nb::list& values) { return RenewWith(values, nullptr); }

nb::object PreparedState::RenewCounted(const nb::list& values) {
  auto counts = std::make_unique<WriteCounts>();
  if (!RenewWith(values, counts.get())) return nb::none();
  return nb::cast(counts.release(), nb::rv_policy::take_ownership);
}

void PreparedState::Release() {
  bits_.unchanged = nullptr;
  arrays_.clear();
  owners_of_readers_.clear();
  owners_.clear();
  values_in_use_.reset();
}

namespace {
constexpr std::int64_t kNotCounted = -1;
}  // namespace

std::int64_t WriteCounts::CountOf(nb::handle tensor) const {
  PyObject* const count = PyObject_GetAttr(tensor.ptr(), attribute_.ptr());
  if (count == nullptr) {  // in torch's inference mode
    PyErr_Clear();
    return kNotCounted;
  }
  const long long number = PyLong_AsLongLong(count);
  Py_DECREF(count);
  return number;
}

WriteCounts::WriteCounts() : attribute_(nb::steal(PyUnicode_InternFromString("_version"))) {}

WriteCounts::WriteCounts(const nb::list& tensors) : WriteCounts() {
  for (const nb::handle tensor : tensors) Add(tensor);
  Keep(tensors);
}

void WriteCounts::Add(nb::handle tensor) {
  if (Py_TYPE(tensor.ptr()) != type_) {
    type_ = Py_TYPE(tensor.ptr());
    counts_type_ = PyObject_HasAttr(reinterpret_cast<PyObject*>(type_), attribute_.ptr()) != 0;
  }
  counts_.push_back(counts_type_ ? CountOf(tensor) : kNotCounted);
}

void WriteCounts::Skip(std::size_t index) { counts_[index] = kNotCounted; }

nb::object WriteCounts::FirstChanged() const {
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] != kNotCounted && CountOf(tensors_[i]) != counts_[i]) return nb::int_(i);
  }
  return nb::none();
}

void BindPreparedState(nb::module_& module) {
  nb::class_<PreparedState>(module, "PreparedState")
      .def(nb::init<const nb::list&, const nb::dict&>())
      .def("watch", &PreparedState::Watch)
      .def("renew", &PreparedState::Renew)
      .def("renew_counted", &PreparedState::RenewCounted)
      .def("release", &PreparedState::Release)
      .def_prop_ro("elements", &PreparedState::elements);
  nb::class_<WriteCounts>(module, "WriteCounts")
      .def(nb::init<const nb::list&>())
      .def("first_changed", &WriteCounts::FirstChanged);
}

}  // namespace weightwire::python
