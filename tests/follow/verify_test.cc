#include "follow/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/manual_clock.h"
#include "support/memory_store.h"
#include "support/run_maker.h"

namespace weightwire {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class VerifyTest : public ::testing::Test {
 protected:
  VerifyReport Verify(Version from = 0) {
    Verifier verifier(Run::Open(store_).value(), from, maker_.kernels(), maker_.pool());
    for (int steps = 0; steps < 10'000; ++steps) {
      const auto done = verifier.Step();
      EXPECT_TRUE(done.ok()) << done.error().message();
      if (!done.ok() || done.value()) return verifier.report();
    }
    ADD_FAILURE() << "it does not end";
    return {};
  }
  // Versions 0 to 5, anchors of 0 and 3.
  void Publish() {
    for (int i = 0; i < 6; ++i) maker_.Publish();
    anchor_ = maker_.AddAnchor(3).name;
  }
  [[nodiscard]] const PartRef& Part(Version version) const { return maker_.records()[version].record.delta->front(); }
  void Damage(const std::string& key) {
    auto bytes = store_.Get(key, kMaxPutBytes).value();
    bytes[bytes.size() / 2] ^= 1;
    ASSERT_TRUE(store_.Put(key, bytes).ok());
  }

  ManualClock clock_;
  MemoryStore store_{&clock_};
  RunMaker maker_{store_};
  AnchorName anchor_;
};

TEST_F(VerifyTest, AGoodRunIsGood) {
  Publish();
  const VerifyReport report = Verify();
  EXPECT_THAT(report.damage, IsEmpty());
  EXPECT_EQ(report.newest, 5U);
  EXPECT_EQ(report.records, 6U);
  EXPECT_EQ(report.parts, 5U);
  EXPECT_EQ(report.anchors, 2U);
  EXPECT_EQ(report.states, 6U);
  EXPECT_EQ(report.pruned, 0U);
}

TEST_F(VerifyTest, ARebaseAndAnUnchangedVersionAreGood) {
  maker_.Publish();
  maker_.Publish();
  maker_.PublishUnchanged();
  maker_.Publish(/*rebase=*/true);
  maker_.Publish();
  const VerifyReport report = Verify();
  EXPECT_THAT(report.damage, IsEmpty());
  EXPECT_EQ(report.states, 5U);
  EXPECT_EQ(report.parts, 2U);
}

TEST_F(VerifyTest, FromALaterVersionBeginsAtItsAnchor) {
  Publish();
  const VerifyReport report = Verify(2);
  EXPECT_THAT(report.damage, IsEmpty());
  EXPECT_EQ(report.records, 4U);
  EXPECT_EQ(report.states, 3U);
  EXPECT_EQ(report.anchors, 1U);
}

TEST_F(VerifyTest, WhatGcRemovedIsNoDamage) {
  Publish();
  for (Version version = 1; version <= 3; ++version) ASSERT_TRUE(store_.Remove(Part(version).key).ok());
  const VerifyReport report = Verify();
  EXPECT_THAT(report.damage, IsEmpty());
  EXPECT_EQ(report.pruned, 3U);
  EXPECT_EQ(report.states, 4U);
}

// A gc that is at work at the same time: what was listed and is gone when it is read.
TEST_F(VerifyTest, WhatGcRemovesMeanwhileIsNoDamage) {
  for (const std::string first : {"anchor.json", "config.json"}) {
    SCOPED_TRACE(first);
    Publish();
    const auto files = maker_.run().ReadAnchor(anchor_).value().manifest.files;
    Verifier verifier(Run::Open(store_).value(), 0, maker_.kernels(), maker_.pool());
    const std::uint64_t anchors = maker_.newest() < 6 ? 1 : 2;  // before the one that goes
    bool removed = false;
    for (int steps = 0; steps < 10'000; ++steps) {
      const auto done = verifier.Step();
      ASSERT_TRUE(done.ok()) << done.error().message();
      if (done.value()) break;
      if (removed || verifier.report().anchors < anchors) continue;
      // Either before its list is read, or in the middle of its files.
      removed = true;
      if (first == "config.json") {
        while (verifier.at() < anchor_.version) ASSERT_TRUE(verifier.Step().ok());
        for (int i = 0; i < 4; ++i) ASSERT_TRUE(verifier.Step().ok());
      }
      ASSERT_TRUE(store_.Remove(AnchorManifestKey(anchor_)).ok());
      for (const AnchorFile& file : files) ASSERT_TRUE(store_.Remove(AnchorFolder(anchor_) + file.name).ok());
    }
    EXPECT_TRUE(removed);
    EXPECT_THAT(verifier.report().damage, IsEmpty());
  }
}

TEST_F(VerifyTest, APartOfAnotherSizeThanItsRecordSaysTakesNoMemory) {
  Publish();
  Record record = maker_.records()[5].record;
  record.delta->front().size_bytes = std::uint64_t{1} << 40;
  record.delta_bytes = maker_.records()[4].record.delta_bytes + (std::uint64_t{1} << 40);
  const std::string json = ToJson(record);
  ASSERT_TRUE(store_.Put(RecordKey(5), {reinterpret_cast<const std::uint8_t*>(json.data()), json.size()}).ok());
  EXPECT_THAT(Verify().damage, Contains(HasSubstr("its record says 1099511627776")));
}

TEST_F(VerifyTest, NoWayToTheNewestVersionIsDamage) {
  Publish();
  ASSERT_TRUE(store_.Remove(Part(4).key).ok());
  EXPECT_THAT(Verify().damage, Contains(HasSubstr("nothing leads to version 5")));
}

TEST_F(VerifyTest, ADamagedPartIsFound) {
  Publish();
  Damage(Part(2).key);
  const VerifyReport report = Verify();
  ASSERT_EQ(report.damage.size(), 1U);
  EXPECT_THAT(report.damage.front(), HasSubstr(Part(2).key));
}

TEST_F(VerifyTest, APartThatIsIntactButLeadsElsewhereIsFound) {
  Publish();
  // A record that promises another state than its part leads to.
  Record record = maker_.records()[5].record;
  record.state[0] ^= 1;
  const std::string json = ToJson(record);
  ASSERT_TRUE(store_.Put(RecordKey(5), {reinterpret_cast<const std::uint8_t*>(json.data()), json.size()}).ok());
  EXPECT_THAT(Verify().damage, Contains(HasSubstr("the delta of version 5")));
}

TEST_F(VerifyTest, ADamagedAnchorIsFound) {
  Publish();
  const std::string key = AnchorFolder(anchor_) + "model-00002-of-00002.safetensors";
  Damage(key);
  EXPECT_THAT(Verify().damage, Contains(HasSubstr(key)));
  ASSERT_TRUE(store_.Remove(key).ok());
  EXPECT_THAT(Verify().damage, Contains(HasSubstr(key)));
}

TEST_F(VerifyTest, AnAnchorOfAnotherStateIsFound) {
  Publish();
  // Whole in itself, with hashes that fit: the anchor of version 0 under the name of version 3.
  AnchorManifest manifest = Run::Open(store_).value().ReadAnchor(anchor_).value().manifest;
  const AnchorName first = maker_.records()[0].record.anchor->name;
  manifest.files = Run::Open(store_).value().ReadAnchor(first).value().manifest.files;
  for (const AnchorFile& file : manifest.files) {
    const auto bytes = store_.Get(AnchorFolder(first) + file.name, kMaxPutBytes).value();
    ASSERT_TRUE(store_.Put(AnchorFolder(anchor_) + file.name, bytes).ok());
  }
  const std::string json = ToJson(manifest);
  ASSERT_TRUE(
      store_.Put(AnchorManifestKey(anchor_), {reinterpret_cast<const std::uint8_t*>(json.data()), json.size()}).ok());
  EXPECT_THAT(Verify().damage, Contains(HasSubstr("not those of version 3")));
}

// All that is in it fits together, but it is not what the records name: a configuration was exchanged.
TEST_F(VerifyTest, AnAnchorJsonThatIsNotTheOneNamedIsFound) {
  Publish();
  const auto exchange = [&](const AnchorName& name) {
    AnchorManifest manifest = maker_.run().ReadAnchor(name).value().manifest;
    const std::string config = R"({"model_type":"other"})";
    const std::span bytes(reinterpret_cast<const std::uint8_t*>(config.data()), config.size());
    ASSERT_TRUE(store_.Put(AnchorFolder(name) + "config.json", bytes).ok());
    ASSERT_EQ(manifest.files[0].name, "config.json");
    manifest.files[0].size_bytes = config.size();
    manifest.files[0].hash = ObjectHash(bytes);
    const std::string json = ToJson(manifest);
    ASSERT_TRUE(
        store_.Put(AnchorManifestKey(name), {reinterpret_cast<const std::uint8_t*>(json.data()), json.size()}).ok());
  };
  // The one that nobody names may list what it likes.
  exchange(anchor_);
  EXPECT_THAT(Verify().damage, IsEmpty());
  // One that only a later record names.
  maker_.KnowAnchor(maker_.AddAnchor(4));
  const AnchorName later = maker_.records()[5].record.anchor->name;
  maker_.Publish();
  EXPECT_THAT(Verify().damage, IsEmpty());
  exchange(later);
  EXPECT_THAT(Verify().damage, ElementsAre(HasSubstr("in the record of version 6")));
  // And the one of the record's own version.
  const AnchorName first = maker_.records()[0].record.anchor->name;
  exchange(first);
  EXPECT_THAT(Verify().damage, Contains(HasSubstr("in the record of version 0")));
}

TEST_F(VerifyTest, WhicheverRecordIsDamagedTheOthersAreLookedAtToo) {
  Publish();
  for (Version version = 0; version < 6; ++version) {
    SCOPED_TRACE(version);
    const auto good = store_.Get(RecordKey(version), kMaxPutBytes).value();
    ASSERT_TRUE(store_.Put(RecordKey(version), std::span(good).first(good.size() - 1)).ok());
    const VerifyReport report = Verify();
    EXPECT_EQ(report.newest, 5U);
    EXPECT_EQ(report.records, 5U);
    EXPECT_THAT(report.damage, Contains(HasSubstr(RecordKey(version))));
    ASSERT_TRUE(store_.Put(RecordKey(version), good).ok());
  }
}

TEST_F(VerifyTest, ADamagedOrMissingRecordIsFound) {
  Publish();
  const auto good = store_.Get(RecordKey(4), kMaxPutBytes).value();
  Damage(RecordKey(4));
  EXPECT_FALSE(Verify().damage.empty());
  ASSERT_TRUE(store_.Put(RecordKey(4), good).ok());
  EXPECT_THAT(Verify().damage, IsEmpty());
  // Version 5 was made for the record as it was.
  std::string other(good.begin(), good.end());
  other.insert(1, " ");
  ASSERT_TRUE(store_.Put(RecordKey(4), {reinterpret_cast<const std::uint8_t*>(other.data()), other.size()}).ok());
  EXPECT_THAT(Verify().damage, Contains(HasSubstr("another parent")));
}

TEST_F(VerifyTest, AMissingLayoutIsFound) {
  Publish();
  ASSERT_TRUE(store_.Remove(LayoutKey(maker_.records()[0].record.layout)).ok());
  EXPECT_THAT(Verify().damage, Contains(HasSubstr("the layout of version 0")));
}

TEST_F(VerifyTest, ARunWithoutVersionsIsNotFound) {
  Verifier verifier(Run::Open(store_).value(), 0, maker_.kernels(), maker_.pool());
  EXPECT_EQ(verifier.Step().error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace weightwire
