#include "store/open.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "store/backends/hf_hub_store.h"
#include "store/bytes.h"
#include "store/fake_s3.h"
#include "store/store_url.h"
#include "support/manual_clock.h"
#include "support/temporary_directory.h"

namespace weightwire {
namespace {

using testing::BytesOf;
using testing::ExpectError;
using testing::FakeS3;
using testing::kSmall;
using testing::Succeeds;
using testing::TemporaryDirectory;

TEST(StoreUrl, TakesApartWhatPeopleWrite) {
  const auto path = ParseStoreUrl("some/run");
  ASSERT_TRUE(Succeeds(path));
  EXPECT_EQ(path.value().path, "some/run");
  EXPECT_EQ(ParseStoreUrl("file:///data/my%20run").value().path, "/data/my run");
  const auto s3 = ParseStoreUrl("s3://bucket/a/run/?endpoint=http%3A%2F%2Fhost:90&region=eu");
  ASSERT_TRUE(Succeeds(s3));
  EXPECT_EQ(s3.value().bucket, "bucket");
  EXPECT_EQ(s3.value().prefix, "a/run");
  EXPECT_EQ(s3.value().query.at("endpoint"), "http://host:90");
  EXPECT_EQ(s3.value().query.at("region"), "eu");
  EXPECT_EQ(s3.value().name, "s3://bucket/a/run/");
  EXPECT_EQ(ParseStoreUrl("s3://bucket").value().prefix, "");
  const auto hf = ParseStoreUrl("hf://buckets/owner/name/run");
  ASSERT_TRUE(Succeeds(hf));
  EXPECT_EQ(hf.value().bucket, "owner/name");
  EXPECT_EQ(hf.value().prefix, "run");
}

TEST(StoreUrl, RefusesTheRest) {
  for (const char* url : {"",
                          "gs://bucket/run",
                          "s3://",
                          "s3:///run",
                          "s3://b/../run",
                          "s3://b//run",
                          "s3://b/a b",
                          "s3://bucket/run?secret=x",
                          "s3://bucket/run?region",
                          "s3://bucket/run?region=%zz",
                          "hf://owner/name",
                          "s3:/bucket/run",
                          "s3//bucket/run",
                          "S3://bucket/run",
                          "s3:bucket/run",
                          "hf:/buckets/a/b",
                          "Hf://buckets/a/b/c",
                          "file:/data/run",
                          "FILE:///data/run",
                          "hf://buckets/owner",
                          "file://host/path",
                          "file://relative",
                          "hf://models/a/b/c"}) {
    ExpectError(ParseStoreUrl(url), ErrorCode::kInvalidArgument);
  }
  for (const char* endpoint :
       {"host", "ftp://host", "https://", "https://user:word@host", "https://host/?x", "http:///x"}) {
    const auto checked = CheckEndpoint(endpoint);
    ExpectError(checked, ErrorCode::kInvalidArgument);
    EXPECT_THAT(checked.error().message(), ::testing::Not(::testing::HasSubstr("word@")));
  }
  EXPECT_EQ(CheckEndpoint("https://host:90/path/").value(), "https://host:90/path");
}

class OpenTest : public ::testing::Test {
 protected:
  OpenTest() {
    variables_["HOME"] = directory_.path().string();
    variables_["AWS_EC2_METADATA_DISABLED"] = "true";
    options_.clock = &clock_;
    options_.environment = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    };
  }
  void UseKeys(const FakeS3& s3) {
    variables_["AWS_ACCESS_KEY_ID"] = s3.keys().access_key;
    variables_["AWS_SECRET_ACCESS_KEY"] = s3.keys().secret_key;
  }

  SystemClock clock_;
  TemporaryDirectory directory_;
  std::map<std::string, std::string> variables_;
  OpenOptions options_;
};

TEST_F(OpenTest, DirectoriesByPathAndUrl) {
  const std::string path = (directory_ / "run").string();
  const auto by_path = OpenBackend(path, options_);
  ASSERT_TRUE(Succeeds(by_path));
  ASSERT_TRUE(Succeeds(by_path.value()->Put("a", BytesOf("x"))));
  const auto by_url = OpenBackend("file://" + path, options_);
  ASSERT_TRUE(Succeeds(by_url));
  EXPECT_EQ(by_url.value()->Get("a", kSmall).value(), BytesOf("x"));
  EXPECT_FALSE(IsPublic(path, options_, "a").value());
}

TEST_F(OpenTest, S3ByTheUrlsEndpointOrTheEnvironments) {
  FakeS3 s3;
  UseKeys(s3);
  const auto by_url = OpenBackend("s3://bucket/run?endpoint=" + s3.Url(), options_);
  ASSERT_TRUE(Succeeds(by_url));
  ASSERT_TRUE(Succeeds(by_url.value()->Put("a", BytesOf("x"))));
  variables_["AWS_ENDPOINT_URL"] = s3.Url() + "/";
  EXPECT_EQ(OpenBackend("s3://bucket/run", options_).value()->Get("a", kSmall).value(), BytesOf("x"));
  // The signature covers the region, so a service in another one refuses.
  variables_["AWS_REGION"] = "eu-west-3";
  ExpectError(OpenBackend("s3://bucket/run", options_).value()->Get("a", kSmall), ErrorCode::kRefused);
  EXPECT_TRUE(OpenBackend("s3://bucket/run?region=us-east-1", options_).value()->Get("a", kSmall).ok());
  ExpectError(OpenBackend("s3://bucket/run?addressing=x", options_), ErrorCode::kInvalidArgument);
}

TEST_F(OpenTest, WithoutCredentialsTheFirstRequestSaysSo) {
  FakeS3 s3;
  const auto store = OpenBackend("s3://bucket/run?endpoint=" + s3.Url(), options_);
  ASSERT_TRUE(Succeeds(store));
  ExpectError(store.value()->Get("a", kSmall), ErrorCode::kRefused);
  EXPECT_EQ(s3.requests(), 0);
}

TEST_F(OpenTest, HuggingFaceKeysOpenTheGateway) {
  FakeS3 s3(FakeS3::Kind::kHuggingFace);
  UseKeys(s3);
  const auto store = OpenBackend("hf://buckets/owner/bucket/run?endpoint=" + s3.Url(), options_);
  ASSERT_TRUE(Succeeds(store));
  EXPECT_EQ(store.value()->PutIfAbsent("a/b", BytesOf("x")).value(), PutOutcome::kCreated);
  EXPECT_EQ(store.value()->Get("a/b", kSmall).value(), BytesOf("x"));
  EXPECT_EQ(store.value()->List("", "", 10).value().size(), 1U);
}

TEST_F(OpenTest, OtherKeysAreNotSentToHuggingFace) {
  FakeS3 s3(FakeS3::Kind::kHuggingFace);
  variables_["AWS_ACCESS_KEY_ID"] = "AKIAAMAZON";
  variables_["AWS_SECRET_ACCESS_KEY"] = "amazonsecret";
  variables_["HF_ENDPOINT"] = "http://127.0.0.1:1";
  const auto store = OpenBackend("hf://buckets/owner/bucket/run?endpoint=" + s3.Url(), options_);
  ASSERT_TRUE(Succeeds(store));
  EXPECT_FALSE(store.value()->Get("a", kSmall).ok());
  EXPECT_EQ(s3.requests(), 0);
}

TEST_F(OpenTest, WithOnlyATokenWritingSaysHowToGetKeys) {
  variables_["HF_TOKEN"] = "hf_secrettoken";
  const auto store = OpenBackend("hf://buckets/owner/bucket/run", options_);
  ASSERT_TRUE(Succeeds(store));
  const auto put = store.value()->PutIfAbsent("a", BytesOf("x"));
  ExpectError(put, ErrorCode::kRefused);
  EXPECT_THAT(put.error().message(), ::testing::HasSubstr("Generate S3 credentials"));
  EXPECT_THAT(put.error().message(), ::testing::Not(::testing::HasSubstr("secrettoken")));
  ExpectError(store.value()->Put("a", BytesOf("x")), ErrorCode::kRefused);
  ExpectError(store.value()->StartUpload("a", 1), ErrorCode::kRefused);
}

TEST_F(OpenTest, APublicBucketIsFoundOut) {
  FakeS3 s3;
  UseKeys(s3);
  const std::string url = "s3://bucket/run?endpoint=" + s3.Url();
  ASSERT_TRUE(Succeeds(OpenBackend(url, options_).value()->Put("run.json", BytesOf("x"))));
  const auto closed = IsPublic(url, options_, "run.json");
  ASSERT_TRUE(Succeeds(closed));
  EXPECT_FALSE(closed.value());
  s3.SetBefore([](const testing::ServerRequest& request) -> std::optional<testing::ServerReply> {
    testing::ServerReply reply;
    if (!request.Header("authorization").empty()) reply.status = 500;
    return reply;
  });
  EXPECT_TRUE(IsPublic(url, options_, "run.json").value());
}

TEST_F(OpenTest, TheUsualWrappersCountEveryAttempt) {
  FakeS3 s3;
  UseKeys(s3);
  int failures = 2;
  s3.SetBefore([&](const testing::ServerRequest&) -> std::optional<testing::ServerReply> {
    if (failures-- > 0) return testing::S3ErrorReply(503, "SlowDown");
    return std::nullopt;
  });
  ManualClock clock;
  ManualSleeper sleeper(&clock);
  SeededRandom random(1);
  OpenOptions options = options_;
  options.clock = &clock;
  options.sleeper = &sleeper;
  options.random = &random;
  std::vector<std::string> lines;
  options.trace = [&](const TraceEvent& event) { lines.push_back(FormatTraceEvent(event)); };
  const TraceStore* counts = nullptr;
  const auto store = OpenStore("s3://bucket/run?endpoint=" + s3.Url(), options, &counts);
  ASSERT_TRUE(Succeeds(store));
  ASSERT_TRUE(Succeeds(store.value()->Put("a", BytesOf("abc"))));
  EXPECT_EQ(counts->Counts().requests, 3U);
  EXPECT_EQ(counts->Counts().failed, 2U);
  ASSERT_EQ(lines.size(), 3U);
  for (const std::string& line : lines) {
    EXPECT_THAT(line, ::testing::Not(::testing::HasSubstr(s3.keys().secret_key)));
  }
}

}  // namespace
}  // namespace weightwire
