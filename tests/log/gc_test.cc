#include "log/gc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "log/histories.h"
#include "log/lying_store.h"
#include "log/watched_store.h"
#include "support/manual_clock.h"
#include "support/memory_store.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;
using std::chrono::hours;
using std::chrono::minutes;

class GcTest : public ::testing::Test {
 protected:
  GcTest() {
    options_.policy.anchors = 2;
    options_.grace = minutes(10);
  }

  // Anchors at 0, 10, 20, 30; 35 versions; all of it old.
  void Fill() {
    history_.AddWithAnchor();
    while (history_.size() < 36) {
      history_.Add();
      if (history_.newest().version % 10 == 0) anchors_.push_back(history_.AddAnchor(history_.newest().version));
    }
    clock_.Advance(hours(48));
  }

  // Steps until it waits or is done; what it said last.
  static GcStep StepOn(Collector& collector) {
    for (int i = 0; i < 100'000; ++i) {
      const auto step = collector.Step();
      if (!Succeeds(step)) break;
      if (step.value().what != GcStep::What::kWorked) return step.value();
    }
    ADD_FAILURE() << "it does not end";
    return {};
  }

  // All the way, waiting as told.
  void Finish(Collector& collector) {
    for (int i = 0; i < 100; ++i) {
      const GcStep step = StepOn(collector);
      if (step.what == GcStep::What::kDone) return;
      ASSERT_GT(step.wait.count(), 0);
      clock_.Advance(step.wait);
    }
    FAIL() << "it waits for ever";
  }

  GcProgress Collect() {
    Collector collector(history_.run(), options_, random_);
    Finish(collector);
    return collector.progress();
  }

  [[nodiscard]] std::set<std::string> Keys(std::string_view prefix = "") {
    std::set<std::string> keys;
    const auto listed = memory_.List(prefix, "", kMaxListEntries);
    for (const ObjectInfo& object : listed.value()) keys.insert(object.key);
    return keys;
  }
  [[nodiscard]] bool Has(const std::string& key) { return memory_.Stat(key).ok(); }
  [[nodiscard]] bool HasDelta(Version version) { return Has(history_.at(version).delta->front().key); }
  [[nodiscard]] bool HasAnchor(const KnownAnchor& anchor) {
    const std::size_t objects = Keys(AnchorFolder(anchor.manifest.name)).size();
    EXPECT_TRUE(objects == 0 || objects == anchor.manifest.files.size() + 1);
    return objects != 0;
  }

  Lease PutLease(std::optional<Version> needs_from, std::optional<AnchorName> needs_anchor = std::nullopt,
                 std::uint64_t seconds = 3600) {
    Lease lease;
    lease.run = history_.run().id();
    lease.follower = NewId(random_);
    lease.needs_from = needs_from;
    lease.needs_anchor = needs_anchor;
    lease.seconds = seconds;
    EXPECT_TRUE(Succeeds(history_.run().PutLease(lease)));
    return lease;
  }

  ManualClock clock_;
  MemoryStore memory_{&clock_};
  WatchedStore store_{&memory_};
  SeededRandom random_{7};
  History history_{store_, 1};
  std::vector<KnownAnchor> anchors_;
  GcOptions options_;
};

TEST_F(GcTest, KeepsTheNewestAnchorsAndTheDeltasAfterThem) {
  Fill();
  const std::set<std::string> before = Keys();
  const GcProgress progress = Collect();
  EXPECT_FALSE(HasAnchor(history_.anchors()[0]));
  EXPECT_FALSE(HasAnchor(anchors_[0]));
  EXPECT_TRUE(HasAnchor(anchors_[1]));
  EXPECT_TRUE(HasAnchor(anchors_[2]));
  for (Version version = 1; version <= 35; ++version) EXPECT_EQ(HasDelta(version), version > 20) << version;
  EXPECT_TRUE(Keys(kMarksPrefix).empty());
  for (Version version = 0; version <= 35; ++version) EXPECT_TRUE(Has(RecordKey(version)));
  EXPECT_TRUE(Has("run.json"));
  EXPECT_EQ(progress.removed.objects, before.size() - Keys().size());
  EXPECT_EQ(progress.removed, progress.deletable);
  EXPECT_EQ(progress.removed.objects, 2U * 3 + 20);
  EXPECT_FALSE(progress.more);
  // And again there is nothing to do.
  EXPECT_EQ(Collect().deletable, GcAmount());
}

TEST_F(GcTest, MarksWhatItWillDeleteAndWaitsForTheGraceTime) {
  Fill();
  const std::set<std::string> before = Keys();
  Collector collector(history_.run(), options_, random_);
  const GcStep step = StepOn(collector);
  ASSERT_EQ(step.what, GcStep::What::kWaits);
  EXPECT_GE(step.wait, options_.grace);
  const std::vector<Mark> marks = history_.run().ReadMarks().value();
  ASSERT_EQ(marks.size(), 1U);
  std::set<std::string> named;
  for (const Removal& removal : collector.deletable()) named.insert(removal.key);
  EXPECT_EQ(std::set<std::string>(marks[0].keys.begin(), marks[0].keys.end()), named);
  clock_.Advance(options_.grace - std::chrono::seconds(1));
  EXPECT_EQ(StepOn(collector).what, GcStep::What::kWaits);
  std::set<std::string> now = Keys();
  EXPECT_EQ(now.erase(MarkKey(marks[0].id)), 1U);
  EXPECT_EQ(now, before);
  Finish(collector);
  for (const std::string& key : Keys()) EXPECT_FALSE(marks[0].Names(key)) << key;
}

TEST_F(GcTest, DryRunWritesNothing) {
  Fill();
  options_.dry_run = true;
  store_.before = [](StoreOperation request, std::string_view key) -> Status {
    EXPECT_TRUE(request != StoreOperation::kPut && request != StoreOperation::kPutIfAbsent &&
                request != StoreOperation::kRemove)
        << key;
    return Ok();
  };
  Collector collector(history_.run(), options_, random_);
  EXPECT_EQ(StepOn(collector).what, GcStep::What::kDone);
  EXPECT_EQ(collector.deletable().size(), 22U);
  const std::uint64_t lists = ToJson(history_.anchors()[0].manifest).size() + ToJson(anchors_[0].manifest).size();
  EXPECT_EQ(collector.progress().deletable, (GcAmount{26, 2 * 100 + lists + 20 * 10}));
}

TEST_F(GcTest, DeletesNothingInAnEmptyRun) {
  EXPECT_EQ(Collect().deletable, GcAmount());
  history_.AddWithAnchor();
  clock_.Advance(hours(48));
  EXPECT_EQ(Collect().deletable, GcAmount());
}

TEST_F(GcTest, KeepsObjectsBelowTheMinimumAge) {
  Fill();
  options_.policy.minimum_age = hours(72);
  EXPECT_EQ(Collect().deletable, GcAmount());
  options_.policy.minimum_age = hours(24);
  EXPECT_NE(Collect().removed, GcAmount());
}

TEST_F(GcTest, SaysWhichRuleKeepsWhat) {
  Fill();
  history_.PutAnchor(40, 0, 100);
  options_.dry_run = true;
  options_.policy.versions = 20;
  const auto objects = [](const GcProgress& progress) {
    const GcKept& kept = progress.kept;
    GcAmount all = progress.deletable;
    for (const GcAmount& amount :
         {kept.uncommitted, kept.by_anchors, kept.by_versions, kept.by_minimum_age, kept.by_leases}) {
      all += amount;
    }
    EXPECT_EQ(all, progress.seen) << "every object is counted once";
    return std::vector<std::uint64_t>{kept.uncommitted.objects,    kept.by_anchors.objects, kept.by_versions.objects,
                                      kept.by_minimum_age.objects, kept.by_leases.objects,  progress.deletable.objects};
  };
  // An anchor has 3 objects, a delta 1. The anchors 20 and 30 stay, then that of 10 for version 16.
  EXPECT_EQ(objects(Collect()), (std::vector<std::uint64_t>{3, 2 * 3 + 15, 3 + 10, 0, 0, 3 + 10}));
  options_.policy.minimum_age = hours(72);
  EXPECT_EQ(objects(Collect()), (std::vector<std::uint64_t>{3, 2 * 3 + 15, 3 + 10, 3 + 10, 0, 0}));
  options_.policy.minimum_age = hours(24);
  options_.policy.versions = 0;
  PutLease(15, anchors_[0].manifest.name);
  EXPECT_EQ(objects(Collect()), (std::vector<std::uint64_t>{3, 2 * 3 + 15, 0, 0, 3 + 5, 3 + 15}));
  // Beside a delta that stays, parts that nobody committed go.
  history_.Put(PartKey(29, 30, testing::AnyHash(random_)), "unnamed");
  clock_.Advance(hours(48));
  EXPECT_EQ(objects(Collect()), (std::vector<std::uint64_t>{3, 2 * 3 + 15, 0, 0, 0, 2 * 3 + 20 + 1}));
}

TEST_F(GcTest, KeepsWhatActiveLeasesNeed) {
  Fill();
  options_.grace = std::chrono::seconds(0);
  PutLease(15, anchors_[0].manifest.name);
  GcProgress progress = Collect();
  EXPECT_EQ(progress.active_leases, 1U);
  EXPECT_EQ(progress.kept.by_leases.objects, 5U + 3);
  EXPECT_TRUE(HasAnchor(anchors_[0]));
  for (Version version = 1; version <= 35; ++version) EXPECT_EQ(HasDelta(version), version > 15) << version;
  // A dead one keeps nothing.
  clock_.Advance(hours(2));
  progress = Collect();
  EXPECT_EQ(progress.active_leases, 0U);
  EXPECT_FALSE(HasAnchor(anchors_[0]));
  EXPECT_FALSE(HasDelta(16));
}

TEST_F(GcTest, RespectsLeasesWrittenDuringTheGraceTime) {
  Fill();
  Collector collector(history_.run(), options_, random_);
  ASSERT_EQ(StepOn(collector).what, GcStep::What::kWaits);
  PutLease(12, history_.anchors()[0].manifest.name);
  Finish(collector);
  EXPECT_TRUE(HasAnchor(history_.anchors()[0]));
  EXPECT_FALSE(HasDelta(12));
  EXPECT_TRUE(HasDelta(13));
  EXPECT_EQ(collector.progress().kept.by_leases.objects, 8U + 3);
  EXPECT_TRUE(Keys(kMarksPrefix).empty());
}

TEST_F(GcTest, DeletesWhatALeaseNeedsIfItsStoreHidesTheLeases) {
  Fill();
  PutLease(0, history_.anchors()[0].manifest.name);
  testing::LyingStore store(store_, testing::Lie::kNoLeases);
  Collector collector(Run::Open(store).value(), options_, random_);
  Finish(collector);
  EXPECT_FALSE(HasDelta(1));
  EXPECT_FALSE(HasAnchor(history_.anchors()[0]));
}

TEST_F(GcTest, UnreadableLeaseBlocksGcWhileItMayBeActive) {
  Fill();
  history_.Put(LeaseKey(NewId(random_)), "damaged");
  GcProgress progress = Collect();
  EXPECT_EQ(progress.unreadable_leases, 1U);
  EXPECT_NE(progress.blocked, "");
  EXPECT_EQ(progress.removed, GcAmount());
  clock_.Advance(std::chrono::seconds(kMaxLeaseSeconds + 10));
  // And one that comes during the grace time.
  Collector collector(history_.run(), options_, random_);
  ASSERT_EQ(StepOn(collector).what, GcStep::What::kWaits);
  history_.Put(LeaseKey(NewId(random_)), "damaged");
  Finish(collector);
  EXPECT_EQ(collector.progress().unreadable_leases, 1U);
  EXPECT_NE(collector.progress().blocked, "");
  EXPECT_EQ(collector.progress().removed, GcAmount());
  EXPECT_TRUE(Keys(kMarksPrefix).empty());
}

TEST_F(GcTest, DeletesOldPartsThatNoRecordNames) {
  Fill();
  const std::string stray = PartKey(24, 25, Sha256Of("stray"));
  const std::string to_come = PartKey(35, 36, Sha256Of("to come"));
  const std::string far_to_come = PartKey(40, 41, Sha256Of("to come"));
  const std::string skipping = PartKey(21, 29, Sha256Of("skipping"));
  const std::string deeper = DeltaFolder(24, 25) + "deeper/x";
  for (const std::string& key : {stray, to_come, far_to_come, skipping, deeper}) history_.Put(key, "x");
  clock_.Advance(hours(48));
  const std::string young = PartKey(25, 26, Sha256Of("young"));
  history_.Put(young, "x");
  Collect();
  EXPECT_FALSE(Has(stray));
  for (const std::string& key : {to_come, far_to_come, skipping, deeper, young}) EXPECT_TRUE(Has(key)) << key;
  for (Version version = 21; version <= 35; ++version) EXPECT_TRUE(HasDelta(version)) << version;
}

TEST_F(GcTest, KeepsThePartsOfAnUnreadableRecord) {
  Fill();
  const std::string stray = PartKey(24, 25, Sha256Of("stray"));
  history_.Put(stray, "x");
  history_.Put(RecordKey(25), "damaged");
  clock_.Advance(hours(48));
  Collect();
  EXPECT_TRUE(Has(stray));
  EXPECT_FALSE(HasDelta(20));
}

TEST_F(GcTest, DeletesOldAnchorsWithoutManifest) {
  Fill();
  const std::string folder = AnchorFolder({35, NewId(random_)});
  const std::string to_come = AnchorFolder({36, NewId(random_)});
  for (const std::string& place : {folder, to_come}) {
    history_.Put(place + "model.safetensors", "x");
    history_.Put(place + "sub/vocabulary.txt", "x");
  }
  clock_.Advance(hours(23));
  Collect();
  EXPECT_EQ(Keys(folder).size(), 2U);
  clock_.Advance(hours(2));
  Collect();
  EXPECT_TRUE(Keys(folder).empty());
  EXPECT_EQ(Keys(to_come).size(), 2U);
}

TEST_F(GcTest, KeepsAnAnchorCompletedDuringTheGraceTime) {
  Fill();
  const KnownAnchor anchor = history_.AddAnchor(35);
  const std::string json = ToJson(anchor.manifest);
  ASSERT_TRUE(Succeeds(memory_.Remove(AnchorManifestKey(anchor.manifest.name))));
  clock_.Advance(hours(48));
  Collector collector(history_.run(), options_, random_);
  ASSERT_EQ(StepOn(collector).what, GcStep::What::kWaits);
  EXPECT_TRUE(history_.run().ReadMarks().value()[0].Names(AnchorManifestKey(anchor.manifest.name)));
  history_.Put(AnchorManifestKey(anchor.manifest.name), json);
  Finish(collector);
  EXPECT_TRUE(HasAnchor(anchor));
}

TEST_F(GcTest, DoesNotCountAnchorsWithMissingOrShortFiles) {
  Fill();
  // The newest lacks a file, the one before has a short one: the next two stay.
  ASSERT_TRUE(Succeeds(memory_.Remove(AnchorFolder(anchors_[2].manifest.name) + "config.json")));
  history_.Put(AnchorFolder(anchors_[1].manifest.name) + "config.json", "short");
  clock_.Advance(hours(48));
  Collect();
  EXPECT_TRUE(HasAnchor(history_.anchors()[0]));
  EXPECT_TRUE(HasAnchor(anchors_[0]));
  EXPECT_TRUE(HasAnchor(anchors_[1]));  // broken, but perhaps it can be mended
  for (Version version = 1; version <= 35; ++version) EXPECT_TRUE(HasDelta(version));
}

TEST_F(GcTest, DoesNotCountAnchorsWithADamagedManifest) {
  Fill();
  history_.Put(AnchorManifestKey(anchors_[2].manifest.name), "damaged");
  clock_.Advance(hours(48));
  Collect();
  EXPECT_TRUE(HasAnchor(anchors_[0]));
  EXPECT_TRUE(HasDelta(11));
  EXPECT_FALSE(HasDelta(10));
}

TEST_F(GcTest, DeletesTheAnchorOfARebaseThatLostTheRace) {
  Fill();
  KnownAnchor lost = history_.AddAnchor(33);
  lost.manifest.state = Sha256Of("another state");
  history_.Put(AnchorManifestKey(lost.manifest.name), ToJson(lost.manifest));
  clock_.Advance(hours(48));
  Collect();
  EXPECT_FALSE(HasAnchor(lost));
  EXPECT_TRUE(HasAnchor(anchors_[1]));
  EXPECT_TRUE(HasAnchor(anchors_[2]));
}

TEST_F(GcTest, KeepsWantedVersionsReachableAcrossARebase) {
  Fill();
  history_.AddWithAnchor();  // 36, a rebase
  for (int i = 0; i < 4; ++i) history_.Add();
  const KnownAnchor last = history_.AddAnchor(40);
  clock_.Advance(hours(48));
  options_.policy.versions = 16;  // 25 to 40
  Collect();
  EXPECT_FALSE(HasAnchor(anchors_[0]));
  EXPECT_TRUE(HasAnchor(anchors_[1]));
  EXPECT_FALSE(HasAnchor(anchors_[2]));
  EXPECT_TRUE(HasAnchor(last));
  EXPECT_FALSE(HasDelta(20));
  EXPECT_TRUE(HasDelta(21));
}

TEST_F(GcTest, ContinuesAfterAnErrorInAnyRequest) {
  Fill();
  const std::set<std::string> before = Keys();
  store_.before = [&](StoreOperation, std::string_view) -> Status {
    if (random_.Below(5) == 0) return Error(ErrorCode::kUnavailable, "not now");
    return Ok();
  };
  Collector collector(history_.run(), options_, random_);
  int errors = 0;
  for (;;) {
    const auto step = collector.Step();
    if (!step.ok()) {
      ASSERT_LT(++errors, 100'000);
      continue;
    }
    if (step.value().what == GcStep::What::kDone) break;
    clock_.Advance(step.value().wait);
  }
  store_.before = nullptr;
  EXPECT_GT(errors, 10);
  EXPECT_EQ(collector.progress().removed, (collector.progress().deletable));
  EXPECT_EQ(Keys().size(), before.size() - 26);
  EXPECT_TRUE(Keys(kMarksPrefix).empty());
}

// A process that ends after any number of steps, and another that does the rest.
TEST_F(GcTest, AnotherCollectorFinishesAfterACrashAtAnyStep) {
  Fill();
  const std::set<std::string> full = Keys();
  std::map<std::string, std::vector<std::uint8_t>> bytes;
  for (const std::string& key : full) bytes[key] = memory_.Get(key, 1 << 20).value();
  std::set<std::string> expected;
  for (int crash_after = 0;; ++crash_after) {
    ManualClock clock;
    MemoryStore memory(&clock);
    for (const auto& [key, content] : bytes) ASSERT_TRUE(Succeeds(memory.Put(key, content)));
    clock.Advance(hours(48));
    const weightwire::Run run = Run::Open(memory).value();
    const auto collect = [&](int most) {
      Collector collector(run, options_, random_);
      for (int steps = 0; steps < most; ++steps) {
        const auto step = collector.Step();
        if (!Succeeds(step) || step.value().what == GcStep::What::kDone) return true;
        clock.Advance(step.value().wait);
      }
      return false;
    };
    const bool finished = collect(crash_after);
    if (!finished) {
      clock.Advance(options_.grace + minutes(1));
      ASSERT_TRUE(collect(100'000));
    }
    std::set<std::string> left;
    const auto listed = memory.List("", "", kMaxListEntries);
    for (const ObjectInfo& object : listed.value()) left.insert(object.key);
    if (expected.empty()) expected = left;
    ASSERT_EQ(left, expected) << "ended after " << crash_after << " steps";
    if (finished) break;
  }
  EXPECT_EQ(expected.size(), full.size() - 26);
}

TEST_F(GcTest, SkipsTheGraceTimeForKeysInAnOldMark) {
  Fill();
  {
    Collector crashed(history_.run(), options_, random_);
    ASSERT_EQ(StepOn(crashed).what, GcStep::What::kWaits);
  }
  ASSERT_EQ(Keys(kMarksPrefix).size(), 1U);
  clock_.Advance(options_.grace + minutes(1));
  Collector collector(history_.run(), options_, random_);
  EXPECT_EQ(StepOn(collector).what, GcStep::What::kDone);
  EXPECT_EQ(collector.progress().removed.objects, 26U);
  EXPECT_TRUE(Keys(kMarksPrefix).empty());
}

TEST_F(GcTest, KeepsAnothersMarkWhileItsKeysExist) {
  Fill();
  {
    Collector crashed(history_.run(), options_, random_);
    ASSERT_EQ(StepOn(crashed).what, GcStep::What::kWaits);
  }
  const std::set<std::string> marks = Keys(kMarksPrefix);
  clock_.Advance(options_.grace + minutes(1));
  const Lease lease = PutLease(19);
  Collect();
  // Its collector may only be slow, and have read the leases before this one came.
  EXPECT_TRUE(HasDelta(20));
  EXPECT_EQ(Keys(kMarksPrefix), marks);
  ASSERT_TRUE(Succeeds(history_.run().RemoveLease(lease.follower)));
  Collect();
  EXPECT_FALSE(HasDelta(20));
  EXPECT_TRUE(Keys(kMarksPrefix).empty());
}

TEST_F(GcTest, KeepsAnothersYoungMark) {
  Fill();
  Collector first(history_.run(), options_, random_);
  ASSERT_EQ(StepOn(first).what, GcStep::What::kWaits);
  Collector second(history_.run(), options_, random_);
  ASSERT_EQ(StepOn(second).what, GcStep::What::kWaits);
  EXPECT_EQ(Keys(kMarksPrefix).size(), 2U);
  Finish(second);
  EXPECT_EQ(Keys(kMarksPrefix).size(), 1U);
  Finish(first);
  EXPECT_TRUE(Keys(kMarksPrefix).empty());
  EXPECT_EQ(first.progress().removed, GcAmount());
}

TEST_F(GcTest, StopsWhenItsMarkIsDeleted) {
  Fill();
  const std::set<std::string> before = Keys();
  Collector collector(history_.run(), options_, random_);
  ASSERT_EQ(StepOn(collector).what, GcStep::What::kWaits);
  ASSERT_TRUE(Succeeds(memory_.Remove(*Keys(kMarksPrefix).begin())));
  Finish(collector);
  EXPECT_EQ(Keys(), before);
}

TEST_F(GcTest, WithdrawSucceedsUntilTheFirstDeletion) {
  Fill();
  const std::set<std::string> before = Keys();
  for (int steps = 0;; ++steps) {
    SCOPED_TRACE(steps);
    Collector collector(history_.run(), options_, random_);
    for (int i = 0; i < steps; ++i) {
      const auto step = collector.Step();
      ASSERT_TRUE(Succeeds(step));
      clock_.Advance(step.value().wait);
    }
    const auto withdrawn = collector.Withdraw();
    ASSERT_TRUE(Succeeds(withdrawn));
    if (!withdrawn.value()) {
      EXPECT_GT(steps, 5);
      EXPECT_FALSE(Keys(kMarksPrefix).empty());
      break;
    }
    ASSERT_EQ(Keys(), before);
  }
  EXPECT_EQ(Collect().removed.objects, 2U * 3 + 20);
}

TEST_F(GcTest, DeletesNothingWithoutAWholeAnchor) {
  Fill();
  for (const std::string& key : Keys(kAnchorsPrefix)) ASSERT_TRUE(Succeeds(memory_.Remove(key)));
  Collector collector(history_.run(), options_, random_);
  const GcStep step = StepOn(collector);
  EXPECT_EQ(step.what, GcStep::What::kDone);
  EXPECT_NE(step.text.find("weightwire anchor"), std::string::npos);
  EXPECT_TRUE(HasDelta(1));
}

TEST_F(GcTest, ListsManyPages) {
  history_.AddWithAnchor();
  for (int i = 0; i < 700; ++i) history_.Add({1, 1, 1});
  std::vector<KnownAnchor> anchors;
  for (const Version version : {100, 690, 700}) anchors.push_back(history_.AddAnchor(version));
  for (int i = 0; i < 2500; ++i) history_.Put(AnchorFolder(anchors[0].manifest.name) + fmt::format("more/{}", i), "");
  clock_.Advance(hours(48));
  const GcProgress progress = Collect();
  EXPECT_EQ(progress.removed.objects, 690U * 3 + 3 + 3 + 2500);
  EXPECT_EQ(Keys(kDeltasPrefix).size(), 30U);
  EXPECT_EQ(Keys(kAnchorsPrefix).size(), 6U);
}

TEST_F(GcTest, DeletesTheManifestOfAnAnchorFirst) {
  Fill();
  std::map<AnchorName, bool> list_gone;
  store_.before = [&](StoreOperation request, std::string_view key) -> Status {
    const auto anchor = AnchorOfKey(key);
    if (request != StoreOperation::kRemove || !anchor.has_value()) return Ok();
    if (IsAnchorManifestKey(key)) list_gone[*anchor] = true;
    EXPECT_TRUE(list_gone[*anchor]) << key;
    return Ok();
  };
  Collect();
  EXPECT_EQ(list_gone.size(), 2U);
}

// Leases of followers that never came back, and probes of writers that died; by the store's time alone.
TEST_F(GcTest, DeletesExpiredLeasesAndProbesOnceTheyAreOldEnough) {
  Fill();
  options_.policy.minimum_age = hours(6);
  const Id gone = NewId(random_);
  const Id back = NewId(random_);
  Lease lease;
  lease.run = history_.run().id();
  lease.name = "x";
  for (const Id& id : {gone, back}) {
    lease.follower = id;
    ASSERT_TRUE(history_.run().PutLease(lease).ok());
  }
  history_.Put("leases/damaged", "not a lease");
  history_.Put("probe/old", "1");
  clock_.Advance(hours(24) + hours(6));
  EXPECT_EQ(Collect().expired.objects, 0U) << "within the slack of clocks";
  EXPECT_EQ(Keys(kLeasesPrefix).size(), 3U);
  clock_.Advance(std::chrono::seconds(3));
  history_.Put("probe/young", "1");
  // One comes back after it was listed.
  store_.before = [&](StoreOperation request, std::string_view key) -> Status {
    if (request == StoreOperation::kStat && key == LeaseKey(back)) {
      lease.follower = back;
      EXPECT_TRUE(history_.run().PutLease(lease).ok());
    }
    return Ok();
  };
  options_.dry_run = true;
  EXPECT_EQ(Collect().expired.objects, 0U);
  options_.dry_run = false;
  EXPECT_EQ(Collect().expired.objects, 3U);
  EXPECT_EQ(Keys(kLeasesPrefix), std::set<std::string>{LeaseKey(back)});
  EXPECT_EQ(Keys("probe/"), std::set<std::string>{"probe/young"});
}

TEST_F(GcTest, RefusesARunWithUnknownWriteFeatures) {
  Fill();
  RunManifest manifest = history_.run().manifest();
  manifest.write = {"two-hands"};
  history_.Put("run.json", ToJson(manifest));
  const weightwire::Run run = Run::Open(store_).value();
  Collector collector(run, options_, random_);
  ExpectError(collector.Step(), ErrorCode::kUnsupported, "\"two-hands\"");
  options_.dry_run = true;
  Collector looking(run, options_, random_);
  EXPECT_EQ(StepOn(looking).what, GcStep::What::kDone);
}

TEST_F(GcTest, SeveralThreadsDeleteTheSameAndManifestsFirst) {
  Fill();
  const std::size_t before = Keys().size();
  options_.remove_threads = 4;
  // The first removal of each key fails.
  std::mutex mutex;
  std::set<std::string> failed;
  std::vector<std::string> removed;
  store_.before = [&](StoreOperation request, std::string_view key) -> Status {
    if (request != StoreOperation::kRemove) return Ok();
    const std::lock_guard lock(mutex);
    if (failed.insert(std::string(key)).second) return Error(ErrorCode::kUnavailable, "not now");
    removed.emplace_back(key);
    return Ok();
  };
  Collector collector(history_.run(), options_, random_);
  for (bool done = false; !done;) {
    const auto step = collector.Step();
    if (!step.ok()) {
      ASSERT_EQ(step.error().code(), ErrorCode::kUnavailable);
      continue;
    }
    done = step.value().what == GcStep::What::kDone;
    if (step.value().what == GcStep::What::kWaits) clock_.Advance(step.value().wait);
  }
  EXPECT_EQ(collector.progress().removed.objects, 2U * 3 + 20);
  EXPECT_EQ(Keys().size(), before - (2U * 3 + 20));
  for (Version version = 1; version <= 35; ++version) EXPECT_EQ(HasDelta(version), version > 20) << version;
  for (const KnownAnchor& anchor : {history_.anchors()[0], anchors_[0]}) {
    const std::string folder = AnchorFolder(anchor.manifest.name);
    const auto first = std::ranges::find_if(removed, [&](const auto& key) { return key.starts_with(folder); });
    ASSERT_NE(first, removed.end());
    EXPECT_EQ(*first, AnchorManifestKey(anchor.manifest.name));
  }
}

}  // namespace
}  // namespace weightwire
