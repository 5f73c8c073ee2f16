// A publisher that dies at every one of its effects, with and without a power failure, and starts again: the chain goes
// on, committed versions are exact, nothing is published twice, and there is no gap.
#include <gtest/gtest.h>

#include <set>

#include "publish/world.h"

namespace weightwire::testing {
namespace {

struct Case {
  const char* name;
  bool state_directory;
  bool base_on_disk;
  bool power_failure;
};

class CrashTest : public ::testing::TestWithParam<Case> {
 protected:
  [[nodiscard]] static PublisherOptions Options() {
    PublisherOptions options;
    if (GetParam().state_directory) options = WithStateDirectory(GetParam().base_on_disk);
    options.anchor_every = 2;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, CrashTest,
                         ::testing::Values(Case{"memory", false, false, false},
                                           Case{"killed_with_a_spool", true, false, false},
                                           Case{"killed_with_a_base_file", true, true, false},
                                           Case{"power_failure_with_a_spool", true, false, true},
                                           Case{"power_failure_with_a_base_file", true, true, true}),
                         [](const auto& info) { return std::string(info.param.name); });

// What a trainer would publish: a change of the layout among it, and a state that stays.
std::vector<Model> Versions() {
  std::vector<Model> models = {SmallModel(1)};
  models.push_back(Trained(models[0], 1));
  models.push_back(WithOtherLayout(Trained(models[1], 2)));
  models.push_back(models[2]);
  models.push_back(Trained(models[0], 3));
  return models;
}

// Publishes all of `models` from `from` on, steps as their indices; some work is left over between them. Tickets of
// what was handed over before the process died.
std::vector<Ticket> PublishFrom(Process& process, const std::vector<Model>& models, std::size_t from) {
  std::vector<Ticket> tickets;
  for (std::size_t i = from; i < models.size() && !process.dead(); ++i) {
    auto ticket = process->Publish(BitsOf(models[i]), i);
    if (ticket.ok() && !ticket.value().has_value()) {
      // The base is lost and versions are on their way: one waits for them.
      process.WorkUntilIdle();
      ticket = process->Publish(BitsOf(models[i]), i);
    }
    if (!ticket.ok()) {
      EXPECT_TRUE(process.dead()) << ticket.error().message();
      break;
    }
    if (!ticket.value().has_value()) {
      EXPECT_TRUE(process.dead());
      break;
    }
    tickets.push_back(*ticket.value());
    for (int k = 0; k < 3 && !process.dead(); ++k) process->Work();
  }
  process.WorkUntilIdle();
  return tickets;
}

// The versions are models of the history, in its order, each once.
std::size_t CheckHistory(const std::vector<PublishedVersion>& versions, const std::vector<Model>& models) {
  std::size_t next = 0;
  for (const PublishedVersion& version : versions) {
    const std::uint64_t step = version.known.record.step;
    EXPECT_EQ(step, next) << "twice, or a gap";
    if (step < models.size()) {
      EXPECT_EQ(version.model, models[step]);
    }
    next = step + 1;
  }
  return next;
}

TEST_P(CrashTest, AtEveryEffect) {
  const std::vector<Model> models = Versions();
  bool done = false;
  for (std::uint64_t die_at = 0; !done; ++die_at) {
    SCOPED_TRACE(die_at);
    World world;
    std::set<std::uint64_t> kept;  // steps that must not be lost
    {
      Process process(world, Options(), die_at);
      if (process.Open().ok()) {
        const std::vector<Ticket> tickets = PublishFrom(process, models, 0);
        for (const Ticket& ticket : tickets) {
          const bool spooled = ticket->times[static_cast<std::size_t>(TicketStage::kSpooled)].has_value();
          if (ticket->stage == TicketStage::kCommitted || (spooled && GetParam().state_directory)) {
            kept.insert(ticket->step);
          }
        }
      }
      done = !process.dead();
    }
    if (GetParam().power_failure) world.disk.Crash(world.random);

    // The trainer goes on from what is the newest version once the spool is published.
    Process process(world, Options());
    const Status opened = process.Open();
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    process.WorkUntilIdle();
    const auto before = ReadWholeRun(world.bucket);
    const std::size_t next = CheckHistory(before, models);
    for (const std::uint64_t step : kept) EXPECT_LT(step, next) << "it was spooled or committed, and is lost";
    if (next > 0) {
      EXPECT_EQ(process.MustPublish(models[next - 1], next - 1)->stage, TicketStage::kAlreadyPublished);
    }
    PublishFrom(process, models, next);
    const auto versions = ReadWholeRun(world.bucket);
    ASSERT_EQ(CheckHistory(versions, models), models.size());
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(versions[i].known.hash, before[i].known.hash) << "a version has changed";
    }
    // All of it was rebuilt or kept: there was no need for a rebase.
    for (std::size_t i = 1; i < versions.size(); ++i) EXPECT_TRUE(versions[i].known.record.delta.has_value()) << i;
    // And nothing is left in the spool.
    if (GetParam().state_directory) {
      EXPECT_TRUE(process.files().List("/state/spool").value().empty());
    }
  }
}

// Dies twice: while it takes up what the first death left.
TEST_P(CrashTest, AgainWhileStarting) {
  const std::vector<Model> models = Versions();
  for (std::uint64_t seed = 0; seed < static_cast<std::uint64_t>(Rounds(60)); ++seed) {
    SCOPED_TRACE(seed);
    World world;
    SeededRandom random(seed);
    for (int life = 0; life < 4; ++life) {
      {
        Process process(world, Options(), random.Below(life == 0 ? 120 : 60));
        if (process.Open().ok()) process.WorkUntilIdle();
        const std::size_t next = CheckHistory(ReadWholeRun(world.bucket), models);
        if (!process.dead()) PublishFrom(process, models, next);
      }
      if (GetParam().power_failure) world.disk.Crash(random);
    }
    Process process(world, Options());
    const Status opened = process.Open();
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    process.WorkUntilIdle();
    PublishFrom(process, models, CheckHistory(ReadWholeRun(world.bucket), models));
    ASSERT_EQ(CheckHistory(ReadWholeRun(world.bucket), models), models.size());
  }
}

}  // namespace
}  // namespace weightwire::testing
