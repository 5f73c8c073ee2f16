#include "store/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/object_hash.h"
#include "store/bytes.h"
#include "store/faulty_store.h"
#include "store/wrappers/parallel_store.h"
#include "store/wrappers/trace_store.h"

namespace weightwire {
namespace {

using testing::Bytes;
using testing::ExpectError;
using testing::Fault;
using testing::FaultyStore;
using testing::RandomBytes;
using testing::Succeeds;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class TransferTest : public ::testing::Test {
 protected:
  Status Upload(const Bytes& bytes) { return PutObject(store_, "deltas/x", bytes, options_); }
  Status DownloadTo(Bytes& out, const Sha256Digest& hash) {
    return DownloadObject(store_, "deltas/x", hash, out, options_);
  }

  SystemClock clock_;
  FaultyStore store_{&clock_};
  TransferOptions options_{.single_put_bytes = 0};  // even small objects are uploaded in parts
};

TEST_F(TransferTest, OneThresholdDecidesBetweenASinglePutAndAnUpload) {
  ASSERT_TRUE(Succeeds(PutObject(store_, "deltas/x", Bytes(kSinglePutBytes))));
  EXPECT_EQ(store_.Calls("put"), 1);
  EXPECT_EQ(store_.Calls("start-upload"), 0);
  ASSERT_TRUE(Succeeds(PutObject(store_, "deltas/y", Bytes(kSinglePutBytes + 1))));
  EXPECT_EQ(store_.Calls("put"), 1);
  EXPECT_EQ(store_.Calls("start-upload"), 1);
}

TEST_F(TransferTest, WhatIsUploadedIsDownloaded) {
  for (const std::uint64_t size : {std::uint64_t{1}, 4 * kMiB - 1, 4 * kMiB, 4 * kMiB + 1, 8 * kMiB, 33 * kMiB + 7}) {
    SCOPED_TRACE(size);
    const Bytes bytes = RandomBytes(size, size);
    ASSERT_TRUE(Succeeds(Upload(bytes)));
    EXPECT_TRUE(store_.memory().Get("deltas/x", size).value() == bytes);
    Bytes out(size);
    ASSERT_TRUE(Succeeds(DownloadTo(out, ObjectHash(bytes))));
    EXPECT_TRUE(out == bytes);
  }
}

TEST_F(TransferTest, AnEmptyObjectIsOneToo) {
  ASSERT_TRUE(Succeeds(store_.Put("deltas/x", {})));
  Bytes none;
  EXPECT_TRUE(Succeeds(DownloadTo(none, ObjectHash({}))));
}

TEST_F(TransferTest, AFailedPartGivesTheUploadUp) {
  store_.Plan("write-part", {Fault::kNone, Fault::kUnavailable});
  ExpectError(Upload(Bytes(64 * kMiB)), ErrorCode::kUnavailable);
  EXPECT_EQ(store_.Calls("abort-upload"), 1);
  EXPECT_EQ(store_.Calls("finish-upload"), 0);
  ExpectError(store_.memory().Stat("deltas/x"), ErrorCode::kNotFound);
}

TEST_F(TransferTest, ADamagedObjectIsNotAccepted) {
  Bytes bytes = RandomBytes(20 * kMiB, 2);
  const Sha256Digest hash = ObjectHash(bytes);
  bytes[13 * kMiB] ^= 1;
  ASSERT_TRUE(Succeeds(store_.memory().Put("deltas/x", bytes)));
  Bytes out(bytes.size());
  const Status damaged = DownloadTo(out, hash);
  ExpectError(damaged, ErrorCode::kCorrupt);
  EXPECT_THAT(damaged.error().message(), ::testing::HasSubstr("deltas/x"));
  // Chunks exchanged, so that only their order is wrong.
  bytes[13 * kMiB] ^= 1;
  std::swap_ranges(bytes.begin(), bytes.begin() + 4 * kMiB, bytes.begin() + 4 * kMiB);
  ASSERT_TRUE(Succeeds(store_.memory().Put("deltas/x", bytes)));
  ExpectError(DownloadTo(out, hash), ErrorCode::kCorrupt);
  // Too short, and missing.
  ASSERT_TRUE(Succeeds(store_.memory().Put("deltas/x", Bytes(5 * kMiB))));
  ExpectError(DownloadTo(out, hash), ErrorCode::kCorrupt);
  ASSERT_TRUE(Succeeds(store_.memory().Remove("deltas/x")));
  ExpectError(DownloadTo(out, hash), ErrorCode::kNotFound);
}

TEST(ParallelStore, SplitsLargeReadsAndWritesOnly) {
  SystemClock clock;
  auto traced = std::make_unique<TraceStore>(std::make_unique<MemoryStore>(&clock), &clock, nullptr);
  const TraceStore& trace = *traced;
  ParallelStore store(std::move(traced), TransferOptions());
  const Bytes large = RandomBytes(30 * kMiB + 1, 4);
  ASSERT_TRUE(Succeeds(store.Put("small", Bytes(100))));
  ASSERT_TRUE(Succeeds(store.Put("large", large)));
  Bytes out(large.size() - 5);
  ASSERT_TRUE(Succeeds(store.Read("large", 5, out)));
  EXPECT_TRUE(std::equal(out.begin(), out.end(), large.begin() + 5));
  Bytes little(10);
  ASSERT_TRUE(Succeeds(store.Read("small", 0, little)));
  const TraceCounts counts = trace.Counts();
  EXPECT_EQ(counts.by_operation.at("put"), 1U);
  EXPECT_EQ(counts.by_operation.at("write-part"), 4U);
  EXPECT_EQ(counts.by_operation.at("read"), 5U);
  ExpectError(store.Read("large", 20 * kMiB, out), ErrorCode::kCorrupt);
}

TEST(ParallelStore, AnUploadSendsSeveralPartsAtATime) {
  SystemClock clock;
  auto faulty = std::make_unique<FaultyStore>(&clock);
  FaultyStore& inner = *faulty;
  ParallelStore store(std::move(faulty), TransferOptions());
  for (const std::uint64_t size : {8 * kMiB, 8 * kMiB + 1, 64 * kMiB, 70 * kMiB + 3}) {
    SCOPED_TRACE(size);
    const Bytes bytes = RandomBytes(size, size);
    const int parts_before = inner.Calls("write-part");
    const auto upload = store.StartUpload("anchors/x", size).value();
    for (std::uint64_t i = 0; i < upload->part_count(); ++i) {
      const auto part = std::span(bytes).subspan(i * upload->part_bytes(), upload->PartSize(i));
      ASSERT_TRUE(Succeeds(upload->WritePart(i, part)));
    }
    ASSERT_TRUE(Succeeds(upload->Finish()));
    EXPECT_TRUE(inner.memory().Get("anchors/x", size).value() == bytes);
    // The inner store's parts have 8 MiB; whoever uploads gives four of them at once.
    EXPECT_EQ(static_cast<std::uint64_t>(inner.Calls("write-part") - parts_before), (size + 8 * kMiB - 1) / (8 * kMiB));
    EXPECT_EQ(upload->part_bytes(), size > 8 * kMiB ? 32 * kMiB : 8 * kMiB);
  }
}

TEST(ParallelStore, APartOfAnUploadThatFailedIsWrittenAgain) {
  SystemClock clock;
  auto faulty = std::make_unique<FaultyStore>(&clock);
  FaultyStore& inner = *faulty;
  ParallelStore store(std::move(faulty), TransferOptions());
  const Bytes bytes = RandomBytes(40 * kMiB, 5);
  const auto upload = store.StartUpload("anchors/x", bytes.size()).value();
  inner.Plan("write-part", {Fault::kNone, Fault::kUnavailable});
  const std::span first = std::span(bytes).first(32 * kMiB);
  ExpectError(upload->WritePart(0, first), ErrorCode::kUnavailable);
  ASSERT_TRUE(Succeeds(upload->WritePart(1, std::span(bytes).subspan(32 * kMiB))));
  ASSERT_TRUE(Succeeds(upload->WritePart(0, first)));
  ASSERT_TRUE(Succeeds(upload->Finish()));
  EXPECT_TRUE(inner.memory().Get("anchors/x", bytes.size()).value() == bytes);
}

}  // namespace
}  // namespace weightwire
