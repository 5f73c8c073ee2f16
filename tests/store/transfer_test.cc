#include "store/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>

#include "base/object_hash.h"
#include "store/bytes.h"
#include "store/faulty_store.h"
#include "store/file_store.h"
#include "store/parallel_store.h"
#include "store/trace_store.h"
#include "testing/temporary_directory.h"

namespace weightwire {
namespace {

using testing::Bytes;
using testing::ExpectError;
using testing::Fault;
using testing::FaultyStore;
using testing::RandomBytes;
using testing::Succeeds;
using testing::TemporaryDirectory;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class TransferTest : public ::testing::Test {
 protected:
  Status UploadBytes(const Bytes& bytes, const Sha256Digest& hash) {
    SpanSource source(bytes);
    return UploadObject(store_, "deltas/x", source, hash, options_);
  }
  Status UploadBytes(const Bytes& bytes) { return UploadBytes(bytes, ObjectHash(bytes)); }
  Status DownloadTo(Bytes& out, const Sha256Digest& hash) {
    SpanSink sink(out);
    return DownloadObject(store_, "deltas/x", out.size(), hash, sink, options_);
  }

  SystemClock clock_;
  FaultyStore store_{&clock_};
  TransferOptions options_;
};

TEST_F(TransferTest, WhatIsUploadedIsDownloaded) {
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1}, 4 * kMiB - 1, 4 * kMiB, 4 * kMiB + 1, 8 * kMiB,
                                   16 * kMiB, 16 * kMiB + 1, 33 * kMiB + 7}) {
    SCOPED_TRACE(size);
    ASSERT_TRUE(Succeeds(store_.Remove("deltas/x")));
    const Bytes bytes = RandomBytes(size, size);
    std::atomic<std::uint64_t> progress = 0;
    options_.progress = [&](std::uint64_t more) { progress += more; };
    ASSERT_TRUE(Succeeds(UploadBytes(bytes)));
    EXPECT_EQ(progress.load(), size);
    EXPECT_TRUE(store_.memory().Get("deltas/x", size).value() == bytes);
    Bytes out(size);
    progress = 0;
    ASSERT_TRUE(Succeeds(DownloadTo(out, ObjectHash(bytes))));
    EXPECT_EQ(progress.load(), size);
    EXPECT_TRUE(out == bytes);
  }
}

TEST_F(TransferTest, ASmallObjectIsOneRequest) {
  ASSERT_TRUE(Succeeds(UploadBytes(Bytes(16 * kMiB))));
  EXPECT_EQ(store_.Calls("put"), 1);
  EXPECT_EQ(store_.Calls("stat"), 0);
  EXPECT_EQ(store_.Calls("start"), 0);
}

TEST_F(TransferTest, ALargeObjectThatIsThereIsNotUploadedAgain) {
  const Bytes bytes = RandomBytes(20 * kMiB, 1);
  ASSERT_TRUE(Succeeds(UploadBytes(bytes)));
  ASSERT_TRUE(Succeeds(UploadBytes(bytes)));
  EXPECT_EQ(store_.Calls("start"), 1);
  // One of another size is not it.
  ASSERT_TRUE(Succeeds(store_.memory().Put("deltas/x", Bytes(3))));
  ASSERT_TRUE(Succeeds(UploadBytes(bytes)));
  EXPECT_EQ(store_.Calls("start"), 2);
  EXPECT_TRUE(store_.memory().Get("deltas/x", bytes.size()).value() == bytes);
}

TEST_F(TransferTest, ASourceWithAnotherHashIsNotUploaded) {
  for (const std::uint64_t size : {3 * kMiB, 20 * kMiB}) {
    ExpectError(UploadBytes(Bytes(size), ObjectHash(Bytes(size, 1))), ErrorCode::kCorrupt);
    ExpectError(store_.memory().Stat("deltas/x"), ErrorCode::kNotFound);
  }
  EXPECT_EQ(store_.Calls("abort"), 1);
}

TEST_F(TransferTest, ASourceThatNeedNoCheckIsSentAsItIs) {
  options_.check_source = false;
  for (const std::uint64_t size : {3 * kMiB, 20 * kMiB}) {
    ASSERT_TRUE(Succeeds(UploadBytes(Bytes(size), Sha256Digest())));
    EXPECT_EQ(store_.memory().Stat("deltas/x").value().size_bytes, size);
  }
}

TEST_F(TransferTest, AFailedPartGivesTheUploadUp) {
  store_.Plan("part", {Fault::kNone, Fault::kUnavailable});
  ExpectError(UploadBytes(Bytes(64 * kMiB)), ErrorCode::kUnavailable);
  EXPECT_EQ(store_.Calls("abort"), 1);
  EXPECT_EQ(store_.Calls("finish"), 0);
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

TEST_F(TransferTest, FilesAreSourcesAndSinks) {
  const TemporaryDirectory directory;
  const Bytes bytes = RandomBytes(37 * kMiB + 11, 3);
  testing::WriteAll(directory / "from", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  FileStore store(directory / "run", "run");
  const File from = File::OpenForRead(directory / "from").value();
  FileSource source(&from, bytes.size());
  ASSERT_TRUE(Succeeds(UploadObject(store, "a/b", source, ObjectHash(bytes), options_)));
  const File to = File::Create(directory / "to").value();
  FileSink sink(&to);
  ASSERT_TRUE(Succeeds(DownloadObject(store, "a/b", bytes.size(), ObjectHash(bytes), sink, options_)));
  EXPECT_TRUE(testing::ReadAll(directory / "to") == testing::ReadAll(directory / "from"));
}

// Only `threads` buffers are ever asked for, however large the object.
TEST_F(TransferTest, MemoryIsBoundedByThreads) {
  class Sink final : public ByteSink {
   public:
    std::span<std::uint8_t> Room(std::uint64_t, std::uint64_t size, std::vector<std::uint8_t>& scratch) override {
      const std::lock_guard lock(mutex_);
      buffers_.insert(&scratch);
      scratch.resize(size);
      return scratch;
    }
    Status Take(std::uint64_t, std::span<const std::uint8_t>) override { return Ok(); }
    std::size_t buffers() const { return buffers_.size(); }

   private:
    std::mutex mutex_;
    std::set<const void*> buffers_;
  };
  const Bytes bytes(64 * kMiB);
  ASSERT_TRUE(Succeeds(store_.memory().Put("deltas/x", bytes)));
  options_.threads = 3;
  options_.read_bytes = 4 * kMiB;
  Sink sink;
  ASSERT_TRUE(Succeeds(DownloadObject(store_, "deltas/x", bytes.size(), ObjectHash(bytes), sink, options_)));
  EXPECT_LE(sink.buffers(), 3U);
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

}  // namespace
}  // namespace weightwire
