// Followers, a publisher and collectors over one store, interleaved at random between any two requests of a collector.
//
// What must hold at every moment:
//   - What a follower found after it put its lease and read the marks, and that no mark named, is there as long as the
//     lease lives and asks for it.
//   - The newest version can be reached from an anchor that is whole.
// Same seed, same run.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "log/gc.h"
#include "log/histories.h"
#include "log/lying_store.h"
#include "log/watched_store.h"
#include "support/manual_clock.h"
#include "support/memory_store.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;
using std::chrono::seconds;

// Ways to break the protocol, to see that the test would notice.
struct Faults {
  bool gc_ignores_leases = false;
  bool marks_before_lease = false;  // a follower reads the marks, then puts its lease
  bool marks_vanish = false;        // somebody removes marks although what they name is still there
};

class World;

// Takes a lease on a way to the newest version, and fetches along it.
class FakeFollower {
 public:
  FakeFollower(World* world, Id id) : world_(world), id_(id) {}

  void Step();
  // Something that was promised to it and is missing.
  [[nodiscard]] std::optional<std::string> Missing() const;

 private:
  enum class Phase : std::uint8_t { kIdle, kLease, kMarks, kFetch };

  void Choose();
  void PutLease();
  void ReadMarks();
  void Fetch();
  void GiveUp();
  [[nodiscard]] bool LeaseIsActive() const;

  World* const world_;
  const Id id_;
  Phase phase_ = Phase::kIdle;
  Lease lease_;
  std::optional<WallTime> lease_put_;
  std::vector<std::string> needs_;  // in the order they are fetched
  std::set<std::string> promised_;
  std::uint64_t pause_ = 0;
};

class World {
 public:
  World(std::uint64_t seed, const Faults& faults) : faults(faults), random(seed), history(memory, seed) {
    watched.before = [this](StoreOperation, std::string_view) -> Status {
      // Others act between any two requests of a collector, unless one of them is a collector that did this.
      if (!nested_) {
        nested_ = true;
        for (std::uint64_t i = random.Below(3); i > 0; --i) OthersAct();
        nested_ = false;
      }
      return Ok();
    };
    history.AddWithAnchor();
    for (int i = 0; i < 3; ++i) followers_.push_back(std::make_unique<FakeFollower>(this, NewId(random)));
    collectors_.resize(2);
  }

  void Act() {
    if (random.Below(2) == 0) {
      CollectorActs(random.Below(collectors_.size()));
    } else {
      OthersAct();
    }
  }

  [[nodiscard]] const std::optional<std::string>& complaint() const { return complaint_; }
  [[nodiscard]] std::uint64_t promises_kept() const { return promises_kept_; }
  [[nodiscard]] std::uint64_t removed() const { return removed_; }
  void CountPromise() { ++promises_kept_; }

  // When everybody has gone, two passes leave what the policy keeps, and no mark.
  void Clean() {
    clock.Advance(seconds(kMaxLeaseSeconds + 100));
    GcOptions options;  // it keeps no more than any of those before
    options.policy.anchors = kMinKeptAnchors;
    options.policy.minimum_age = seconds(0);
    const Run run = Run::Open(memory).value();
    for (int pass = 0; pass < 2; ++pass) {
      Collector collector(run, options, random);
      for (;;) {
        const auto step = collector.Step();
        ASSERT_TRUE(Succeeds(step));
        if (step.value().what == GcStep::What::kDone) break;
        clock.Advance(step.value().wait);
      }
      clock.Advance(options.grace + seconds(10));
    }
    EXPECT_TRUE(memory.List(kMarksPrefix, "", 10).value().empty());
    Check();
  }

  const Faults faults;
  ManualClock clock;
  MemoryStore memory{&clock};
  WatchedStore watched{&memory};  // the store of collectors
  SeededRandom random;
  History history;

 private:
  GcOptions Options() {
    GcOptions options;
    options.policy.anchors = 2 + random.Below(2);
    options.policy.versions = random.Below(3) == 0 ? random.Below(6) : 0;
    options.policy.minimum_age = seconds(random.Below(20));
    options.grace = seconds(random.Below(10));
    return options;
  }

  void CollectorActs(std::size_t index) {
    std::unique_ptr<Collector>& collector = collectors_[index];
    // Now and then one ends where it is, and another begins.
    if (collector == nullptr || random.Below(100) == 0) {
      // Its requests go through the store that lets others in between.
      collector = std::make_unique<Collector>(Run::Open(collectors_store_).value(), Options(), random);
    }
    for (std::uint64_t i = random.Below(10); i > 0 && collector != nullptr; --i) {
      const int removals = watched.Count(StoreOperation::kRemove);
      const auto step = collector->Step();
      if (!step.ok()) {
        complaint_ = "a collector failed: " + step.error().message();
        return;
      }
      // Only a removal can break anything.
      if (watched.Count(StoreOperation::kRemove) != removals) Check();
      if (step.value().what == GcStep::What::kWaits) return;
      if (step.value().what == GcStep::What::kDone) {
        removed_ += collector->progress().removed.objects;
        collector = nullptr;
      }
    }
  }

  void OthersAct() {
    switch (random.Below(12)) {
      case 0:
        clock.Advance(seconds(random.Below(8)));
        break;
      case 1:
        PublisherActs();
        break;
      case 2:
        if (faults.marks_vanish) RemoveAMark();
        break;
      default:
        followers_[random.Below(followers_.size())]->Step();
        break;
    }
  }

  void RemoveAMark() {
    const auto marks = memory.List(kMarksPrefix, "", 10);
    if (marks.value().empty()) return;
    EXPECT_TRUE(Succeeds(memory.Remove(marks.value().front().key)));
  }

  void PublisherActs() {
    const std::uint64_t what = random.Below(32);
    if (what == 0) {
      history.AddWithAnchor();
    } else if (what < 7) {
      // Not always of the newest version.
      const Version newest = history.newest().version;
      history.AddAnchor(newest - std::min<Version>(newest, random.Below(4)));
    } else {
      history.Add(std::vector<std::uint64_t>(random.Below(3), 1));
    }
  }

  void Check() {
    if (complaint_.has_value()) return;
    for (const auto& follower : followers_) {
      const auto missing = follower->Missing();
      if (missing.has_value()) complaint_ = "a lease needs " + *missing + ", which is gone";
    }
    if (!NewestIsReachable()) complaint_ = "the newest version cannot be reached";
  }

  bool NewestIsReachable() {
    const auto has = [&](const std::string& key) { return memory.Stat(key).ok(); };
    const Record& newest = history.newest();
    // The lowest version from which deltas lead here.
    Version from = newest.version;
    while (from > newest.chain) {
      const auto& parts = *history.at(from).delta;
      if (!std::all_of(parts.begin(), parts.end(), [&](const PartRef& part) { return has(part.key); })) break;
      --from;
    }
    return std::any_of(history.anchors().rbegin(), history.anchors().rend(), [&](const KnownAnchor& anchor) {
      const AnchorManifest& manifest = anchor.manifest;
      return manifest.name.version >= from && has(AnchorManifestKey(manifest.name)) &&
             std::all_of(manifest.files.begin(), manifest.files.end(),
                         [&](const AnchorFile& file) { return has(AnchorFolder(manifest.name) + file.name); });
    });
  }

  LyingStore collectors_store_{watched, faults.gc_ignores_leases ? Lie::kNoLeases : Lie::kNone};
  std::vector<std::unique_ptr<FakeFollower>> followers_;
  std::vector<std::unique_ptr<Collector>> collectors_;
  bool nested_ = false;
  std::optional<std::string> complaint_;
  std::uint64_t promises_kept_ = 0;
  std::uint64_t removed_ = 0;
};

bool FakeFollower::LeaseIsActive() const {
  return lease_put_.has_value() && world_->clock.Wall() - *lease_put_ <= seconds(lease_.seconds);
}

std::optional<std::string> FakeFollower::Missing() const {
  if (!LeaseIsActive()) return std::nullopt;
  for (const std::string& key : promised_) {
    if (!world_->memory.Stat(key).ok()) return key;
  }
  return std::nullopt;
}

void FakeFollower::Step() {
  // Now and then it stands still for a while, between any two of its requests.
  if (pause_ > 0) {
    --pause_;
    return;
  }
  if (world_->random.Below(4) == 0) pause_ = world_->random.Below(40);
  switch (phase_) {
    case Phase::kIdle:
      return Choose();
    case Phase::kLease:
      return PutLease();
    case Phase::kMarks:
      return ReadMarks();
    case Phase::kFetch:
      return Fetch();
  }
}

// Some way to the newest version, the older the better: from an anchor, or from a version that it says it holds.
void FakeFollower::Choose() {
  const History& history = world_->history;
  const Record newest = history.newest();
  lease_ = {};
  lease_.run = history.run().id();
  lease_.follower = id_;
  lease_.seconds = kMinLeaseSeconds;
  promised_.clear();
  needs_.clear();
  const auto exists = [&](const std::string& key) { return world_->memory.Stat(key).ok(); };
  Version from = newest.version;
  while (from > newest.chain && world_->random.Below(30) != 0) {
    const auto& parts = *history.at(from).delta;
    if (!std::all_of(parts.begin(), parts.end(), [&](const PartRef& part) { return exists(part.key); })) break;
    --from;
  }
  if (world_->random.Below(2) == 0) {
    const auto anchor = std::find_if(history.anchors().begin(), history.anchors().end(), [&](const KnownAnchor& known) {
      return known.manifest.name.version >= from && exists(AnchorManifestKey(known.manifest.name));
    });
    if (anchor == history.anchors().end()) return;
    const AnchorManifest& manifest = anchor->manifest;
    from = manifest.name.version;
    lease_.needs_anchor = manifest.name;
    needs_.push_back(AnchorManifestKey(manifest.name));
    for (const AnchorFile& file : manifest.files) needs_.push_back(AnchorFolder(manifest.name) + file.name);
  }
  lease_.needs_from = from;
  for (Version version = from + 1; version <= newest.version; ++version) {
    for (const PartRef& part : *history.at(version).delta) needs_.push_back(part.key);
  }
  phase_ = world_->faults.marks_before_lease ? Phase::kMarks : Phase::kLease;
}

void FakeFollower::PutLease() {
  if (!Succeeds(world_->history.run().PutLease(lease_))) return;
  lease_put_ = world_->clock.Wall();
  phase_ = world_->faults.marks_before_lease ? Phase::kFetch : Phase::kMarks;
}

void FakeFollower::ReadMarks() {
  const auto marks = world_->history.run().ReadMarks();
  if (!Succeeds(marks)) return;
  if (!world_->faults.marks_before_lease && !LeaseIsActive()) return GiveUp();
  phase_ = world_->faults.marks_before_lease ? Phase::kLease : Phase::kFetch;
  for (const std::string& key : needs_) {
    const bool marked =
        std::any_of(marks.value().begin(), marks.value().end(), [&](const Mark& mark) { return mark.Names(key); });
    // Marked or gone: another way is needed.
    if (marked || !world_->memory.Stat(key).ok()) return GiveUp();
    promised_.insert(key);
  }
}

void FakeFollower::GiveUp() {
  promised_.clear();
  if (!Succeeds(world_->history.run().RemoveLease(id_))) return;
  lease_put_ = std::nullopt;
  phase_ = Phase::kIdle;
}

void FakeFollower::Fetch() {
  if (needs_.empty() || !LeaseIsActive()) return GiveUp();
  if (world_->random.Below(3) == 0) {  // renewed in time, for what is still needed
    if (!needs_.front().starts_with(kAnchorsPrefix)) {
      lease_.needs_anchor = std::nullopt;
      lease_.needs_from = DeltaOfKey(needs_.front())->from;
    }
    return PutLease();
  }
  if (world_->random.Below(3) != 0) return;  // slow
  const std::string key = needs_.front();
  if (promised_.contains(key) && world_->memory.Stat(key).ok()) world_->CountPromise();
  needs_.erase(needs_.begin());
  promised_.erase(key);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeeds = 40;
#else
constexpr std::uint64_t kSeeds = 150;
#endif
constexpr int kActions = 800;

std::optional<std::string> ComplaintOf(std::uint64_t seed, const Faults& faults) {
  World world(seed, faults);
  for (int i = 0; i < kActions && !world.complaint().has_value(); ++i) world.Act();
  return world.complaint();
}

TEST(GcInterleaving, NeverDeletesWhatALeaseNeeds) {
  std::uint64_t promises = 0;
  std::uint64_t removed = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    World world(seed, {});
    for (int i = 0; i < kActions && !world.complaint().has_value(); ++i) world.Act();
    ASSERT_EQ(world.complaint(), std::nullopt) << "seed " << seed;
    world.Clean();
    ASSERT_EQ(world.complaint(), std::nullopt) << "seed " << seed;
    promises += world.promises_kept();
    removed += world.removed();
  }
  // It was about something.
  EXPECT_GT(promises, 10 * kSeeds);
  EXPECT_GT(removed, 10 * kSeeds);
}

bool IsFound(const Faults& faults) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    if (ComplaintOf(seed, faults).has_value()) return true;
  }
  return false;
}

TEST(GcInterleaving, FindsAGcThatIgnoresLeases) {
  Faults faults;
  faults.gc_ignores_leases = true;
  EXPECT_TRUE(IsFound(faults));
}

TEST(GcInterleaving, FindsAFollowerThatReadsTheMarksTooEarly) {
  Faults faults;
  faults.marks_before_lease = true;
  EXPECT_TRUE(IsFound(faults));
}

TEST(GcInterleaving, FindsThatMarksAreTakenAwayTooEarly) {
  Faults faults;
  faults.marks_vanish = true;
  EXPECT_TRUE(IsFound(faults));
}

TEST(GcInterleaving, TheSameSeedIsTheSameRun) {
  Faults faults;
  faults.gc_ignores_leases = true;
  for (std::uint64_t seed = 0; seed < 10; ++seed) EXPECT_EQ(ComplaintOf(seed, faults), ComplaintOf(seed, faults));
}

}  // namespace
}  // namespace weightwire
