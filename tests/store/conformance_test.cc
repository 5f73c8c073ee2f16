// What every store must do. A new back end is added in backends.cc and passes all of this unchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>

#include "store/backends.h"
#include "store/bytes.h"
#include "store/read_back.h"
#include "store/store.h"

namespace weightwire {
namespace {

using testing::Backend;
using testing::Bytes;
using testing::BytesOf;
using testing::ExpectError;
using testing::kSmall;
using testing::RandomBytes;
using testing::Succeeds;

class StoreConformance : public ::testing::TestWithParam<Backend> {
 protected:
  StoreConformance() : bucket_(GetParam().make_bucket()), store_(bucket_->Open()) {}

  // The keys under a prefix, as one list.
  std::vector<std::string> Keys(std::string_view prefix, std::string_view start_after = "", std::size_t limit = 1000) {
    std::vector<std::string> keys;
    const auto listed = store_->List(prefix, start_after, limit);
    if (Succeeds(listed)) {
      for (const ObjectInfo& object : listed.value()) keys.push_back(object.key);
    }
    return keys;
  }

  void Fill(std::initializer_list<const char*> keys) {
    for (const char* key : keys) ASSERT_TRUE(Succeeds(store_->Put(key, BytesOf(key))));
  }

  std::unique_ptr<testing::TestBucket> bucket_;
  std::shared_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreConformance, ::testing::ValuesIn(testing::AllBackends()),
                         [](const auto& info) { return info.param.name; });

TEST_P(StoreConformance, WhatIsPutIsGot) {
  for (const std::size_t size : {0, 1, 1000, 1 << 20, (3 << 20) + 1}) {
    const Bytes bytes = RandomBytes(size, size);
    ASSERT_TRUE(Succeeds(store_->Put("dir/object", bytes)));
    const auto got = store_->Get("dir/object", size);
    ASSERT_TRUE(Succeeds(got));
    EXPECT_TRUE(got.value() == bytes);
  }
}

TEST_P(StoreConformance, OthersSeeIt) {
  ASSERT_TRUE(Succeeds(store_->Put("a", BytesOf("one"))));
  const auto got = bucket_->Open()->Get("a", kSmall);
  ASSERT_TRUE(Succeeds(got));
  EXPECT_EQ(got.value(), BytesOf("one"));
}

TEST_P(StoreConformance, AllBytesOfAKeyWork) {
  const char* key = "ABCXYZabcxyz0189/._-/.hidden/...x/-";
  ASSERT_TRUE(Succeeds(store_->Put(key, BytesOf("x"))));
  EXPECT_TRUE(Succeeds(store_->Get(key, kSmall)));
  EXPECT_EQ(Keys(""), std::vector<std::string>{key});
  const std::string longest = std::string(255, 'x') + "/" + std::string(200, 'y');
  ASSERT_TRUE(Succeeds(store_->Put(longest, BytesOf("x"))));
  EXPECT_TRUE(Succeeds(store_->Stat(longest)));
}

TEST_P(StoreConformance, MissingObjectsAreNotFound) {
  ASSERT_TRUE(Succeeds(store_->Put("dir/here", BytesOf("x"))));
  Bytes out(1);
  for (const char* key : {"missing", "dir", "dir/missing", "dir/here/below", "no/such/dir"}) {
    SCOPED_TRACE(key);
    ExpectError(store_->Get(key, kSmall), ErrorCode::kNotFound);
    ExpectError(store_->Read(key, 0, out), ErrorCode::kNotFound);
    ExpectError(store_->Stat(key), ErrorCode::kNotFound);
  }
}

TEST_P(StoreConformance, BadKeysAreRefused) {
  Bytes out(1);
  for (const char* key : {"", "/a", "a//b", "../a", "a/", ".weightwire/x", "a b", "a?b"}) {
    SCOPED_TRACE(key);
    ExpectError(store_->Get(key, kSmall), ErrorCode::kInvalidArgument);
    ExpectError(store_->Read(key, 0, out), ErrorCode::kInvalidArgument);
    ExpectError(store_->Put(key, out), ErrorCode::kInvalidArgument);
    ExpectError(store_->PutIfAbsent(key, out), ErrorCode::kInvalidArgument);
    ExpectError(store_->Stat(key), ErrorCode::kInvalidArgument);
    ExpectError(store_->Remove(key), ErrorCode::kInvalidArgument);
    ExpectError(store_->StartUpload(key, 1), ErrorCode::kInvalidArgument);
  }
  ExpectError(store_->List("a//", "", 1), ErrorCode::kInvalidArgument);
}

TEST_P(StoreConformance, RangesAreExact) {
  const Bytes bytes = RandomBytes(10'000, 1);
  ASSERT_TRUE(Succeeds(store_->Put("a", bytes)));
  for (const auto& [offset, size] : {std::pair{0, 1}, {0, 10'000}, {9'999, 1}, {1234, 5678}, {10'000, 0}}) {
    Bytes out(static_cast<std::size_t>(size), 0xee);
    ASSERT_TRUE(Succeeds(store_->Read("a", static_cast<std::uint64_t>(offset), out)));
    EXPECT_TRUE(std::equal(out.begin(), out.end(), bytes.begin() + offset));
  }
}

TEST_P(StoreConformance, ARangeBeyondTheEndIsDamage) {
  ASSERT_TRUE(Succeeds(store_->Put("a", Bytes(100))));
  ASSERT_TRUE(Succeeds(store_->Put("empty", Bytes())));
  Bytes out(10);
  ExpectError(store_->Read("a", 91, out), ErrorCode::kCorrupt);
  ExpectError(store_->Read("a", 100, out), ErrorCode::kCorrupt);
  ExpectError(store_->Read("a", 1'000'000, out), ErrorCode::kCorrupt);
  ExpectError(store_->Read("empty", 0, out), ErrorCode::kCorrupt);
  ExpectError(store_->Read("a", std::numeric_limits<std::uint64_t>::max() - 4, out), ErrorCode::kInvalidArgument);
}

TEST_P(StoreConformance, AnObjectLargerThanAllowedIsNotRead) {
  ASSERT_TRUE(Succeeds(store_->Put("a", Bytes(100))));
  EXPECT_TRUE(Succeeds(store_->Get("a", 100)));
  ExpectError(store_->Get("a", 99), ErrorCode::kLimit);
  ExpectError(store_->Get("a", 0), ErrorCode::kLimit);
}

TEST_P(StoreConformance, PutReplaces) {
  ASSERT_TRUE(Succeeds(store_->Put("a", BytesOf("a longer first"))));
  ASSERT_TRUE(Succeeds(store_->Put("a", BytesOf("second"))));
  EXPECT_EQ(store_->Get("a", kSmall).value(), BytesOf("second"));
  EXPECT_EQ(store_->Stat("a").value().size_bytes, 6U);
}

TEST_P(StoreConformance, PutIfAbsentKeepsTheFirst) {
  const auto first = store_->PutIfAbsent("dir/a", BytesOf("first"));
  ASSERT_TRUE(Succeeds(first));
  EXPECT_EQ(first.value(), PutOutcome::kCreated);
  for (const auto& other : {store_, bucket_->Open()}) {
    const auto again = other->PutIfAbsent("dir/a", BytesOf("second"));
    ASSERT_TRUE(Succeeds(again));
    EXPECT_EQ(again.value(), PutOutcome::kExists);
  }
  EXPECT_EQ(store_->Get("dir/a", kSmall).value(), BytesOf("first"));
  ASSERT_TRUE(Succeeds(store_->Remove("dir/a")));
  EXPECT_EQ(store_->PutIfAbsent("dir/a", BytesOf("third")).value(), PutOutcome::kCreated);
}

TEST_P(StoreConformance, OfRacingWritersOneWins) {
  constexpr int kWriters = 8;
  for (int round = 0; round < 5; ++round) {
    const std::string key = "versions/" + std::to_string(round);
    std::atomic<int> ready = 0;
    std::atomic<int> winners = 0;
    std::atomic<int> winner = -1;
    std::vector<std::thread> writers;
    for (int writer = 0; writer < kWriters; ++writer) {
      writers.emplace_back([&, writer] {
        const std::shared_ptr<Store> store = bucket_->Open();
        ++ready;
        while (ready.load() < kWriters) std::this_thread::yield();
        while (true) {
          const auto put = store->PutIfAbsent(key, Bytes(1000, static_cast<std::uint8_t>(writer)));
          // A service may ask a loser to try again later.
          if (!put.ok() && put.error().code() == ErrorCode::kUnavailable) continue;
          if (Succeeds(put) && put.value() == PutOutcome::kCreated) {
            ++winners;
            winner = writer;
          }
          return;
        }
      });
    }
    for (std::thread& writer : writers) writer.join();
    EXPECT_EQ(winners.load(), 1);
    EXPECT_EQ(store_->Get(key, kSmall).value(), Bytes(1000, static_cast<std::uint8_t>(winner.load())));
  }
}

TEST_P(StoreConformance, CommitTellsOursFromAnothers) {
  EXPECT_EQ(PutAndReadBack(*store_, "v/1", BytesOf("by us")).value(), ReadBackOutcome::kOurs);
  EXPECT_EQ(PutAndReadBack(*store_, "v/1", BytesOf("by us")).value(), ReadBackOutcome::kOurs);
  EXPECT_EQ(PutAndReadBack(*store_, "v/1", BytesOf("by us, longer")).value(), ReadBackOutcome::kConflict);
  EXPECT_EQ(PutAndReadBack(*store_, "v/1", BytesOf("short")).value(), ReadBackOutcome::kConflict);
  EXPECT_EQ(PutAndReadBack(*store_, "v/1", BytesOf("BY US")).value(), ReadBackOutcome::kConflict);
}

TEST_P(StoreConformance, StatTellsSizeAndTheStoresTime) {
  const auto before = store_->Now();
  ASSERT_TRUE(Succeeds(before));
  ASSERT_TRUE(Succeeds(store_->Put("a/b", Bytes(123))));
  const auto after = store_->Now();
  ASSERT_TRUE(Succeeds(after));
  const auto stat = store_->Stat("a/b");
  ASSERT_TRUE(Succeeds(stat));
  EXPECT_EQ(stat.value().key, "a/b");
  EXPECT_EQ(stat.value().size_bytes, 123U);
  // Times may be whole seconds, rounded down.
  EXPECT_GE(stat.value().last_modified, before.value() - std::chrono::seconds(2));
  EXPECT_LE(stat.value().last_modified, after.value() + std::chrono::seconds(2));
  const auto listed = store_->List("a/", "", 10);
  ASSERT_TRUE(Succeeds(listed));
  ASSERT_EQ(listed.value().size(), 1U);
  EXPECT_EQ(listed.value()[0].key, "a/b");
  EXPECT_EQ(listed.value()[0].size_bytes, 123U);
  EXPECT_LE(std::chrono::abs(listed.value()[0].last_modified - stat.value().last_modified), std::chrono::seconds(1));
}

TEST_P(StoreConformance, ListIsInOrderOfBytes) {
  // "-" and "." come before "/", "0" after it: the order within folders is not the order of whole keys.
  Fill({"b/2", "a", "b-x", "b.x", "b/1/z", "b/1-", "b0", "B", "b/10", "c/d/e/f"});
  EXPECT_EQ(Keys(""),
            (std::vector<std::string>{"B", "a", "b-x", "b.x", "b/1-", "b/1/z", "b/10", "b/2", "b0", "c/d/e/f"}));
  EXPECT_EQ(Keys("b"), (std::vector<std::string>{"b-x", "b.x", "b/1-", "b/1/z", "b/10", "b/2", "b0"}));
  EXPECT_EQ(Keys("b/"), (std::vector<std::string>{"b/1-", "b/1/z", "b/10", "b/2"}));
  EXPECT_EQ(Keys("b/1"), (std::vector<std::string>{"b/1-", "b/1/z", "b/10"}));
  EXPECT_EQ(Keys("b/1/z"), (std::vector<std::string>{"b/1/z"}));
  EXPECT_EQ(Keys("c/d"), (std::vector<std::string>{"c/d/e/f"}));
  EXPECT_EQ(Keys("b/1/z/"), std::vector<std::string>());
  EXPECT_EQ(Keys("zzz"), std::vector<std::string>());
  EXPECT_EQ(Keys("no/such/folder/"), std::vector<std::string>());
}

TEST_P(StoreConformance, ListGoesOnAfterAnyKey) {
  const std::vector<std::string> all = {"B", "a", "b-x", "b.x", "b/1-", "b/1/z", "b/10", "b/2", "b0", "c/d/e/f"};
  for (const std::string& key : all) ASSERT_TRUE(Succeeds(store_->Put(key, BytesOf(key))));
  for (const std::string start :
       {"",      "A",      "B",       "a",    "a/b", "b",   "b-x", "b/", "b/1", "b/1-",    "b/1/",
        "b/1/z", "b/1/zz", "b/1/z/y", "b/10", "b/2", "b/3", "b0",  "c/", "c/d", "c/d/e/f", "d"}) {
    SCOPED_TRACE(start);
    for (const std::string prefix : {"", "b", "b/", "b/1", "c/d/"}) {
      std::vector<std::string> expected;
      for (const std::string& key : all) {
        if (key.starts_with(prefix) && key > start) expected.push_back(key);
      }
      EXPECT_EQ(Keys(prefix, start), expected) << prefix;
      if (expected.size() > 2) expected.resize(2);
      EXPECT_EQ(Keys(prefix, start, 2), expected) << prefix;
    }
  }
}

TEST_P(StoreConformance, RemoveRemoves) {
  Fill({"dir/a", "dir/b"});
  ASSERT_TRUE(Succeeds(store_->Remove("dir/a")));
  ExpectError(store_->Get("dir/a", kSmall), ErrorCode::kNotFound);
  EXPECT_EQ(Keys(""), std::vector<std::string>{"dir/b"});
  EXPECT_TRUE(Succeeds(store_->Remove("dir/a")));
  EXPECT_TRUE(Succeeds(store_->Remove("never/was")));
  ASSERT_TRUE(Succeeds(store_->Remove("dir/b")));
  EXPECT_EQ(Keys(""), std::vector<std::string>());
  // A folder that has become empty is no obstacle.
  EXPECT_TRUE(Succeeds(store_->Put("dir/a", BytesOf("x"))));
  ASSERT_TRUE(Succeeds(store_->Remove("dir/a")));
  EXPECT_TRUE(Succeeds(store_->Put("dir", BytesOf("x"))));
}

TEST_P(StoreConformance, AnUploadAppearsAsAWhole) {
  const Bytes bytes = RandomBytes((std::size_t{17} << 20) + 12'345, 5);
  auto started = store_->StartUpload("big/one", bytes.size());
  ASSERT_TRUE(Succeeds(started));
  Upload& upload = *started.value();
  ASSERT_EQ(upload.part_count(), (bytes.size() + upload.part_bytes() - 1) / upload.part_bytes());
  // Backwards, and the first twice.
  for (std::uint64_t i = upload.part_count() + 1; i-- > 0;) {
    const std::uint64_t index = i % upload.part_count();
    const std::span<const std::uint8_t> part =
        std::span(bytes).subspan(index * upload.part_bytes(), upload.PartSize(index));
    ASSERT_TRUE(Succeeds(upload.WritePart(index, part)));
  }
  ExpectError(store_->Stat("big/one"), ErrorCode::kNotFound);
  EXPECT_EQ(Keys(""), std::vector<std::string>());
  ASSERT_TRUE(Succeeds(upload.Finish()));
  const auto got = bucket_->Open()->Get("big/one", bytes.size());
  ASSERT_TRUE(Succeeds(got));
  EXPECT_TRUE(got.value() == bytes);
  EXPECT_EQ(store_->Stat("big/one").value().size_bytes, bytes.size());
}

TEST_P(StoreConformance, AnUploadThatIsGivenUpLeavesNothing) {
  for (const bool abort : {true, false}) {
    auto started = store_->StartUpload("big", 100);
    ASSERT_TRUE(Succeeds(started));
    ASSERT_TRUE(Succeeds(started.value()->WritePart(0, Bytes(100))));
    if (abort) {
      EXPECT_TRUE(Succeeds(started.value()->Abort()));
    }
  }
  ExpectError(store_->Stat("big"), ErrorCode::kNotFound);
  EXPECT_EQ(Keys(""), std::vector<std::string>());
}

TEST_P(StoreConformance, ReadersNeverSeeAHalfWrittenObject) {
  constexpr std::size_t kSize = 300'000;
  ASSERT_TRUE(Succeeds(store_->Put("a", Bytes(kSize, 0))));
  constexpr int kTimes = 20;
  std::atomic<int> reads = 0;
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    const std::shared_ptr<Store> store = bucket_->Open();
    for (int i = 1; i <= kTimes || reads < kTimes; ++i) {
      if (!Succeeds(store->Put("a", Bytes(kSize, static_cast<std::uint8_t>(i))))) break;
    }
    stop = true;
  });
  while (!stop) {
    const auto got = store_->Get("a", kSmall);
    ++reads;
    EXPECT_TRUE(Succeeds(got));
    if (!got.ok()) continue;
    EXPECT_EQ(got.value().size(), kSize);
    EXPECT_TRUE(std::ranges::all_of(got.value(), [&](std::uint8_t byte) { return byte == got.value()[0]; }));
  }
  writer.join();
  EXPECT_GE(reads, kTimes);
}

TEST_P(StoreConformance, ErrorsNameObjectAndStore) {
  const auto missing = store_->Get("some/key", kSmall);
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message(), ::testing::HasSubstr("some/key"));
  EXPECT_THAT(missing.error().message(), ::testing::HasSubstr(store_->Name()));
}

}  // namespace
}  // namespace weightwire
