// What other programs than its follower need of a mirror: the version that it holds, a check, and how far behind it is.
#include "follow/mirror/mirror.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/real_file_system.h"
#include "binding.h"
#include "errors.h"
#include "follow/mirror/mirror_state.h"
#include "follow/mirror/reader.h"
#include "follow/version_lag.h"
#include "gil.h"
#include "process_tools.h"

namespace nb = nanobind;

namespace weightwire::python {
namespace {

// Returns the version, the state digest, the step and the run's id that a mirror's files hold. Returns None if programs
// must not read them: they hold nothing, or a follower must first finish what a crash interrupted.
nb::object ReadHeldOfMirror(const std::string& directory) {
  RealFileSystem files;
  const MirrorState state = ValueOrRaise(ReadMirrorState(files, directory));
  if (!state.IsReadable(files.BootId())) return nb::none();
  const Held& held = *state.held;
  return nb::make_tuple(held.version, ToHex(held.state), held.step, ToHex(held.run));
}

// VersionLag by this machine's clock.
class PyVersionLag {
 public:
  void AddSeen(std::optional<Version> version) {
    if (version.has_value()) lag_.AddSeen(*version);
  }
  void SetHeld(Version version) { lag_.SetHeld(version); }
  [[nodiscard]] std::optional<Version> newest() const { return lag_.newest(); }
  [[nodiscard]] std::uint64_t versions() const { return lag_.versions(); }
  [[nodiscard]] double seconds() const { return std::chrono::duration<double>(lag_.behind()).count(); }

 private:
  SystemClock clock_;
  VersionLag lag_{clock_};
};

// Finishes what a crash interrupted in a mirror, and digests it in full. Needs no run. Raises if the files differ from
// the version that the mirror's state names.
void CheckMirror(const std::string& directory, std::size_t threads) {
  const GilReleased release;
  const std::shared_ptr<ProcessTools> process = ValueOrRaise(ProcessTools::Make(threads));
  MirrorOptions options;
  options.check = true;
  const auto mirror = ValueOrRaise(OpenMirror(process->files, directory, options, *process->kernels, *process->pool));
  if (mirror->damage().has_value()) Raise(*mirror->damage());
}

// The shared lock of a mirror's reader (follow/mirror/reader.h).
class PyMirrorRead {
 public:
  explicit PyMirrorRead(std::unique_ptr<SharedRead> read) : read_(std::move(read)) {}

  // None while the mirror is being written.
  static std::optional<PyMirrorRead> Try(const std::string& directory) {
    const GilReleased release;
    static RealFileSystem files;
    auto read = ValueOrRaise(SharedRead::TryBegin(files, directory));
    if (!read.has_value()) return std::nullopt;
    return PyMirrorRead(std::make_unique<SharedRead>(*std::move(read)));
  }
  [[nodiscard]] Version version() const { return read_->held().version; }
  [[nodiscard]] std::uint64_t step() const { return read_->held().step; }
  [[nodiscard]] std::string digest() const { return ToHex(read_->held().state); }
  // Raises unless the mirror has held that version all the while.
  void Confirm() {
    const GilReleased release;
    OkOrRaise(read_->Confirm());
  }
  void Unlock() { read_.reset(); }

 private:
  std::unique_ptr<SharedRead> read_;
};

}  // namespace

void BindMirror(nb::module_& module) {
  nb::class_<PyVersionLag>(module, "VersionLag")
      .def(nb::init<>())
      .def("add_seen", &PyVersionLag::AddSeen, nb::arg("version").none())
      .def("set_held", &PyVersionLag::SetHeld, nb::arg("version"))
      .def_prop_ro("newest", &PyVersionLag::newest)
      .def_prop_ro("versions", &PyVersionLag::versions)
      .def_prop_ro("seconds", &PyVersionLag::seconds);
  nb::class_<PyMirrorRead>(module, "MirrorRead")
      .def_prop_ro("version", &PyMirrorRead::version)
      .def_prop_ro("step", &PyMirrorRead::step)
      .def_prop_ro("digest", &PyMirrorRead::digest)
      .def("confirm", &PyMirrorRead::Confirm)
      .def("unlock", &PyMirrorRead::Unlock);
  module.def("try_mirror_read", &PyMirrorRead::Try, nb::arg("directory"));
  module.def("read_held", &ReadHeldOfMirror, nb::arg("directory"));
  module.def("check_mirror", &CheckMirror, nb::arg("directory"), nb::arg("threads"));
}

}  // namespace weightwire::python
