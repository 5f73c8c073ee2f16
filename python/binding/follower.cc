// _core.Follower: thin over follow/follower.h.
#include "follow/follower.h"

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
#include "follow/rebuild.h"
#include "follow/targets/array_target.h"
#include "forks.h"
#include "gil.h"
#include "interruptible.h"
#include "process_tools.h"
#include "runner/mirror_follower.h"
#include "store/transfer.h"

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

// A staged change as Python sees it, without a copy: a list of (name, dtype, shape, unit bytes, whole, pieces), one for
// each tensor that changes, by the layout after. `whole` is all bytes of a tensor that is new, and None otherwise; a
// piece is (first unit, offsets from it, new units, old units). The arrays look into the change, which lives as long as
// any of them, and cannot be written to.
nb::list StagedTensors(std::shared_ptr<const StagedChange> change) {
  using Owner = std::shared_ptr<const StagedChange>;
  const StagedChange& staged = *change;
  const nb::capsule owner(new Owner(std::move(change)), [](void* p) noexcept { delete static_cast<Owner*>(p); });
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
    tensors.append(
        nb::make_tuple(spec.name, std::string(NameOf(spec.dtype)), ShapeOf(spec), tensor.unit_bytes(), whole, pieces));
  }
  return tensors;
}

// A follower with all it needs, and one of the targets there are.
class Session {
 public:
  // Opens the run; the rest decides what is followed into what.
  Status Open(const std::string& url, std::shared_ptr<ProcessTools> process, std::uint64_t rate) {
    WW_TRY(store, OpenStoreFor(url, std::move(process), rate));
    WW_TRY(run, Run::Open(*store.store));
    return Ok();
  }

  ~Session() {
    if (store.process != nullptr) store.process->sleeper.Stop();
  }

  void Start(Target& target, FollowerOptions options) {
    options.fetch_threads = TransferOptions().threads;
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
  // `target` is a list as in arrays.h, or the path of a mirror.
  PyFollower(const std::string& url, const nb::object& target, const nb::dict& options) {
    const auto threads = nb::cast<std::size_t>(options["threads"]);
    const auto rate = nb::cast<std::uint64_t>(options["bytes_per_second"]);
    FollowerOptions follower;
    follower.name = nb::cast<std::string>(options["name"]);
    follower.keep_lease = nb::cast<bool>(options["keep_lease"]);
    follower.apply_at_once = false;
    MirrorOptions mirror_options;
    mirror_options.adopt = nb::cast<bool>(options["adopt"]);
    mirror_options.check = nb::cast<bool>(options["check"]);
    TargetArrays arrays;
    std::optional<std::filesystem::path> mirror;
    if (nb::isinstance<nb::list>(target)) {
      arrays = ToTargetArrays(nb::cast<nb::list>(target));
    } else {
      mirror = nb::cast<std::string>(target);
    }
    const GilReleased release;
    const std::shared_ptr<ProcessTools> process = ValueOrRaise(ProcessTools::Make(threads));
    session_ = MakeForThisProcess<Session>();
    RunInterruptibly(process->sleeper, [&]() -> Status {
      WW_RETURN_IF_ERROR(session_->Open(url, process, rate));
      return mirror.has_value() ? FollowMirror(*mirror, mirror_options, std::move(follower))
                                : FollowArrays(std::move(arrays), mirror_options.adopt, std::move(follower));
    });
    Note();
  }

  // Fetches, verifies and stages as far as there is something. True if there is something to apply. What goes wrong is
  // not tried again when so many seconds are over.
  bool Poll(std::optional<double> patience) {
    const GilReleased release;
    const std::lock_guard lock(mutex_);
    Follower& follower = Open();
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
    OkOrRaise(StepUntilUpToDate(follower, [&](const Result<FollowerStep>& step) -> Status {
      Note();
      if (!step.ok()) return step.error();
      CheckSignals();
      return Ok();
    }));
    return HasUpdate();
  }

  // What Apply would do, if it is a staged change: (whether the layout changes, tensors), see StagedTensors. None if it
  // is a whole load.
  nb::object Staged() {
    std::shared_ptr<const StagedChange> change;
    {
      const GilReleased release;
      const std::lock_guard lock(mutex_);
      if (Open().HasStaged()) change = session_->follower->Staged();
    }
    if (change == nullptr) return nb::none();
    const bool changes_layout = change->layout_before().hash() != change->layout_after().hash();
    return nb::make_tuple(changes_layout, StagedTensors(std::move(change)));
  }

  void Apply() {
    const GilReleased release;
    const std::lock_guard lock(mutex_);
    if (Open().HasStaged()) OkOrRaise(session_->follower->Apply());
    if (session_->arrays != nullptr && session_->arrays->waits_for_copy()) OkOrRaise(session_->arrays->CopyToArrays());
  }

  void Undo() {
    const GilReleased release;
    const std::lock_guard lock(mutex_);
    OkOrRaise(Open().Undo());
  }

  void Pin(std::optional<Version> version, bool back) {
    const GilReleased release;
    const std::lock_guard lock(mutex_);
    Open().Pin(version, back);
  }

  // Digests the target in full; raises if it is not what it should be.
  void Check() {
    const GilReleased release;
    const std::lock_guard lock(mutex_);
    Open();
    OkOrRaise(session_->arrays != nullptr ? session_->arrays->CheckArrays() : session_->mirror->Check());
  }

  // The newest version of the run, beyond where the follower was told to stop too.
  std::optional<Version> Newest() {
    const GilReleased release;
    const std::lock_guard lock(mutex_);
    Open();
    std::optional<Version> known;
    if (const auto& held = TargetOf().held(); held.has_value()) known = held->version;
    const auto newest = ValueOrRaise(session_->run->FindNewest(known));
    return newest.has_value() ? std::optional<Version>(newest->record.version) : std::nullopt;
  }

  // Never waits for a poll under way: then it is what was known after its last step.
  nb::dict Describe() {
    Known known;
    {
      const GilReleased release;
      if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) {
        Open();
        Note();
      }
      const std::lock_guard lock(known_mutex_);
      known = known_;
    }
    const auto& [status, applied, counts] = known;
    nb::dict dict;
    std::optional<Version> version;
    std::optional<std::uint64_t> step;
    if (applied.has_value()) {
      version = applied->version;
      step = applied->step;
    }
    dict["version"] = OrNone(version);
    dict["step"] = OrNone(step);
    dict["digest"] = applied.has_value() ? nb::object(nb::str(ToHex(applied->state).c_str())) : nb::none();
    dict["staged"] = OrNone(status.staged);
    dict["newest"] = OrNone(status.newest);
    dict["seconds_behind"] = std::chrono::duration<double>(status.behind).count();
    dict["has_lease"] = status.has_lease;
    dict["waits_for"] = status.waits_for;
    dict["bytes_fetched"] = status.bytes_fetched;
    dict["versions_applied"] = status.versions_applied;
    dict["anchors_loaded"] = status.anchors_loaded;
    dict["objects_fetched_again"] = status.objects_fetched_again;
    dict["detours"] = status.detours;
    dict["requests_bytes_received"] = counts.received_bytes;
    return dict;
  }

  void Close() {
    const GilReleased release;
    const std::lock_guard lock(mutex_);
    if (session_ == nullptr) return;
    const Status synced = session_->mirror != nullptr ? session_->mirror->Sync() : Ok();
    const Status left = session_->follower->ReleaseLease();
    session_.reset();
    OkOrRaise(synced);
    static_cast<void>(left);  // the lease expires
  }

 private:
  // What Describe tells.
  struct Known {
    FollowerStatus status;
    std::optional<Held> applied;
    TraceCounts counts;
  };

  // REQUIRES: mutex_ is held, or nobody else has this yet.
  void Note() {
    const std::lock_guard lock(known_mutex_);
    known_ = {session_->follower->status(),
              session_->arrays != nullptr ? session_->arrays->held_by_arrays() : TargetOf().held(),
              session_->store.counts->Counts()};
  }

  Status FollowArrays(TargetArrays arrays, bool adopt, FollowerOptions options) {
    Session& session = *session_;
    const ProcessTools& process = *session.store.process;
    WW_TRY(session.arrays, ArrayTarget::Make(std::move(arrays.arrays), *process.kernels, *process.pool));
    session.kept = std::move(arrays);
    if (adopt) WW_RETURN_IF_ERROR(AdoptByDigest(*session.run, *session.arrays));
    session.Start(*session.arrays, std::move(options));
    return Ok();
  }

  Status FollowMirror(const std::filesystem::path& directory, const MirrorOptions& mirror, FollowerOptions options) {
    Session& session = *session_;
    ProcessTools& process = *session.store.process;
    WW_TRY(session.mirror, OpenMirror(process.files, directory, mirror, *process.kernels, *process.pool));
    if (mirror.adopt) WW_RETURN_IF_ERROR(AdoptByDigest(*session.run, *session.mirror));
    WW_TRY(session.follower, MakeMirrorFollower(*session.run, *session.mirror, directory, std::move(options),
                                                session.Tools(), process.files, process.random));
    return Ok();
  }

  Follower& Open() {
    if (session_ == nullptr) Raise({ErrorCode::kInvalidArgument, "the follower is closed"});
    return *session_->follower;
  }
  [[nodiscard]] Target& TargetOf() const {
    return session_->arrays != nullptr ? static_cast<Target&>(*session_->arrays) : *session_->mirror;
  }
  [[nodiscard]] bool HasUpdate() const {
    return session_->follower->HasStaged() || (session_->arrays != nullptr && session_->arrays->waits_for_copy());
  }

  std::mutex mutex_;  // one thread at a time in the follower
  std::shared_ptr<Session> session_;
  std::mutex known_mutex_;
  Known known_;  // guarded by known_mutex_
};

}  // namespace

void BindFollower(nb::module_& module) {
  nb::class_<PyFollower>(module, "Follower")
      .def(nb::init<const std::string&, const nb::object&, const nb::dict&>())
      .def("poll", &PyFollower::Poll, nb::arg("patience").none() = nb::none())
      .def("staged", &PyFollower::Staged)
      .def("apply", &PyFollower::Apply)
      .def("undo", &PyFollower::Undo)
      .def("pin", &PyFollower::Pin, nb::arg("version").none(), nb::arg("back"))
      .def("check", &PyFollower::Check)
      .def("newest", &PyFollower::Newest)
      .def("status", &PyFollower::Describe)
      .def("close", &PyFollower::Close);
}

}  // namespace weightwire::python
