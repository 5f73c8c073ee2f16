#include "log/run.h"

#include <gtest/gtest.h>

#include "log/histories.h"
#include "log/limits.h"
#include "log/watched_store.h"
#include "support/manual_clock.h"
#include "support/memory_store.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

class RunTest : public ::testing::Test {
 protected:
  void PutText(const std::string& key, std::string_view text) { ASSERT_TRUE(Succeeds(store_.Put(key, AsBytes(text)))); }

  ManualClock clock_;
  MemoryStore memory_{&clock_};
  WatchedStore store_{&memory_};
  SeededRandom random_{7};
};

TEST_F(RunTest, CreateMakesARunOnce) {
  ExpectError(Run::Open(store_), ErrorCode::kNotFound, "weightwire init");
  const auto first = Run::Create(store_, false, random_);
  ASSERT_TRUE(Succeeds(first));
  const auto second = Run::Create(store_, true, random_);
  ASSERT_TRUE(Succeeds(second));
  EXPECT_EQ(second.value().manifest(), first.value().manifest());
  EXPECT_EQ(Run::Open(store_).value().manifest(), first.value().manifest());
}

TEST_F(RunTest, LoserOfACreateRaceOpensTheWinnersRun) {
  std::optional<RunManifest> winner;
  store_.before = [&](StoreOperation request, std::string_view) -> Status {
    if (request == StoreOperation::kPutIfAbsent && !winner.has_value()) {
      SeededRandom other(2);
      winner = Run::Create(memory_, false, other).value().manifest();
    }
    return Ok();
  };
  const auto loser = Run::Create(store_, false, random_);
  ASSERT_TRUE(Succeeds(loser));
  EXPECT_EQ(loser.value().manifest(), *winner);
}

TEST_F(RunTest, CreateReplacesNothingWithoutPutIfAbsent) {
  const RunManifest manifest = Run::Create(store_, true, random_).value().manifest();
  store_.before = [&](StoreOperation request, std::string_view key) -> Status {
    if (request == StoreOperation::kPutIfAbsent) return memory_.Remove(key);
    return Ok();
  };
  EXPECT_EQ(Run::Create(store_, true, random_).value().manifest(), manifest);
}

TEST_F(RunTest, CreateSucceedsAfterALostAnswer) {
  bool lost = false;
  store_.before = [&](StoreOperation request, std::string_view key) -> Status {
    if (request != StoreOperation::kPutIfAbsent || lost) return Ok();
    lost = true;
    RunManifest manifest;
    SeededRandom same(7);
    manifest.run = NewId(same);
    WW_RETURN_IF_ERROR(memory_.Put(key, AsBytes(ToJson(manifest))));
    return Error(ErrorCode::kUnknownOutcome, "lost");
  };
  const auto run = Run::Create(store_, false, random_);
  ASSERT_TRUE(Succeeds(run));
  EXPECT_TRUE(lost);
  EXPECT_EQ(Run::Open(store_).value().manifest(), run.value().manifest());
}

TEST_F(RunTest, RefusesUnknownFeatures) {
  RunManifest manifest;
  manifest.write = {"two-hands"};
  PutText("run.json", ToJson(manifest));
  const auto run = Run::Open(store_);
  ASSERT_TRUE(Succeeds(run));
  ExpectError(run.value().CheckMayWrite(), ErrorCode::kUnsupported, "\"two-hands\"");
  manifest.read = {"glasses"};
  PutText("run.json", ToJson(manifest));
  ExpectError(Run::Open(store_), ErrorCode::kUnsupported, "\"glasses\"");
  PutText("run.json", R"({"format":"weightwire-run","format_version":2})");
  ExpectError(Run::Open(store_), ErrorCode::kUnsupported, "format version 2");
  ExpectError(Run::Create(store_, false, random_), ErrorCode::kUnsupported);
  PutText("run.json", "damaged");
  ExpectError(Run::Open(store_), ErrorCode::kCorrupt, "run.json of memory");
  PutText("run.json", std::string(kMaxRunManifestBytes + 1, ' '));
  ExpectError(Run::Open(store_), ErrorCode::kLimit);
}

TEST_F(RunTest, FindsTheNewestFromAnyKnownVersion) {
  History history(store_, 1);
  EXPECT_EQ(history.run().FindNewest(std::nullopt).value().has_value(), false);
  for (int versions = 1; versions <= 70; ++versions) {
    versions == 1 ? history.AddWithAnchor() : history.Add({});
    for (int known = -1; known < versions; ++known) {
      store_.ResetCounts();
      const auto newest =
          history.run().FindNewest(known < 0 ? std::nullopt : std::optional(static_cast<Version>(known)));
      ASSERT_TRUE(Succeeds(newest));
      ASSERT_TRUE(newest.value().has_value());
      EXPECT_EQ(newest.value()->record, history.newest());
      EXPECT_EQ(newest.value()->hash, history.known(history.size() - 1).hash);
      int doublings = 0;
      for (int far = versions - 1 - std::max(known, 0); far > 0; far /= 2) ++doublings;
      EXPECT_LE(store_.Count(), 2 + 2 * doublings) << known << " of " << versions;
      EXPECT_EQ(store_.Count(), store_.Count(StoreOperation::kGet));  // never a list
    }
  }
}

TEST_F(RunTest, APollCostsOneRequestHoweverLongTheRun) {
  History history(store_, 1);
  history.AddWithAnchor();
  for (const int versions : {1, 10, 2000}) {
    while (history.size() < static_cast<std::size_t>(versions)) history.Add({});
    store_.ResetCounts();
    EXPECT_FALSE(history.run().ReadRecord(history.size()).value().has_value());
    EXPECT_EQ(store_.Count(), 1);
    EXPECT_TRUE(Succeeds(history.run().FindNewest(history.size() - 1)));
    EXPECT_EQ(store_.Count(), 3);
  }
}

TEST_F(RunTest, FindsTheNewestWhileOthersPublish) {
  History history(memory_, 1);
  history.AddWithAnchor();
  const weightwire::Run run = Run::Open(store_).value();
  for (int round = 0; round < 20; ++round) {
    const Version before = history.newest().version;
    int gets = 0;
    store_.before = [&](StoreOperation, std::string_view) -> Status {
      if (++gets % 2 == 0 && gets < 20) history.Add({});
      return Ok();
    };
    const auto newest = run.FindNewest(std::nullopt);
    ASSERT_TRUE(Succeeds(newest));
    EXPECT_GE(newest.value()->record.version, before);
    EXPECT_LE(newest.value()->record.version, history.newest().version);
  }
}

TEST_F(RunTest, AMissingKnownRecordIsDamage) {
  History history(store_, 1);
  history.AddWithAnchor();
  ExpectError(history.run().FindNewest(5), ErrorCode::kCorrupt, "version 5 has been there and is gone");
}

TEST_F(RunTest, StoreErrorsAreNotTakenForTheEndOfTheRun) {
  History history(memory_, 1);
  history.AddWithAnchor();
  for (int i = 0; i < 9; ++i) history.Add({});
  const weightwire::Run run = Run::Open(store_).value();
  for (int failing = 1; failing <= 8; ++failing) {
    int gets = 0;
    store_.before = [&](StoreOperation, std::string_view) -> Status {
      if (++gets == failing) return Error(ErrorCode::kUnavailable, "not now");
      return Ok();
    };
    ExpectError(run.FindNewest(std::nullopt), ErrorCode::kUnavailable);
  }
}

TEST_F(RunTest, RefusesRecordsOfAnotherRunOrVersion) {
  History history(store_, 1);
  history.AddWithAnchor();
  history.Add();
  const weightwire::Run& run = history.run();
  Record record = history.at(1);
  record.run = NewId(random_);
  PutText(RecordKey(1), ToJson(record));
  ExpectError(run.ReadRecord(1), ErrorCode::kCorrupt, "another run");
  PutText(RecordKey(2), ToJson(history.at(1)));
  ExpectError(run.ReadRecord(2), ErrorCode::kCorrupt, "says it is version 1");
  PutText(RecordKey(3), "damaged");
  ExpectError(run.ReadRecord(3), ErrorCode::kCorrupt, RecordKey(3));
  PutText(RecordKey(4), std::string(kMaxRecordBytes + 1, ' '));
  ExpectError(run.ReadRecord(4), ErrorCode::kLimit);
}

TEST_F(RunTest, CheckFollowsComparesParentAndCounters) {
  History history(store_, 1);
  history.AddWithAnchor();
  history.Add({5, 6});
  history.Add({});
  history.AddWithAnchor();  // a rebase
  history.Add({7});
  for (Version version = 1; version < history.size(); ++version) {
    EXPECT_TRUE(Succeeds(CheckFollows(history.known(version - 1), history.known(version))));
  }
  const auto refused = [&](Version version, const auto& change, std::string_view why) {
    KnownRecord next = history.known(version);
    change(next.record);
    ExpectError(CheckFollows(history.known(version - 1), next), ErrorCode::kCorrupt, why);
  };
  refused(
      1, [](Record& r) { r.version = 2; }, "not the next version");
  refused(
      1, [](Record& r) { r.parent = Sha256Of("x"); }, "another parent");
  refused(
      1, [](Record& r) { r.parent = std::nullopt; }, "another parent");
  refused(
      1, [](Record& r) { r.delta_bytes += 1; }, "sum of bytes");
  refused(
      3, [](Record& r) { r.delta_bytes += 1; }, "sum of bytes");
  refused(
      4, [](Record& r) { r.chain = 0; }, "chain begins elsewhere");
  refused(
      2, [](Record& r) { r.state = Sha256Of("x"); }, "nothing that leads there");
  refused(
      2, [](Record& r) { r.layout = Sha256Of("x"); }, "nothing that leads there");
  ExpectError(CheckFollows(history.known(1), history.known(1)), ErrorCode::kCorrupt);
  ExpectError(CheckFollows(history.known(0), history.known(2)), ErrorCode::kCorrupt);
}

TEST_F(RunTest, LayoutsAreCheckedAgainstTheirHash) {
  const weightwire::Run run = Run::Create(store_, false, random_).value();
  const Layout layout = Layout::Make({{"a", DType::kBF16, {2, 3}}}, {}).value();
  const Layout other = Layout::Make({{"b", DType::kBF16, {2, 3}}}, {}).value();
  ExpectError(run.ReadLayout(layout.hash()), ErrorCode::kNotFound);
  ASSERT_TRUE(Succeeds(run.PutLayout(layout)));
  ASSERT_TRUE(Succeeds(run.PutLayout(layout)));
  EXPECT_EQ(run.ReadLayout(layout.hash()).value().hash(), layout.hash());
  PutText(LayoutKey(layout.hash()), other.CanonicalJson());
  ExpectError(run.ReadLayout(layout.hash()), ErrorCode::kCorrupt, "not what its name says");
  ExpectError(run.PutLayout(layout), ErrorCode::kCorrupt, "other bytes");
  PutText(LayoutKey(layout.hash()), "damaged");
  ExpectError(run.ReadLayout(layout.hash()), ErrorCode::kCorrupt);
}

TEST_F(RunTest, AnchorsAreListedFromAVersionOn) {
  History history(store_, 1);
  history.AddWithAnchor();
  for (int i = 0; i < 12; ++i) history.Add();
  std::vector<AnchorName> names = {history.anchors()[0].manifest.name};
  for (const Version version : {2, 2, 9, 10, 11}) names.push_back(history.AddAnchor(version).manifest.name);
  std::sort(names.begin(), names.end());
  PutText(AnchorFolder({12, Id{}}) + "model.safetensors", "incomplete");
  PutText(AnchorFolder({12, Id{}}) + "sub/anchor.json", "not its list");
  PutText("anchors/README", "another's");
  for (Version from = 0; from <= 12; ++from) {
    std::vector<AnchorName> expected = names;
    std::erase_if(expected, [&](const AnchorName& name) { return name.version < from; });
    EXPECT_EQ(history.run().ListAnchors(from).value(), expected) << from;
  }
}

TEST_F(RunTest, RefusesAnchorsOfAnotherRunOrVersion) {
  History history(store_, 1);
  history.AddWithAnchor();
  const KnownAnchor anchor = history.anchors()[0];
  const auto read = history.run().ReadAnchor(anchor.manifest.name);
  ASSERT_TRUE(Succeeds(read));
  EXPECT_EQ(read.value().manifest, anchor.manifest);
  EXPECT_EQ(read.value().Ref(), *history.at(0).anchor);
  const AnchorName elsewhere{1, anchor.manifest.name.id};
  ExpectError(history.run().ReadAnchor(elsewhere), ErrorCode::kNotFound);
  PutText(AnchorManifestKey(elsewhere), ToJson(anchor.manifest));
  ExpectError(history.run().ReadAnchor(elsewhere), ErrorCode::kCorrupt, "another anchor");
  AnchorManifest foreign = anchor.manifest;
  foreign.run = NewId(random_);
  PutText(AnchorManifestKey(anchor.manifest.name), ToJson(foreign));
  ExpectError(history.run().ReadAnchor(anchor.manifest.name), ErrorCode::kCorrupt, "another run");
}

class LeasesTest : public RunTest {
 protected:
  Lease Put(std::uint64_t seconds) {
    Lease lease;
    lease.run = run_.id();
    lease.follower = NewId(random_);
    lease.seconds = seconds;
    EXPECT_TRUE(Succeeds(run_.PutLease(lease)));
    return lease;
  }

  weightwire::Run run_ = Run::Create(store_, false, random_).value();
};

TEST_F(LeasesTest, ReadsActiveLeasesAndSkipsExpiredOnes) {
  const Lease old_but_long = Put(kMaxLeaseSeconds);
  const Lease old_and_short = Put(60);
  clock_.Advance(std::chrono::hours(1));
  const Lease young = Put(60);
  const auto active = run_.ReadActiveLeases();
  ASSERT_TRUE(Succeeds(active));
  std::set<Id> seen;
  for (const KnownLease& known : active.value().leases) seen.insert(known.lease.follower);
  EXPECT_EQ(seen, (std::set<Id>{old_but_long.follower, young.follower}));
  EXPECT_EQ(active.value().store_now, clock_.Wall());
  EXPECT_TRUE(active.value().damaged.empty());
  EXPECT_EQ(run_.ReadLeases(nullptr).value().size(), 3U);
  ASSERT_TRUE(Succeeds(run_.RemoveLease(young.follower)));
  EXPECT_EQ(run_.ReadActiveLeases().value().leases.size(), 1U);
}

TEST_F(LeasesTest, ExpiredLeasesCostNoRequest) {
  for (int i = 0; i < 5000; ++i) Put(kMaxLeaseSeconds);  // more than may be active
  clock_.Advance(std::chrono::seconds(kMaxLeaseSeconds) + std::chrono::minutes(1));
  Put(60);
  store_.ResetCounts();
  const auto active = run_.ReadActiveLeases();
  ASSERT_TRUE(Succeeds(active));
  EXPECT_EQ(active.value().leases.size(), 1U);
  EXPECT_EQ(store_.Count(StoreOperation::kGet), 1);
}

TEST_F(LeasesTest, RefusesMoreActiveLeasesThanTheLimit) {
  for (std::uint64_t i = 0; i < kMaxLeases; ++i) Put(60);
  EXPECT_TRUE(Succeeds(run_.ReadActiveLeases()));
  Put(60);
  ExpectError(run_.ReadActiveLeases(), ErrorCode::kLimit);
}

TEST_F(LeasesTest, ReportsUnreadableLeasesThatMayBeActive) {
  const Lease whole = Put(60);
  Lease foreign = whole;
  foreign.run = NewId(random_);
  foreign.follower = NewId(random_);
  PutText(LeaseKey(foreign.follower), ToJson(foreign));
  PutText(LeaseKey(NewId(random_)), ToJson(whole));  // in another's place
  PutText(LeaseKey(NewId(random_)), "damaged");
  PutText(LeaseKey(NewId(random_)), std::string(kMaxLeaseBytes + 1, ' '));
  const auto active = run_.ReadActiveLeases();
  ASSERT_TRUE(Succeeds(active));
  EXPECT_EQ(active.value().leases.size(), 1U);
  EXPECT_EQ(active.value().damaged.size(), 4U);
  std::uint64_t damaged = 0;
  EXPECT_EQ(run_.ReadLeases(&damaged).value().size(), 1U);
  EXPECT_EQ(damaged, 4U);
  clock_.Advance(std::chrono::seconds(kMaxLeaseSeconds) + std::chrono::minutes(1));
  EXPECT_TRUE(run_.ReadActiveLeases().value().damaged.empty());
}

TEST_F(LeasesTest, SkipsLeasesRemovedDuringTheListAndPassesOnStoreErrors) {
  const Lease lease = Put(60);
  store_.before = [&](StoreOperation request, std::string_view key) -> Status {
    return request == StoreOperation::kGet ? memory_.Remove(key) : Ok();
  };
  EXPECT_TRUE(run_.ReadActiveLeases().value().leases.empty());
  store_.before = nullptr;
  Put(60);
  store_.before = [&](StoreOperation request, std::string_view) -> Status {
    if (request == StoreOperation::kGet) return Error(ErrorCode::kUnavailable, "not now");
    return Ok();
  };
  ExpectError(run_.ReadActiveLeases(), ErrorCode::kUnavailable);
  ExpectError(run_.ReadLeases(nullptr), ErrorCode::kUnavailable);
}

TEST_F(RunTest, UnreadableMarkIsAnError) {
  const weightwire::Run run = Run::Create(store_, false, random_).value();
  EXPECT_TRUE(run.ReadMarks().value().empty());
  Mark mark;
  mark.run = run.id();
  mark.id = NewId(random_);
  mark.keys = {DeltaFolder(1, 2)};
  PutText(MarkKey(mark.id), ToJson(mark));
  EXPECT_EQ(run.ReadMarks().value(), std::vector<Mark>{mark});
  for (const char* stray : {"gc/x.json", "gc/.nfs0001", "gc/x/y"}) PutText(stray, "what nobody knows");
  EXPECT_EQ(run.ReadMarks().value(), std::vector<Mark>{mark}) << "what is no mark means nothing";
  const std::string other = MarkKey(NewId(random_));
  PutText(other, "damaged");
  ExpectError(run.ReadMarks(), ErrorCode::kCorrupt, other);
  ExpectError(run.ReadMarks(), ErrorCode::kCorrupt, "remove it if no gc is at work");
  PutText(other, ToJson(mark));
  ExpectError(run.ReadMarks(), ErrorCode::kCorrupt, "another mark");
  mark.run = NewId(random_);
  PutText(other, ToJson(mark));
  ExpectError(run.ReadMarks(), ErrorCode::kCorrupt, "another run");
}

TEST_F(RunTest, DoesNotFetchKnownMarksAgain) {
  const weightwire::Run run = Run::Create(store_, false, random_).value();
  Mark mark;
  mark.run = run.id();
  mark.id = NewId(random_);
  mark.keys = {DeltaFolder(1, 2)};
  PutText(MarkKey(mark.id), ToJson(mark));
  const std::vector<Mark> known = run.ReadMarks().value();
  PutText(MarkKey(mark.id), "damaged meanwhile, which nobody sees");
  EXPECT_EQ(run.ReadMarks(known).value(), known);
  ASSERT_TRUE(store_.Remove(MarkKey(mark.id)).ok());
  EXPECT_TRUE(run.ReadMarks(known).value().empty()) << "but it is gone when it is gone";
}

}  // namespace
}  // namespace weightwire
