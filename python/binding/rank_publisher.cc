// _core.RankPublisher: thin over runner/rank_runner.h. The board is Python's.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "binding.h"
#include "errors.h"
#include "forks.h"
#include "machine.h"
#include "publish/shards.h"
#include "publishing.h"
#include "runner/init_run.h"
#include "runner/rank_runner.h"

namespace nb = nanobind;

namespace weightwire::python {
namespace {

using Session = PublishingSession<RankRunner>;

// All tensors as (name, dtype, shape), and what this rank sends of them as (name, start, extent).
std::shared_ptr<const Shards> ToShards(const nb::list& tensors, const nb::dict& aliases, const nb::list& boxes) {
  auto layout = std::make_shared<const Layout>(ToLayout(tensors, aliases));
  std::vector<Shard> shards;
  for (const nb::handle box : boxes) {
    const auto tensor = layout->Find(nb::cast<std::string>(box[0]));
    if (!tensor.has_value()) Raise({ErrorCode::kInvalidArgument, "a shard is of a tensor that is not in the layout"});
    shards.push_back(
        {*tensor, Box{nb::cast<std::vector<std::uint64_t>>(box[1]), nb::cast<std::vector<std::uint64_t>>(box[2])}});
  }
  return ValueOrRaise(Shards::Make(std::move(layout), std::move(shards)));
}

class PyRankPublisher {
 public:
  PyRankPublisher(const std::string& url, const nb::dict& options, const nb::list& tensors, const nb::dict& aliases,
                  const nb::list& boxes, const std::string& start)
      : session_(MakeForThisProcess<Session>()), shards_(ToShards(tensors, aliases, boxes)) {
    const RunAccess access(url, options);
    const auto carried = nb::cast<std::optional<std::string>>(options["carried"]);
    RankOptions rank;
    rank.rank = nb::cast<std::uint64_t>(options["rank"]);
    rank.ranks = nb::cast<std::uint64_t>(options["ranks"]);
    rank.deadline = ToDuration(nb::cast<double>(options["rank_timeout"])).value();
    rank.anchor_every = nb::cast<std::uint64_t>(options["anchor_every"]);
    rank.anchor_percent = nb::cast<std::uint64_t>(options["anchor_percent"]);
    rank.max_versions = nb::cast<std::uint64_t>(options["spool_versions"]);
    rank.anchor_files.adapter = nb::cast<bool>(options["adapter"]);
    rank.rebuild = nb::cast<bool>(options["rebuild"]);
    if (carried.has_value()) rank.carried_directory = *carried;
    rank.carry_code = nb::cast<bool>(options["carry_code"]);
    const nb::gil_scoped_release release;
    session_->Open(
        access,
        // One rank makes the run; the others come when it is there.
        [&](Store& store) { return rank.rank == 0 ? InitRun(store, access.single_writer, nullptr) : Run::Open(store); },
        [&](const Run& run, const PublisherTools& tools) {
          return RankRunner::Open(run, std::move(rank), tools, start);
        });
  }

  [[nodiscard]] std::string Start() const { return session_->OpenRunner()->start(); }

  // The rank's own shards, by name. Whatever fails here, the other ranks learn of it: a call that they made and this
  // rank did not would leave them a step apart for good.
  PyTicket Publish(const nb::list& tensors, std::uint64_t step, const nb::object& changed) {
    const std::shared_ptr<RankRunner> runner = session_->OpenRunner();
    std::optional<Result<Ticket>> published;
    try {
      PublishedState state = StateOf(tensors);
      state.bits.unchanged = Unchanged(changed);
      const nb::gil_scoped_release release;
      const auto turn = session_->TakeTurn();
      WaitUntilWithoutGil(std::nullopt, [&](nanoseconds slice) { return runner->WaitForRoom(slice); });
      published = runner->Publish(state.bits, step);  // refuses its own errors
    } catch (const std::exception& error) {
      Refuse(step, error.what());
      throw;
    }
    return TicketOf(session_, ValueOrRaise(std::move(*published)));
  }

  void Refuse(std::uint64_t step, const std::string& why) {
    const std::shared_ptr<RankRunner> runner = session_->OpenRunner();
    const nb::gil_scoped_release release;
    const auto turn = session_->TakeTurn();
    runner->Refuse(step, {ErrorCode::kInvalidArgument, why});
  }

  bool Drain(std::optional<double> timeout) {
    return session_->Drain(timeout, [](const RankRunner& runner) {
      if (const auto touch = runner.out_of_touch(); touch.has_value()) Raise(*touch);
    });
  }

  // (messages to put, keys of messages to deliver, keys to remove). The first and the last are given again until they
  // are done.
  nb::tuple BoardWork(double at_most) {
    const std::shared_ptr<RankRunner> runner = session_->OpenRunner();
    RankRunner::BoardWork work;
    {
      const nb::gil_scoped_release release;
      work = runner->NextBoardWork(ToDuration(at_most).value());
    }
    nb::list outgoing;
    for (const BoardMessage& message : work.outgoing) outgoing.append(nb::make_tuple(message.key, message.text));
    nb::list wanted;
    for (const std::string& key : work.wanted) wanted.append(key);
    nb::list unneeded;
    for (const std::string& key : work.unneeded) unneeded.append(key);
    return nb::make_tuple(outgoing, wanted, unneeded);
  }

  void BoardDone() {
    const std::shared_ptr<RankRunner> runner = session_->OpenRunner();
    const nb::gil_scoped_release release;
    runner->BoardDone();
  }

  void Deliver(const std::string& key, const std::string& text) {
    const std::shared_ptr<RankRunner> runner = session_->OpenRunner();
    const nb::gil_scoped_release release;
    runner->Deliver(key, text);
  }

  void LoseTouch(const std::string& why) {
    const std::shared_ptr<RankRunner> runner = session_->OpenRunner();
    const nb::gil_scoped_release release;
    runner->LoseTouch({ErrorCode::kUnavailable, why});
  }

  void RegainTouch() {
    const std::shared_ptr<RankRunner> runner = session_->OpenRunner();
    const nb::gil_scoped_release release;
    runner->RegainTouch();
  }

  void Close() { session_->Close(); }
  [[nodiscard]] nb::dict Describe() const { return session_->Describe(); }
  [[nodiscard]] std::string RunId() const { return session_->RunId(); }

 private:
  [[nodiscard]] PublishedState StateOf(const nb::list& tensors) const {
    PublishedState state = ToStateBits(tensors, nb::dict());
    if (!(*state.bits.layout == *shards_->own())) {
      Raise({ErrorCode::kInvalidArgument,
             "the tensors, types or shards of this rank are others than when the publisher was made: make a new one"});
    }
    state.bits.shards = shards_;
    return state;
  }

  std::shared_ptr<Session> session_;
  const std::shared_ptr<const Shards> shards_;
};

}  // namespace

void BindRankPublisher(nb::module_& module) {
  nb::class_<PyRankPublisher>(module, "RankPublisher")
      .def(nb::init<const std::string&, const nb::dict&, const nb::list&, const nb::dict&, const nb::list&,
                    const std::string&>())
      .def("start", &PyRankPublisher::Start)
      .def("publish", &PyRankPublisher::Publish, nb::arg(), nb::arg(), nb::arg().none())
      .def("refuse", &PyRankPublisher::Refuse)
      .def("board_work", &PyRankPublisher::BoardWork)
      .def("board_done", &PyRankPublisher::BoardDone)
      .def("deliver", &PyRankPublisher::Deliver)
      .def("lose_touch", &PyRankPublisher::LoseTouch)
      .def("regain_touch", &PyRankPublisher::RegainTouch)
      .def("drain", &PyRankPublisher::Drain, nb::arg("timeout").none())
      .def("close", &PyRankPublisher::Close)
      .def("status", &PyRankPublisher::Describe)
      .def_prop_ro("run_id", &PyRankPublisher::RunId);
}

}  // namespace weightwire::python
