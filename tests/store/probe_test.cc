#include "store/probe.h"

#include <gtest/gtest.h>

#include "store/backends.h"
#include "store/bytes.h"
#include "store/fake_s3.h"
#include "support/memory_store.h"

namespace weightwire {
namespace {

using testing::FakeS3;
using testing::ServerReply;
using testing::ServerRequest;
using testing::Succeeds;

class ProbeTest : public ::testing::TestWithParam<testing::Backend> {};
INSTANTIATE_TEST_SUITE_P(Stores, ProbeTest, ::testing::ValuesIn(testing::AllBackends()),
                         [](const auto& info) { return info.param.name; });

TEST_P(ProbeTest, RealStoresHonourPutIfAbsentAndNothingIsLeft) {
  const auto bucket = GetParam().make_bucket();
  const auto store = bucket->Open();
  SystemRandom random;
  const auto honours = HonoursPutIfAbsent(*store, random);
  ASSERT_TRUE(Succeeds(honours));
  EXPECT_TRUE(honours.value());
  EXPECT_TRUE(store->List("", "", 10).value().empty());
}

TEST(Probe, AServiceThatIgnoresTheConditionIsFoundOut) {
  FakeS3 s3;
  SystemRandom random;
  // It stores the second object just the same.
  s3.SetBefore([](const ServerRequest& request) -> std::optional<ServerReply> {
    if (request.Header("if-none-match").empty()) return std::nullopt;
    ServerReply reply;
    reply.headers["ETag"] = "\"x\"";
    return reply;
  });
  const auto honours = HonoursPutIfAbsent(*s3.Open(), random);
  ASSERT_TRUE(Succeeds(honours));
  EXPECT_FALSE(honours.value());
}

TEST(Probe, AServiceThatDoesNotKnowTheConditionIsFoundOut) {
  FakeS3 s3;
  SystemRandom random;
  s3.SetBefore([](const ServerRequest& request) -> std::optional<ServerReply> {
    if (request.Header("if-none-match").empty()) return std::nullopt;
    return testing::S3ErrorReply(501, "NotImplemented", "If-None-Match");
  });
  EXPECT_FALSE(HonoursPutIfAbsent(*s3.Open(), random).value());
}

}  // namespace
}  // namespace weightwire
