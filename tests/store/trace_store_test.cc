#include "store/wrappers/trace_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/bytes.h"
#include "store/faulty_store.h"
#include "support/manual_clock.h"

namespace weightwire {
namespace {

using testing::Bytes;
using testing::BytesOf;
using testing::Fault;
using testing::FaultyStore;
using testing::Succeeds;

TEST(TraceStore, TellsOfEveryRequestAndCounts) {
  ManualClock clock;
  auto faulty = std::make_unique<FaultyStore>(&clock);
  faulty->Plan("stat", {Fault::kUnavailable});
  std::vector<std::string> lines;
  TraceStore store(std::move(faulty), &clock,
                   [&](const TraceEvent& event) { lines.push_back(FormatTraceEvent(event)); });
  Bytes out(2);
  ASSERT_TRUE(Succeeds(store.Put("a", Bytes(10))));
  ASSERT_TRUE(Succeeds(store.PutIfAbsent("a", Bytes(20))));
  ASSERT_TRUE(Succeeds(store.Get("a", 100)));
  ASSERT_TRUE(Succeeds(store.Read("a", 1, out)));
  EXPECT_FALSE(store.Stat("a").ok());
  ASSERT_TRUE(Succeeds(store.List("", "", 10)));
  auto upload = store.StartUpload("b", 3);
  ASSERT_TRUE(Succeeds(upload));
  ASSERT_TRUE(Succeeds(upload.value()->WritePart(0, BytesOf("abc"))));
  ASSERT_TRUE(Succeeds(upload.value()->Finish()));
  ASSERT_TRUE(Succeeds(store.Remove("a")));
  EXPECT_THAT(lines, ::testing::ElementsAre(
                         "put a 10 sent 0 received 0.0 ms ok", "put-if-absent a 20 sent 0 received 0.0 ms exists",
                         "get a 0 sent 10 received 0.0 ms ok", "read a 0 sent 2 received 0.0 ms ok",
                         "stat a 0 sent 0 received 0.0 ms not now", "list - 0 sent 0 received 0.0 ms ok",
                         "start-upload b 0 sent 0 received 0.0 ms ok", "write-part b 3 sent 0 received 0.0 ms ok",
                         "finish-upload b 0 sent 0 received 0.0 ms ok", "remove a 0 sent 0 received 0.0 ms ok"));
  const TraceCounts counts = store.Counts();
  EXPECT_EQ(counts.requests, 10U);
  EXPECT_EQ(counts.failed, 1U);
  EXPECT_EQ(counts.sent_bytes, 33U);
  EXPECT_EQ(counts.received_bytes, 12U);
  EXPECT_EQ(counts.by_operation.at("put"), 1U);
}

}  // namespace
}  // namespace weightwire
