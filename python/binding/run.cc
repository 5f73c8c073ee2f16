// _core.Run: what a program asks about a run, and versions taken out of it.
#include "log/run.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "binding.h"
#include "errors.h"
#include "follow/targets/memory_target.h"
#include "forks.h"
#include "gil.h"
#include "interruptible.h"
#include "process_tools.h"
#include "runner/checkout.h"
#include "runner/policy.h"
#include "runner/run_report.h"

namespace nb = nanobind;

namespace weightwire::python {
namespace {

template <typename Info>
nb::dict ToDict(const Info& info) {
  nb::dict dict;
  VisitFields(info, [&dict](const char* name, const auto& value) { dict[name] = nb::cast(value); });
  return dict;
}

// An open run. A fork has a copy of it that it must not use.
struct RunSession {
  OpenedStore store;
  std::optional<Run> run;

  [[nodiscard]] SystemSleeper& sleeper() const { return store.process->sleeper; }
};

// Ends the work at the first error, because the store has retried the request, and after Ctrl-C, which stops the
// sleeper.
AfterStep UntilStopped(SystemSleeper& sleeper) {
  return [&sleeper](const Result<FollowerStep>& step) -> Status {
    if (!step.ok()) return step.error();
    return sleeper.SleepFor({}) ? Ok() : Status(Error(ErrorCode::kIo, "interrupted"));
  };
}

// May be used by several threads at a time, and in a fork, which opens the run again.
class PyRun {
 public:
  explicit PyRun(std::string url) : url_(std::move(url)) {
    const GilReleased release;
    const auto session = Use();
    name_ = session->run->store().Name();
    id_ = ToHex(session->run->id());
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::string& id() const { return id_; }

  nb::object Newest() {
    std::optional<VersionInfo> info;
    Do([&](RunSession& session) -> Status {
      WW_TRY(info, ReadNewest(*session.run));
      return Ok();
    });
    return info.has_value() ? nb::object(ToDict(*info)) : nb::none();
  }

  nb::list Versions(std::optional<std::uint64_t> last) {
    std::vector<VersionInfo> infos;
    Do([&](RunSession& session) -> Status {
      WW_TRY(infos, ReadVersions(*session.run, last, kRecordThreads));
      return Ok();
    });
    nb::list list;
    for (const VersionInfo& info : infos) list.append(ToDict(info));
    return list;
  }

  // The followers, and how many leases cannot be read.
  nb::tuple FollowersOf() {
    Followers followers;
    Do([&](RunSession& session) -> Status {
      WW_TRY(const auto newest, session.run->FindNewest(std::nullopt));
      WW_TRY(followers,
             ReadFollowers(*session.run, newest.has_value() ? std::optional(newest->record.version) : std::nullopt));
      return Ok();
    });
    nb::list list;
    for (const FollowerInfo& info : followers.all) list.append(ToDict(info));
    return nb::make_tuple(list, followers.unreadable_leases);
  }

  // All tensors of one version in memory: a list of (name, dtype, shape, bytes), and the aliases.
  nb::tuple LoadVersion(std::optional<Version> version, std::size_t threads) {
    // What the arrays are views of.
    struct Kept {
      std::shared_ptr<ProcessTools> process;
      std::unique_ptr<MemoryTarget> memory;
    };
    auto kept = std::make_unique<Kept>();
    Do([&](RunSession& session) -> Status {
      WW_TRY(kept->process, ProcessTools::Make(threads));
      kept->memory = std::make_unique<MemoryTarget>(*kept->process->kernels, *kept->process->pool);
      return Load(*session.run, version, *kept->memory, ToolsOf(*kept->process), kept->process->random,
                  UntilStopped(session.sleeper()));
    });
    return TensorsOf(std::move(kept));
  }

  // Writes a version into a new directory, and returns what Newest() returns of it.
  nb::dict CheckOutVersion(const std::string& directory, std::optional<Version> version, bool include_code,
                           std::size_t threads) {
    VersionInfo info;
    Do([&](RunSession& session) -> Status {
      const Run& run = *session.run;
      WW_TRY(const auto process, ProcessTools::Make(threads));
      WW_TRY(const KnownRecord record, FindVersion(run, version));
      const CheckoutTools tools{&process->files, &process->random, ToolsOf(*process)};
      WW_RETURN_IF_ERROR(CheckOut(run, record, directory, include_code, tools, UntilStopped(session.sleeper())));
      WW_TRY(auto infos, VersionReader(run, 1).Read(record.record.version, record.record.version));
      info = std::move(infos.front());
      return Ok();
    });
    return ToDict(info);
  }

 private:
  static FollowerTools ToolsOf(const ProcessTools& process) {
    return {&process.clock, process.kernels, process.pool.get()};
  }

  template <typename Kept>
  static nb::tuple TensorsOf(std::unique_ptr<Kept> kept) {
    const MemoryTarget& memory = *kept->memory;
    const Layout& layout = memory.layout();
    const nb::capsule owner(kept.release(), [](void* pointer) noexcept { delete static_cast<Kept*>(pointer); });
    nb::list tensors;
    for (std::size_t i = 0; i < layout.size(); ++i) {
      const TensorSpec& spec = layout.tensors()[i];
      const auto bytes = memory.bytes(i);
      // The memory is the caller's from here on, to write to as well.
      auto* data = const_cast<std::uint8_t*>(bytes.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
      const nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> array(data, {bytes.size()}, owner);
      nb::list shape;
      for (const std::uint64_t extent : spec.shape) shape.append(extent);
      tensors.append(nb::make_tuple(spec.name, std::string(NameOf(spec.dtype)), nb::tuple(shape), array));
    }
    nb::dict aliases;
    for (const auto& [alias, name] : layout.aliases()) aliases[alias.c_str()] = name;
    return nb::make_tuple(tensors, aliases);
  }

  // Opens the run, unless this process has it open.
  std::shared_ptr<RunSession> Use() {
    const std::lock_guard lock(mutex_);
    if (session_ != nullptr && process_ == ::getpid()) return session_;
    const std::shared_ptr<ProcessTools> process = ValueOrRaise(ProcessTools::Make(1));
    auto session = MakeForThisProcess<RunSession>();
    RunInterruptibly(process->sleeper, [&]() -> Status {
      WW_TRY(session->store, OpenStoreFor(url_, process, 0));
      WW_TRY(session->run, Run::Open(*session->store.store));
      return Ok();
    });
    session_ = session;
    process_ = ::getpid();
    return session;
  }

  // Does the work on the run and raises its error.
  void Do(const std::function<Status(RunSession&)>& work) {
    const GilReleased release;
    const auto session = Use();
    try {
      RunInterruptibly(session->sleeper(), [&] { return work(*session); });
    } catch (...) {
      // After Ctrl-C its sleeper is stopped for good: the next call opens the run again.
      const std::lock_guard lock(mutex_);
      if (session_ == session) session_.reset();
      throw;
    }
  }

  const std::string url_;
  std::string name_;
  std::string id_;
  std::mutex mutex_;
  std::shared_ptr<RunSession> session_;  // guarded by mutex_
  ::pid_t process_ = 0;                  // that opened it; guarded by mutex_
};

}  // namespace

void BindRun(nb::module_& module) {
  nb::class_<PyRun>(module, "Run")
      .def(nb::init<std::string>())
      .def_prop_ro("name", &PyRun::name)
      .def_prop_ro("run_id", &PyRun::id)
      .def("newest", &PyRun::Newest)
      .def("versions", &PyRun::Versions, nb::arg("last").none())
      .def("followers", &PyRun::FollowersOf)
      .def("load", &PyRun::LoadVersion, nb::arg("version").none(), nb::arg("threads"))
      .def("checkout", &PyRun::CheckOutVersion, nb::arg("directory"), nb::arg("version").none(),
           nb::arg("include_code"), nb::arg("threads"));
}

}  // namespace weightwire::python
