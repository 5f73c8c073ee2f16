// _core.Follower: thin over follow/follower.h.
#include "follow/follower.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "arrays.h"
#include "binding.h"
#include "codec/decode/staged_change.h"
#include "errors.h"
#include "follow/mirror/mirror.h"
#include "follow/mirror/swap_mirror.h"
#include "follow/rebuild.h"
#include "follow/targets/array_target.h"
#include "forks.h"
#include "gil.h"
#include "interruptible.h"
#include "process_tools.h"
#include "runner/mirror_follower.h"
#include "store/policy.h"

namespace nb = nanobind;

namespace weightwire::python {
namespace {

nb::tuple ShapeOf(const TensorSpec& spec) {
  nb::list shape;
  for (const std::uint64_t extent : spec.shape) shape.append(extent);
  return nb::tuple(shape);
}

template <typename T>
nb::object ViewOf(std::span<const T> values, const nb::capsule& owner) {
  return nb::cast(nb::ndarray<nb::numpy, const T, nb::ndim<1>>(values.data(), {values.size()}, owner));
}

// A staged change as Python sees it, without a copy.
class PyStagedChange {
 public:
  explicit PyStagedChange(std::shared_ptr<const StagedChange> change) : change_(std::move(change)) {}

  // A list of (name, dtype, shape, unit bytes, whole, pieces), one for each tensor that changes, by the layout after.
  // `whole` is all bytes of a tensor that is new, and None otherwise; a piece is (first unit, offsets from it, new
  // units, old units). The arrays look into the change, which lives as long as any of them, and cannot be written to.
  [[nodiscard]] nb::list Tensors() const {
    using Owner = std::shared_ptr<const StagedChange>;
    const StagedChange& staged = *change_;
    const nb::capsule owner(new Owner(change_), [](void* p) noexcept { delete static_cast<Owner*>(p); });
    nb::list tensors;
    for (const StagedTensor& tensor : staged.tensors()) {
      const TensorSpec& spec = staged.layout_after().tensors()[tensor.tensor()];
      nb::list pieces;
      for (const StagedChunk& chunk : tensor.chunks()) {
        pieces.append(nb::make_tuple(chunk.first_unit, ViewOf<std::uint32_t>(chunk.offsets, owner),
                                     ViewOf<std::uint8_t>(chunk.new_units, owner),
                                     ViewOf<std::uint8_t>(chunk.old_units, owner)));
      }
      const nb::object whole = tensor.is_new() ? ViewOf<std::uint8_t>(tensor.new_bytes(), owner) : nb::none();
      tensors.append(nb::make_tuple(spec.name, std::string(NameOf(spec.dtype)), ShapeOf(spec), tensor.unit_bytes(),
                                    whole, pieces));
    }
    return tensors;
  }

 private:
  std::shared_ptr<const StagedChange> change_;
};

// A follower with all it needs, and one of the targets there are.
class Session {
 public:
  // Opens the run; the rest decides what is followed into what.
  Status Open(const std::string& url, std::shared_ptr<ProcessTools> process, std::uint64_t rate) {
    WW_TRY(store, OpenStoreFor(url, std::move(process), rate));
    return OpenRun();
  }
  Status OpenRun() {
    WW_TRY(run, Run::Open(*store.store));
    return Ok();
  }

  ~Session() {
    if (store.process != nullptr) store.process->sleeper.Stop();
  }

  void Start(Target& target, FollowerOptions options) {
    options.fetch_threads = kTransferThreads;
    follower = std::make_unique<Follower>(*run, target, NewId(store.process->random), std::move(options), Tools());
  }
  [[nodiscard]] FollowerTools Tools() const {
    return {&store.process->clock, store.process->kernels, store.process->pool.get()};
  }

  OpenedStore store;
  std::optional<Run> run;
  TargetArrays kept;  // Python's arrays behind `arrays`
  std::unique_ptr<ArrayTarget> arrays;
  std::unique_ptr<Mirror> mirror;
  std::unique_ptr<Follower> follower;
};

class PyFollower {
 public:
  // `target` is a list as in arrays.h, or the path of a directory.
  PyFollower(const std::string& url, const nb::object& target, const nb::dict& options) {
    const auto threads = nb::cast<std::size_t>(options["threads"]);
    const auto rate = nb::cast<std::uint64_t>(options["max_bytes_per_second"]);
    options_.name = nb::cast<std::string>(options["name"]);
    options_.keep_lease = nb::cast<bool>(options["lease"]);
    options_.every_version = nb::cast<bool>(options["every_version"]);
    options_.apply_at_once = false;
    mirror_options_.adopt = nb::cast<bool>(options["adopt"]);
    mirror_options_.check = nb::cast<bool>(options["verify"]);
    mirror_options_.include_code = nb::cast<bool>(options["include_code"]);
    swap_ = nb::cast<bool>(options["swap"]);
    const auto wait_for_run = nb::cast<bool>(options["wait_for_run"]);
    TargetArrays arrays;
    if (nb::isinstance<nb::list>(target)) {
      arrays = ToTargetArrays(nb::cast<nb::list>(target));
    } else {
      directory_ = nb::cast<std::string>(target);
    }
    const GilReleased release;
    const std::shared_ptr<ProcessTools> process = ValueOrRaise(ProcessTools::Make(threads));
    session_ = MakeForThisProcess<Session>();
    RunInterruptibly(process->sleeper, [&]() -> Status {
      if (directory_.has_value()) WW_RETURN_IF_ERROR(CheckApart(url, *directory_));
      const Status opened = session_->Open(url, process, rate);
      const bool waits = wait_for_run && !opened.ok() && opened.error().code() == ErrorCode::kNotFound;
      if (!opened.ok() && !waits) return opened;
      WW_RETURN_IF_ERROR(OpenTarget(std::move(arrays)));
      if (!waits) return Start();
      return CheckMayWait();
    });
    Note();
  }

  // Fetches, verifies and stages as far as there is something. What there is to apply then: (version held, version
  // after, whether it loads everything, whether the layout changes, the change unless it loads everything). None if
  // there is nothing, or the run does not exist yet. What goes wrong is not tried again when so many seconds are over.
  nb::object Poll(std::optional<double> patience) {
    std::optional<Version> from;
    Version version = 0;
    bool layout_changed = false;
    std::shared_ptr<const StagedChange> change;
    {
      const GilReleased release;
      const std::lock_guard lock(mutex_);
      CheckOpen();
      StepOn(patience);
      if (session_->follower == nullptr || !session_->follower->HasStaged()) return NoneWithGil();
      Follower& follower = *session_->follower;
      change = follower.Staged();
      version = follower.staged_record().record.version;
      if (const auto& held = TargetOf().held(); held.has_value()) {
        from = held->version;
        layout_changed = held->layout != follower.staged_record().record.layout;
      }
    }
    const bool is_full_load = change == nullptr;
    const nb::object handle = is_full_load ? nb::none() : nb::cast(PyStagedChange(std::move(change)));
    return nb::make_tuple(OrNone(from), version, is_full_load, layout_changed, handle);
  }

  // Writes what is staged to the target. Raises if that leads to another version than this one.
  void Apply(Version version) {
    const GilReleased release;
    const std::lock_guard lock(mutex_);
    CheckOpen();
    Follower* follower = session_->follower.get();
    if (follower == nullptr || !follower->HasStaged() || follower->staged_record().record.version != version) {
      Raise({ErrorCode::kInvalidArgument,
             fmt::format("the update to version {} is outdated: it is no longer staged; poll again", version)});
    }
    OkOrRaise(follower->Apply());
  }

  void Undo() {
    const GilReleased release;
    const std::lock_guard lock(mutex_);
    CheckOpen();
    if (session_->follower == nullptr) Raise({ErrorCode::kInvalidArgument, "there is no update to take back"});
    OkOrRaise(session_->follower->Undo());
    pin_ = session_->follower->status().pinned;
  }

  // nullopt: the version held.
  void Pin(std::optional<Version> version) {
    const GilReleased release;
    const std::lock_guard lock(mutex_);
    CheckOpen();
    if (!version.has_value()) {
      const auto& held = TargetOf().held();
      if (!held.has_value()) {
        Raise({ErrorCode::kInvalidArgument, "cannot pin to the version held, because none is; name the version"});
      }
      version = held->version;
    }
    pin_ = version;
    if (session_->follower != nullptr) session_->follower->Pin(*version);
  }

  void Unpin() {
    const GilReleased release;
    const std::lock_guard lock(mutex_);
    CheckOpen();
    pin_.reset();
    if (session_->follower != nullptr) session_->follower->Unpin();
  }

  // Digests the target in full; raises if something else has written to it.
  void Verify() {
    const GilReleased release;
    const std::lock_guard lock(mutex_);
    CheckOpen();
    const Status verified = session_->follower != nullptr ? session_->follower->Verify() : TargetOf().Verify();
    Note();
    OkOrRaise(verified);
  }

  // Never waits for a poll under way: then it is what was known after its last step.
  nb::dict Describe() {
    Known known;
    {
      const GilReleased release;
      if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock() && session_ != nullptr) Note();
      const std::lock_guard lock(known_mutex_);
      known = known_;
    }
    const auto& [status, held, counts] = known;
    nb::dict dict;
    dict["version"] = held.has_value() ? nb::cast(held->version) : nb::none();
    dict["step"] = held.has_value() ? nb::cast(held->step) : nb::none();
    dict["digest"] = held.has_value() ? nb::object(nb::str(ToHex(held->state).c_str())) : nb::none();
    dict["newest_version"] = OrNone(status.newest);
    dict["staged_version"] = OrNone(status.staged);
    dict["pinned_version"] = OrNone(status.pinned);
    std::optional<std::uint64_t> lag;
    std::optional<double> lag_seconds;
    if (status.newest.has_value()) {
      lag = held.has_value() ? status.lag : *status.newest + 1;
      lag_seconds = std::chrono::duration<double>(status.behind).count();
    }
    dict["lag_versions"] = OrNone(lag);
    dict["lag_seconds"] = OrNone(lag_seconds);
    dict["has_lease"] = status.has_lease;
    dict["waiting_for"] = status.waits_for.empty() ? nb::none() : nb::object(nb::str(status.waits_for.c_str()));
    dict["lost_because"] = status.last_error.empty() ? nb::none() : nb::object(nb::str(status.last_error.c_str()));
    dict["bytes_fetched"] = status.bytes_fetched;
    dict["bytes_received"] = counts.received_bytes;
    dict["versions_applied"] = status.versions_applied;
    dict["anchors_loaded"] = status.anchors_loaded;
    return dict;
  }

  // Without credentials; None until the run exists.
  [[nodiscard]] std::optional<std::string> RunId() {
    const GilReleased release;
    const std::lock_guard lock(known_mutex_);
    return run_id_;
  }

  void Close() {
    TargetArrays kept;  // ends when the GIL is held again, because it refers to Python's arrays
    const GilReleased release;
    const std::lock_guard lock(mutex_);
    if (session_ == nullptr) return;
    Note();
    const Status synced = session_->mirror != nullptr ? session_->mirror->Sync() : Ok();
    if (session_->follower != nullptr) static_cast<void>(session_->follower->ReleaseLease());  // it expires
    kept = std::move(session_->kept);
    session_.reset();
    OkOrRaise(synced);
  }

 private:
  // What Describe tells.
  struct Known {
    FollowerStatus status;
    std::optional<Held> held;
    TraceCounts counts;
  };

  static nb::object NoneWithGil() {
    const GilAcquired gil;
    return nb::none();
  }

  // REQUIRES: mutex_ is held, or nobody else has this yet.
  void Note() {
    const std::lock_guard lock(known_mutex_);
    known_.held = TargetOf().held();
    known_.counts = session_->store.counts->Counts();
    if (session_->follower != nullptr) {
      known_.status = session_->follower->status();
    } else {
      known_.status = {};
      known_.status.pinned = pin_;
      known_.status.waits_for = "the run, which does not exist yet";
    }
    if (session_->run.has_value()) run_id_ = ToHex(session_->run->id());
  }

  Status OpenTarget(TargetArrays arrays) {
    Session& session = *session_;
    ProcessTools& process = *session.store.process;
    if (!directory_.has_value()) {
      const ArrayTargetOptions options{.verify_base = mirror_options_.check};
      WW_TRY(session.arrays, ArrayTarget::Make(std::move(arrays.arrays), *process.kernels, *process.pool, options));
      session.kept = std::move(arrays);
      return Ok();
    }
    const auto open = swap_ ? OpenSwapMirror : OpenMirror;
    WW_TRY(session.mirror, open(process.files, *directory_, mirror_options_, *process.kernels, *process.pool));
    return Ok();
  }

  // REQUIRES: the run and the target are open.
  Status Start() {
    Session& session = *session_;
    ProcessTools& process = *session.store.process;
    if (session.arrays != nullptr) {
      WW_RETURN_IF_ERROR(AdoptByDigest(*session.run, *session.arrays));
      session.Start(*session.arrays, options_);
    } else {
      if (mirror_options_.adopt) WW_RETURN_IF_ERROR(AdoptByDigest(*session.run, *session.mirror));
      WW_TRY(session.follower, MakeMirrorFollower(*session.run, *session.mirror, *directory_, options_, session.Tools(),
                                                  process.files, process.random));
    }
    if (pin_.has_value()) session.follower->Pin(*pin_);
    return Ok();
  }

  // A run existed when the mirror got its version, so the address may be wrong.
  Status CheckMayWait() const {
    const auto& held = TargetOf().held();
    if (!held.has_value()) return Ok();
    return Error(ErrorCode::kNotFound, fmt::format("there is no run at {}, though {} holds version {} of one",
                                                   session_->store.store->Name(), *directory_, held->version));
  }

  // Returns false while the run does not exist.
  bool IsRunThere() {
    if (session_->follower != nullptr) return true;
    const Status opened = session_->run.has_value() ? Ok() : session_->OpenRun();
    if (!opened.ok() && opened.error().code() == ErrorCode::kNotFound) return false;
    OkOrRaise(opened);
    OkOrRaise(Start());
    return true;
  }

  void StepOn(std::optional<double> patience) {
    SystemSleeper& sleeper = session_->store.process->sleeper;
    if (patience.has_value()) {
      using Clock = std::chrono::steady_clock;
      constexpr double kLongest = 1e6;
      const std::chrono::duration<double> seconds(std::clamp(*patience, 0.0, kLongest));
      sleeper.EndBy(Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds));
    }
    // However it ends, the next call has a patience of its own.
    const struct Forget {
      SystemSleeper& sleeper;
      ~Forget() { sleeper.EndBy(std::nullopt); }
    } forget{sleeper};
    const bool is_there = IsRunThere();
    Note();
    if (!is_there) return;
    OkOrRaise(StepUntilUpToDate(*session_->follower, [&](const Result<FollowerStep>& step) -> Status {
      Note();
      if (!step.ok()) return step.error();
      CheckSignals();
      return Ok();
    }));
  }

  void CheckOpen() const {
    if (session_ == nullptr) Raise({ErrorCode::kInvalidArgument, "the follower is closed"});
  }
  [[nodiscard]] Target& TargetOf() const {
    return session_->arrays != nullptr ? static_cast<Target&>(*session_->arrays) : *session_->mirror;
  }

  FollowerOptions options_;
  MirrorOptions mirror_options_;
  bool swap_ = false;
  std::optional<std::string> directory_;  // otherwise arrays are followed into

  std::mutex mutex_;  // one thread at a time in the follower
  std::shared_ptr<Session> session_;
  std::optional<Version> pin_;  // as the caller wants it
  std::mutex known_mutex_;
  Known known_;                        // guarded by known_mutex_
  std::optional<std::string> run_id_;  // the same
};

}  // namespace

void BindFollower(nb::module_& module) {
  nb::class_<PyFollower>(module, "Follower")
      .def(nb::init<const std::string&, const nb::object&, const nb::dict&>())
      .def("poll", &PyFollower::Poll, nb::arg("patience").none() = nb::none())
      .def("apply", &PyFollower::Apply)
      .def("undo", &PyFollower::Undo)
      .def("pin", &PyFollower::Pin, nb::arg("version").none())
      .def("unpin", &PyFollower::Unpin)
      .def("verify", &PyFollower::Verify)
      .def("status", &PyFollower::Describe)
      .def("close", &PyFollower::Close)
      .def_prop_ro("run_id", &PyFollower::RunId);
  nb::class_<PyStagedChange>(module, "StagedChange").def("tensors", &PyStagedChange::Tensors);
}

}  // namespace weightwire::python
