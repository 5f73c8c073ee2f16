// S3 against a service that misbehaves: every fault has the outcome that callers can act on, and no message gives a
// secret away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/bytes.h"
#include "store/fake_s3.h"
#include "store/read_back.h"
#include "store/transfer.h"
#include "store/wrappers/retry_store.h"
#include "support/manual_clock.h"

namespace weightwire {
namespace {

using std::chrono::milliseconds;
using testing::Bytes;
using testing::BytesOf;
using testing::FakeS3;
using testing::kSmall;
using testing::RandomBytes;
using testing::S3ErrorReply;
using testing::ServerReply;
using testing::ServerRequest;
using testing::Succeeds;

class S3FaultsTest : public ::testing::TestWithParam<FakeS3::Kind> {
 protected:
  S3FaultsTest() : s3_(GetParam()), store_(s3_.Open()) {}

  // Only for what never ends otherwise: a busy machine is slow too.
  void SetShortDeadline() {
    S3Options options = s3_.Options();
    options.http.request_timeout = milliseconds(300);
    options.http.min_bytes_per_second = 1'000'000'000;
    store_ = std::make_unique<S3Store>(options, &FakeS3::clock());
  }

  void AnswerAll(const ServerReply& reply) {
    s3_.SetBefore([reply](const ServerRequest&) { return reply; });
  }
  // Lets the request be done, and then loses the answer.
  void LoseAnswersTo(const std::string& method) {
    s3_.SetAfter([method](const ServerRequest& request, ServerReply* reply) {
      if (request.method == method) reply->no_answer = true;
    });
  }

  // Checks the code, and that neither keys nor signed addresses are in the sentence.
  template <typename T>
  void Expect(const T& result, ErrorCode code) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code(), code) << result.error().message();
    const testing::SigningKeys keys = s3_.keys();
    for (const std::string& secret :
         {keys.secret_key, keys.access_key, keys.session_token, std::string("signedaddress")}) {
      if (!secret.empty()) {
        EXPECT_THAT(result.error().message(), ::testing::Not(::testing::HasSubstr(secret)));
      }
    }
    EXPECT_THAT(result.error().message(), ::testing::HasSubstr("s3://bucket/run"));
  }

  // What all reads and all writes answer.
  void ExpectReads(ErrorCode code) {
    Bytes out(10);
    Expect(store_->Get("a", kSmall), code);
    Expect(store_->Read("a", 0, out), code);
    Expect(store_->List("", "", 10), code);
  }
  void ExpectWrites(ErrorCode code) {
    Expect(store_->Put("a", BytesOf("x")), code);
    Expect(store_->PutIfAbsent("a", BytesOf("x")), code);
    Expect(store_->Remove("a"), code);
  }

  FakeS3 s3_;
  std::unique_ptr<S3Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Services, S3FaultsTest, ::testing::Values(FakeS3::Kind::kPlain, FakeS3::Kind::kHuggingFace),
                         [](const auto& info) { return info.param == FakeS3::Kind::kPlain ? "s3" : "hf"; });

TEST_P(S3FaultsTest, SlowDownMeansNotNow) {
  AnswerAll(S3ErrorReply(503, "SlowDown"));
  ExpectReads(ErrorCode::kUnavailable);
  ExpectWrites(ErrorCode::kUnavailable);
  AnswerAll(S3ErrorReply(429, "TooManyRequests"));
  ExpectReads(ErrorCode::kUnavailable);
  ExpectWrites(ErrorCode::kUnavailable);
}

TEST_P(S3FaultsTest, AnInternalErrorLeavesAWriteUnknown) {
  AnswerAll(S3ErrorReply(500, "InternalError"));
  ExpectReads(ErrorCode::kUnavailable);
  ExpectWrites(ErrorCode::kUnknownOutcome);
  // From a proxy in between, which cannot know.
  ServerReply bare;
  for (const int status : {502, 503, 504}) {
    bare.status = status;
    bare.body = "<html>bad gateway</html>";
    AnswerAll(bare);
    ExpectReads(ErrorCode::kUnavailable);
    ExpectWrites(ErrorCode::kUnknownOutcome);
  }
}

TEST_P(S3FaultsTest, AConflictMeansNotNow) {
  AnswerAll(S3ErrorReply(409, "ConditionalRequestConflict"));
  Expect(store_->PutIfAbsent("a", BytesOf("x")), ErrorCode::kUnavailable);
}

TEST_P(S3FaultsTest, RefusalsAskForAPerson) {
  for (const auto& [status, code] :
       {std::pair{403, "AccessDenied"}, {403, "InvalidAccessKeyId"}, {401, "Unauthorized"}}) {
    AnswerAll(S3ErrorReply(status, code));
    ExpectReads(ErrorCode::kRefused);
    ExpectWrites(ErrorCode::kRefused);
    Expect(store_->Stat("a"), ErrorCode::kRefused);
    EXPECT_THAT(store_->Put("a", Bytes()).error().message(), ::testing::HasSubstr("credentials"));
  }
}

TEST_P(S3FaultsTest, AWrongSecretIsRefused) {
  s3_.SetKeys({s3_.keys().access_key, "anothersecret", "", "us-east-1"});
  ExpectReads(ErrorCode::kRefused);
  ExpectWrites(ErrorCode::kRefused);
}

TEST_P(S3FaultsTest, ClocksThatDifferAreSaidWithBothTimes) {
  ServerReply reply = S3ErrorReply(403, "RequestTimeTooSkewed");
  reply.headers["Date"] = "Sun, 15 Nov 2020 08:45:01 GMT";
  AnswerAll(reply);
  const Status put = store_->Put("a", Bytes());
  Expect(put, ErrorCode::kRefused);
  EXPECT_THAT(put.error().message(), ::testing::HasSubstr("2020-11-15 08:45:01 UTC"));
  EXPECT_THAT(put.error().message(), ::testing::ContainsRegex("here it is 20[2-9][0-9]-"));
  EXPECT_THAT(put.error().message(), ::testing::HasSubstr("clock"));
}

TEST_P(S3FaultsTest, AMissingBucketIsNotAMissingObject) {
  AnswerAll(S3ErrorReply(404, "NoSuchBucket"));
  ExpectReads(ErrorCode::kInvalidArgument);
}

TEST_P(S3FaultsTest, ABucketElsewhereIsSaid) {
  ServerReply reply = S3ErrorReply(301, "PermanentRedirect");
  reply.headers["x-amz-bucket-region"] = "eu-west-3";
  reply.headers["Location"] = s3_.CdnUrl() + "/elsewhere";
  AnswerAll(reply);
  const auto got = store_->Get("a", kSmall);
  Expect(got, ErrorCode::kInvalidArgument);
  EXPECT_THAT(got.error().message(), ::testing::HasSubstr("eu-west-3"));
  EXPECT_TRUE(s3_.leaks().empty());
}

TEST_P(S3FaultsTest, ACutBodyIsNoObject) {
  ASSERT_TRUE(Succeeds(store_->Put("a", RandomBytes(100'000, 1))));
  ServerReply reply;
  reply.body = std::string(100'000, 'x');
  reply.cut_body_after = 50'000;
  AnswerAll(reply);
  Bytes out(100'000);
  Expect(store_->Get("a", kSmall), ErrorCode::kUnavailable);
  Expect(store_->Read("a", 0, out), ErrorCode::kUnavailable);
  reply.body = "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
  reply.cut_body_after = 40;
  AnswerAll(reply);
  Expect(store_->List("", "", 10), ErrorCode::kUnavailable);
}

TEST_P(S3FaultsTest, WrongLengthsAreFound) {
  Bytes out(1000);
  ServerReply reply;
  reply.status = 206;
  reply.headers["Content-Range"] = "bytes 0-999/1000";
  for (const std::size_t size : {0, 999, 1001, 5000}) {
    reply.body = std::string(size, 'x');
    AnswerAll(reply);
    Expect(store_->Read("a", 0, out), ErrorCode::kCorrupt);
  }
  // Right length, wrong place.
  reply.body = std::string(1000, 'x');
  reply.headers["Content-Range"] = "bytes 5-1004/2000";
  AnswerAll(reply);
  Expect(store_->Read("a", 0, out), ErrorCode::kCorrupt);
  // The range ignored.
  reply.status = 200;
  reply.headers.clear();
  AnswerAll(reply);
  Expect(store_->Read("a", 500, out), ErrorCode::kCorrupt);
  EXPECT_TRUE(Succeeds(store_->Read("a", 0, out)));
  // More promised than sent.
  reply.claimed_length = 2000;
  AnswerAll(reply);
  Expect(store_->Get("a", kSmall), ErrorCode::kUnavailable);
}

TEST_P(S3FaultsTest, AnswersThatAreNoneAreDamage) {
  ServerReply reply;
  reply.body = "<html>hello</html>";
  AnswerAll(reply);
  const auto listed = store_->List("", "", 10);
  ASSERT_FALSE(listed.ok());
  EXPECT_EQ(listed.error().code(), ErrorCode::kCorrupt);
  const auto upload = store_->StartUpload("a", 100);
  ASSERT_FALSE(upload.ok());
  EXPECT_EQ(upload.error().code(), ErrorCode::kCorrupt);
}

TEST_P(S3FaultsTest, ListsThatGoInCirclesEnd) {
  ServerReply reply;
  reply.body =
      "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>run/a</Key>"
      "<LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>1</Size></Contents></ListBucketResult>";
  AnswerAll(reply);
  Expect(store_->List("", "", 10), ErrorCode::kCorrupt);
}

TEST_P(S3FaultsTest, BytesThatTrickleRunIntoTheDeadline) {
  SetShortDeadline();
  ServerReply reply;
  reply.body = std::string(100'000, 'x');  // 500 seconds' worth
  reply.trickle = true;
  AnswerAll(reply);
  Bytes out(100'000);
  Expect(store_->Get("a", kSmall), ErrorCode::kUnavailable);
  Expect(store_->Read("a", 0, out), ErrorCode::kUnavailable);
}

TEST_P(S3FaultsTest, AnAnswerThatNeverComesRunsIntoTheDeadline) {
  SetShortDeadline();
  ServerReply reply;
  reply.never = true;
  AnswerAll(reply);
  Expect(store_->Get("a", kSmall), ErrorCode::kUnavailable);
  Expect(store_->PutIfAbsent("a", BytesOf("x")), ErrorCode::kUnknownOutcome);
}

TEST_P(S3FaultsTest, NobodyThereMeansNotNowForWritesToo) {
  S3Options options = s3_.Options();
  {
    testing::HttpServer gone([](const ServerRequest&) { return ServerReply(); });
    options.service.endpoint = gone.Url();
  }
  store_ = std::make_unique<S3Store>(options, &FakeS3::clock());
  ExpectReads(ErrorCode::kUnavailable);
  ExpectWrites(ErrorCode::kUnavailable);
}

TEST_P(S3FaultsTest, ALostAnswerToAWriteIsUnknownAndCommitFindsOut) {
  LoseAnswersTo("PUT");
  Expect(store_->Put("a", BytesOf("x")), ErrorCode::kUnknownOutcome);
  Expect(store_->PutIfAbsent("b", BytesOf("x")), ErrorCode::kUnknownOutcome);
  EXPECT_EQ(PutAndReadBack(*store_, "v/1", BytesOf("ours")).value(), ReadBackOutcome::kOurs);
  EXPECT_EQ(PutAndReadBack(*store_, "v/1", BytesOf("ours")).value(), ReadBackOutcome::kOurs);
  EXPECT_EQ(PutAndReadBack(*store_, "v/1", BytesOf("other")).value(), ReadBackOutcome::kConflict);
  LoseAnswersTo("DELETE");
  Expect(store_->Remove("a"), ErrorCode::kUnknownOutcome);
}

TEST_P(S3FaultsTest, APutIfAbsentIsNeverSentTwiceUnnoticed) {
  // On a connection that was used before, so that curl could take it for one that died of age.
  ASSERT_TRUE(Succeeds(store_->Put("warm", BytesOf("x"))));
  const int before = s3_.requests("PUT");
  LoseAnswersTo("PUT");
  Expect(store_->PutIfAbsent("b", BytesOf("x")), ErrorCode::kUnknownOutcome);
  EXPECT_EQ(s3_.requests("PUT"), before + 1);
}

TEST_P(S3FaultsTest, ConnectionsThatDiedOfAgeAreReplaced) {
  ASSERT_TRUE(Succeeds(store_->Put("a", BytesOf("x"))));
  s3_.CloseConnections();
  EXPECT_TRUE(Succeeds(store_->Get("a", kSmall)));
  s3_.CloseConnections();
  EXPECT_TRUE(Succeeds(store_->Put("a", BytesOf("y"))));
}

TEST_P(S3FaultsTest, RetryingGetsThroughAllOfIt) {
  ManualClock clock;
  ManualSleeper sleeper(&clock);
  SeededRandom random(1);
  RetryStore retry(std::move(store_), {.deadline = std::chrono::minutes(5)}, &clock, &sleeper, &random);
  // By chance, but the same each time: faults in a fixed order could follow our own steps for ever.
  SeededRandom faults(2);
  s3_.SetBefore([&](const ServerRequest&) -> std::optional<ServerReply> {
    const std::uint64_t number = faults.Below(6);
    if (number == 0) return S3ErrorReply(503, "SlowDown");
    if (number == 1) return S3ErrorReply(500, "InternalError");
    if (number == 2) {
      ServerReply reply;
      reply.no_answer = true;
      return reply;
    }
    return std::nullopt;
  });
  for (int i = 0; i < 20; ++i) {
    const std::string key = "b" + std::to_string(i);
    EXPECT_TRUE(Succeeds(retry.Put("a", BytesOf("x"))));
    const auto put = retry.PutIfAbsent(key, BytesOf(key));
    ASSERT_TRUE(Succeeds(put));
    EXPECT_EQ(put.value(), PutOutcome::kCreated);
    const auto got = retry.Get(key, kSmall);
    ASSERT_TRUE(Succeeds(got));
    EXPECT_EQ(got.value(), BytesOf(key));
  }
  const auto listed = retry.List("", "", 100);
  ASSERT_TRUE(Succeeds(listed));
  EXPECT_EQ(listed.value().size(), 21U);
  const Bytes large = RandomBytes(40 << 20, 9);
  EXPECT_TRUE(Succeeds(PutObject(retry, "large", large, TransferOptions())));
  Bytes out(large.size());
  EXPECT_TRUE(Succeeds(ReadInParallel(retry, "large", 0, out, TransferOptions())));
  EXPECT_TRUE(out == large);
}

TEST_P(S3FaultsTest, AFinishThatFailsInsideASuccessIsUnknown) {
  auto upload = store_->StartUpload("a", 3);
  ASSERT_TRUE(Succeeds(upload));
  ASSERT_TRUE(Succeeds(upload.value()->WritePart(0, BytesOf("abc"))));
  s3_.SetBefore([](const ServerRequest& request) -> std::optional<ServerReply> {
    if (request.method != "POST") return std::nullopt;
    ServerReply reply = S3ErrorReply(200, "InternalError");
    return reply;
  });
  Expect(upload.value()->Finish(), ErrorCode::kUnknownOutcome);
  s3_.SetBefore(nullptr);
  EXPECT_TRUE(Succeeds(upload.value()->Finish()));
}

TEST_P(S3FaultsTest, UploadsThatAreGivenUpLeaveNoParts) {
  {
    auto upload = store_->StartUpload("a", 3);
    ASSERT_TRUE(Succeeds(upload));
    ASSERT_TRUE(Succeeds(upload.value()->WritePart(0, BytesOf("abc"))));
    EXPECT_EQ(s3_.unfinished_uploads(), 1);
  }
  EXPECT_EQ(s3_.unfinished_uploads(), 0);
}

TEST_P(S3FaultsTest, CredentialsDoNotTravelToAnotherHost) {
  S3Options options = s3_.Options();
  s3_.SetKeys({s3_.keys().access_key, s3_.keys().secret_key, "sessiontoken", "us-east-1"});
  options.credentials = std::make_shared<FixedCredentials>(
      Credentials{s3_.keys().access_key, Secret(s3_.keys().secret_key), Secret("sessiontoken"), std::nullopt});
  S3Store store(options, &FakeS3::clock());
  ASSERT_TRUE(Succeeds(store.Put("a", BytesOf("content"))));
  s3_.SetBefore([this](const ServerRequest& request) -> std::optional<ServerReply> {
    if (request.method != "GET") return std::nullopt;
    ServerReply reply;
    reply.status = 302;
    reply.headers["Location"] = s3_.CdnUrl() + "/run/a?Signature=signedaddress";
    return reply;
  });
  Bytes out(3);
  EXPECT_EQ(store.Get("a", kSmall).value(), BytesOf("content"));
  EXPECT_TRUE(Succeeds(store.Read("a", 2, out)));
  EXPECT_EQ(out, BytesOf("nte"));
  EXPECT_TRUE(s3_.leaks().empty()) << s3_.leaks()[0];
}

TEST_P(S3FaultsTest, RedirectsThatLeadNowhereEnd) {
  ServerReply reply;
  reply.status = 302;
  for (const std::string& location : {std::string(), std::string("ftp://elsewhere/x"), std::string("/relative"),
                                      s3_.CdnUrl() + "/gone?Signature=signedaddress"}) {
    reply.headers["Location"] = location;
    AnswerAll(reply);
    const auto got = store_->Get("a", kSmall);
    ASSERT_FALSE(got.ok());
    Expect(got, got.error().code());
    EXPECT_NE(got.error().code(), ErrorCode::kUnknownOutcome);
  }
  // Round and round.
  testing::HttpServer loop([&](const ServerRequest& request) {
    ServerReply again;
    again.status = 302;
    again.headers["Location"] = "http://" + request.Header("host") + "/again?Signature=signedaddress";
    return again;
  });
  reply.headers["Location"] = loop.Url() + "/x";
  AnswerAll(reply);
  Expect(store_->Get("a", kSmall), ErrorCode::kCorrupt);
}

// Gives new keys each time it is told that the old ones have expired.
class RenewingCredentials final : public CredentialSource {
 public:
  explicit RenewingCredentials(Credentials first, Credentials then) : now_(std::move(first)), then_(std::move(then)) {}
  Result<Credentials> Get() override { return now_; }
  bool Renew() override {
    ++renewals;
    now_ = then_;
    return true;
  }
  int renewals = 0;

 private:
  Credentials now_;
  Credentials then_;
};

TEST_P(S3FaultsTest, ExpiredCredentialsAreRenewedOnce) {
  S3Options options = s3_.Options();
  const testing::SigningKeys keys = s3_.keys();
  const Secret secret(keys.secret_key);
  auto source = std::make_shared<RenewingCredentials>(Credentials{keys.access_key, secret, Secret("oldtoken"), {}},
                                                      Credentials{keys.access_key, secret, Secret("newtoken"), {}});
  options.credentials = source;
  store_ = std::make_unique<S3Store>(options, &FakeS3::clock());
  s3_.SetKeys({keys.access_key, keys.secret_key, "newtoken", "us-east-1"});
  s3_.SetBefore([](const ServerRequest& request) -> std::optional<ServerReply> {
    if (request.Header("x-amz-security-token") != "oldtoken") return std::nullopt;
    return S3ErrorReply(400, "ExpiredToken");
  });
  EXPECT_EQ(store_->PutIfAbsent("a", BytesOf("x")).value(), PutOutcome::kCreated);
  EXPECT_EQ(source->renewals, 1);
  // Expired for good: said once, not for ever.
  AnswerAll(S3ErrorReply(400, "ExpiredToken"));
  ExpectWrites(ErrorCode::kRefused);
}

// Keys that do not expire are held for as long as the service takes them.
TEST_P(S3FaultsTest, RotatedKeysAreReadAgainOnce) {
  const testing::SigningKeys keys = s3_.keys();
  for (const char* code : {"InvalidAccessKeyId", "SignatureDoesNotMatch"}) {
    S3Options options = s3_.Options();
    auto source = std::make_shared<RenewingCredentials>(
        Credentials{"OLDACCESS", Secret("old"), Secret(), {}},
        Credentials{keys.access_key, Secret(keys.secret_key), Secret(keys.session_token), {}});
    options.credentials = source;
    store_ = std::make_unique<S3Store>(options, &FakeS3::clock());
    s3_.SetBefore([code](const ServerRequest& request) -> std::optional<ServerReply> {
      if (request.Header("authorization").find("OLDACCESS") == std::string::npos) return std::nullopt;
      return S3ErrorReply(403, code);
    });
    EXPECT_TRUE(Succeeds(store_->Put("a", BytesOf("x"))));
    EXPECT_EQ(source->renewals, 1);
    // Wrong for good: one more look for each request.
    AnswerAll(S3ErrorReply(403, code));
    Expect(store_->Put("a", BytesOf("x")), ErrorCode::kRefused);
    EXPECT_EQ(source->renewals, 2);
  }
}

TEST_P(S3FaultsTest, StatLearnsWhyItIsRefused) {
  S3Options options = s3_.Options();
  const testing::SigningKeys keys = s3_.keys();
  const Secret secret(keys.secret_key);
  ASSERT_TRUE(Succeeds(store_->Put("a", BytesOf("abc"))));
  options.credentials = std::make_shared<RenewingCredentials>(
      Credentials{keys.access_key, secret, Secret("oldtoken"), {}}, Credentials{keys.access_key, secret, Secret(), {}});
  S3Store store(options, &FakeS3::clock());
  s3_.SetBefore([](const ServerRequest& request) -> std::optional<ServerReply> {
    if (request.Header("x-amz-security-token") != "oldtoken") return std::nullopt;
    ServerReply reply = S3ErrorReply(400, "ExpiredToken");
    if (request.method == "HEAD") reply.body.clear();
    return reply;
  });
  const auto stat = store.Stat("a");
  ASSERT_TRUE(Succeeds(stat));
  EXPECT_EQ(stat.value().size_bytes, 3U);
}

TEST_P(S3FaultsTest, TheStoresTimeIsTheStoresOwn) {
  s3_.SetAfter(
      [](const ServerRequest&, ServerReply* reply) { reply->headers["Date"] = "Sun, 15 Nov 2020 08:45:01 GMT"; });
  const auto now = store_->Now();
  ASSERT_TRUE(Succeeds(now));
  const WallTime date = std::chrono::sys_days(std::chrono::year(2020) / 11 / 15) + std::chrono::hours(8) +
                        std::chrono::minutes(45) + std::chrono::seconds(1);
  EXPECT_GE(now.value(), date);
  EXPECT_LT(now.value(), date + std::chrono::hours(1));
  // The next one needs no request.
  const int before = s3_.requests();
  EXPECT_TRUE(Succeeds(store_->Now()));
  EXPECT_EQ(s3_.requests(), before);
}

TEST_P(S3FaultsTest, NothingIsSentThatTheGatewayDoesNotKnow) {
  std::vector<std::string> unknown;
  s3_.SetBefore([&](const ServerRequest& request) -> std::optional<ServerReply> {
    for (const auto& [name, value] : request.headers) {
      if (name.starts_with("x-amz-meta-") || name.starts_with("x-amz-checksum") || name == "x-amz-trailer" ||
          name == "x-amz-sdk-checksum-algorithm" || value.find("aws-chunked") != std::string::npos ||
          name == "transfer-encoding") {
        unknown.push_back(name);
      }
    }
    return std::nullopt;
  });
  ASSERT_TRUE(Succeeds(PutObject(*store_, "large", Bytes(20 << 20), TransferOptions())));
  ASSERT_TRUE(Succeeds(store_->PutIfAbsent("small", BytesOf("x"))));
  ASSERT_TRUE(Succeeds(store_->List("", "", 10)));
  EXPECT_TRUE(unknown.empty()) << unknown[0];
}

}  // namespace
}  // namespace weightwire
