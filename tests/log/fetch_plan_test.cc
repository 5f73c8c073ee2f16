#include "log/fetch_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "log/histories.h"
#include "log/watched_store.h"
#include "support/manual_clock.h"
#include "support/memory_store.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

struct Scene {
  Record target;
  std::optional<DeltaStart> held;
  Avoid avoid;
};

// A history with rebases, anchors and deltas that are gone, and somebody who wants to get somewhere.
Scene AnyScene(History& history) {
  Random& random = history.random();
  history.AddWithAnchor(random.Below(200));
  const Version versions = 1 + random.Below(12);
  while (history.size() < versions) {
    if (random.Below(6) == 0) {
      history.AddWithAnchor(random.Below(200));
    } else {
      history.Add(std::vector<std::uint64_t>(random.Below(3), random.Below(60)));
    }
    if (random.Below(3) == 0) history.AddAnchor(random.Below(history.size()), random.Below(200));
  }
  Scene scene;
  scene.target = history.at(random.Below(2) == 0 ? versions - 1 : random.Below(versions));
  if (random.Below(3) != 0) {
    const Version held = random.Below(versions);
    scene.held = DeltaStart{held, history.at(held).delta_bytes};
  }
  for (std::uint64_t gone = random.Below(4); gone > 0; --gone) scene.avoid.deltas.insert(random.Below(versions));
  for (const KnownAnchor& anchor : history.anchors()) {
    if (random.Below(4) == 0) scene.avoid.anchors.insert(anchor.manifest.name);
  }
  return scene;
}

// The bytes of the cheapest way, by trying every edge there is: load an anchor, or add one delta.
std::optional<std::uint64_t> CheapestByForce(const History& history, const Scene& scene) {
  std::map<Version, std::uint64_t> cost;
  const auto reach = [&](Version version, std::uint64_t bytes) {
    const auto [at, fresh] = cost.emplace(version, bytes);
    if (!fresh) at->second = std::min(at->second, bytes);
  };
  if (scene.held.has_value()) reach(scene.held->version, 0);
  for (const KnownAnchor& anchor : history.anchors()) {
    if (!scene.avoid.anchors.contains(anchor.manifest.name)) {
      reach(anchor.manifest.name.version, anchor.manifest.TotalBytes());
    }
  }
  for (Version version = 1; version <= scene.target.version; ++version) {
    const Record& record = history.at(version);
    if (!record.delta.has_value() || scene.avoid.deltas.contains(version) || !cost.contains(version - 1)) continue;
    reach(version, cost[version - 1] + record.OwnDeltaBytes());
  }
  if (!cost.contains(scene.target.version)) return std::nullopt;
  return cost[scene.target.version];
}

// That a way can be gone, and costs what it says.
void CheckWay(const History& history, const Scene& scene, const FetchPlan& way) {
  RC_ASSERT(way.to == scene.target.version);
  std::uint64_t bytes = 0;
  if (way.anchor.has_value()) {
    RC_ASSERT(!scene.avoid.anchors.contains(way.anchor->manifest.name));
    RC_ASSERT(way.anchor->manifest.name.version == way.from);
    bytes += way.anchor->manifest.TotalBytes();
  } else {
    RC_ASSERT(scene.held.has_value() && scene.held->version == way.from);
  }
  for (Version version = way.from + 1; version <= way.to; ++version) {
    RC_ASSERT(history.at(version).delta.has_value());
    RC_ASSERT(!scene.avoid.deltas.contains(version));
    bytes += history.at(version).OwnDeltaBytes();
  }
  RC_ASSERT(bytes == way.bytes);
}

RC_GTEST_PROP(PlanProperty, FindsTheCheapestPlan, (std::uint64_t seed)) {
  ManualClock clock;
  MemoryStore store(&clock);
  History history(store, seed);
  const Scene scene = AnyScene(history);
  const auto best = CheapestByForce(history, scene);
  const auto way = CheapestPlan(scene.target, scene.held, history.anchors(), scene.avoid);
  RC_ASSERT(way.has_value() == best.has_value());
  if (!way.has_value()) return;
  RC_ASSERT(way->bytes == *best);
  CheckWay(history, scene, *way);
}

// In the store it may stop looking early, but only with a way that costs no more than the newest anchor known.
RC_GTEST_PROP(PlanProperty, FindsAPlanIfThereIsOne, (std::uint64_t seed)) {
  ManualClock clock;
  MemoryStore store(&clock);
  History history(store, seed);
  const Scene scene = AnyScene(history);
  const auto best = CheapestByForce(history, scene);
  const auto way = PlanFetch(history.run(), scene.target, scene.held, scene.avoid);
  RC_ASSERT(way.ok() == best.has_value());
  if (!way.ok()) {
    RC_ASSERT(way.error().code() == ErrorCode::kNotFound);
    return;
  }
  CheckWay(history, scene, way.value());
  RC_ASSERT(way.value().bytes == *best ||
            (!way.value().anchor.has_value() && way.value().bytes <= scene.target.anchor->bytes));
}

class PlanTest : public ::testing::Test {
 protected:
  PlanTest() {
    history_.AddWithAnchor(1000);
    for (int i = 0; i < 20; ++i) history_.Add({100});
  }

  [[nodiscard]] DeltaStart Held(Version version) const { return {version, history_.at(version).delta_bytes}; }

  ManualClock clock_;
  MemoryStore memory_{&clock_};
  WatchedStore store_{&memory_};
  History history_{store_, 1};
};

TEST_F(PlanTest, CheapDeltasNeedNoRequest) {
  store_.ResetCounts();
  const auto way = PlanFetch(history_.run(), history_.newest(), Held(15), {});
  ASSERT_TRUE(Succeeds(way));
  EXPECT_EQ(way.value().bytes, 500U);
  EXPECT_EQ(store_.Count(), 0);
}

TEST_F(PlanTest, ALateJoinerLoadsTheNewestAnchor) {
  const KnownAnchor anchor = history_.AddAnchor(18, 300);
  const auto way = PlanFetch(history_.run(), history_.newest(), Held(2), {});
  ASSERT_TRUE(Succeeds(way));
  ASSERT_TRUE(way.value().anchor.has_value());
  EXPECT_EQ(way.value().anchor->manifest.name, anchor.manifest.name);
  EXPECT_EQ(way.value().bytes, 500U);
}

TEST_F(PlanTest, NeverPlansToAnOlderVersion) {
  EXPECT_FALSE(CheapestPlan(history_.at(5), Held(6), {}, {}).has_value());
  const auto way = CheapestPlan(history_.at(5), Held(5), {}, {});
  ASSERT_TRUE(way.has_value());
  EXPECT_EQ(way->bytes, 0U);
}

TEST_F(PlanTest, SkipsDamagedAnchors) {
  // More of them than are weighed.
  for (int i = 0; i < 12; ++i) {
    const KnownAnchor anchor = history_.AddAnchor(19);
    history_.Put(AnchorManifestKey(anchor.manifest.name),
                 i % 2 == 0 ? std::string("damaged") : std::string(65 << 20, ' '));
  }
  const auto way = PlanFetch(history_.run(), history_.newest(), std::nullopt, {});
  ASSERT_TRUE(Succeeds(way));
  EXPECT_EQ(way.value().from, 0U);
}

TEST_F(PlanTest, PassesOnStoreErrors) {
  store_.before = [](StoreOperation request, std::string_view) -> Status {
    if (request == StoreOperation::kGet) return Error(ErrorCode::kUnavailable, "not now");
    return Ok();
  };
  ExpectError(PlanFetch(history_.run(), history_.newest(), std::nullopt, {}), ErrorCode::kUnavailable);
}

TEST_F(PlanTest, ErrorWithoutAPlanSaysWhatToDo) {
  Avoid avoid;
  avoid.deltas = {10};
  ExpectError(PlanFetch(history_.run(), history_.newest(), Held(3), avoid), ErrorCode::kNotFound, "weightwire anchor");
}

TEST_F(PlanTest, HugeSizesDoNotOverflow) {
  KnownAnchor liar = history_.AddAnchor(10);
  liar.manifest.files[0].size_bytes = ~std::uint64_t{0} - liar.manifest.files[1].size_bytes;
  const auto way = CheapestPlan(history_.newest(), std::nullopt, std::vector{history_.anchors()[0], liar}, {});
  ASSERT_TRUE(way.has_value());
  EXPECT_EQ(way->from, 0U);
}

}  // namespace
}  // namespace weightwire
