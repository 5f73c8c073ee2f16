#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "store/bytes.h"
#include "store/credentials/aws_profile.h"
#include "store/credentials/credential_chain.h"
#include "store/credentials/credential_process.h"
#include "store/credentials/web_identity.h"
#include "store/http_server.h"
#include "support/manual_clock.h"
#include "support/temporary_directory.h"

namespace weightwire {
namespace {

using testing::ExpectError;
using testing::HttpServer;
using testing::ServerReply;
using testing::ServerRequest;
using testing::Succeeds;
using testing::TemporaryDirectory;

class CredentialsTest : public ::testing::Test {
 protected:
  CredentialsTest() {
    variables_["HOME"] = directory_.path().string();
    variables_["AWS_EC2_METADATA_DISABLED"] = "true";
  }

  Environment Variables() {
    return [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    };
  }
  Result<Credentials> Get() { return CredentialChain(Variables(), HttpOptions(), &clock_).Get(); }
  void WriteAwsFile(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(directory_ / ".aws");
    testing::WriteAll(directory_ / ".aws" / name, text);
  }

  TemporaryDirectory directory_;
  std::map<std::string, std::string> variables_;
  ManualClock clock_{WallTime(std::chrono::sys_days(std::chrono::year(2026) / 1 / 1))};
};

TEST_F(CredentialsTest, NoneAnywhereSaysWhatToDo) {
  const auto none = Get();
  ExpectError(none, ErrorCode::kRefused);
  EXPECT_THAT(none.error().message(), ::testing::HasSubstr("AWS_ACCESS_KEY_ID"));
}

TEST_F(CredentialsTest, TheEnvironmentComesFirst) {
  WriteAwsFile("credentials", "[default]\naws_access_key_id=FILE\naws_secret_access_key=filesecret\n");
  variables_["AWS_ACCESS_KEY_ID"] = "ENV";
  ExpectError(Get(), ErrorCode::kRefused);  // one without the other
  variables_["AWS_SECRET_ACCESS_KEY"] = "envsecret";
  variables_["AWS_SESSION_TOKEN"] = "envtoken";
  const auto got = Get();
  ASSERT_TRUE(Succeeds(got));
  EXPECT_EQ(got.value().access_key, "ENV");
  EXPECT_EQ(got.value().secret_key.Reveal(), "envsecret");
  EXPECT_EQ(got.value().session_token.Reveal(), "envtoken");
}

TEST_F(CredentialsTest, ProfilesComeFromBothFiles) {
  WriteAwsFile("credentials",
               "# comment\n[default]\naws_access_key_id = ONE\naws_secret_access_key = one/secret+=\n"
               "[other]\r\naws_access_key_id=TWO\r\naws_secret_access_key=two\r\naws_session_token=t\r\n");
  WriteAwsFile("config",
               "[default]\nregion = eu-west-1\n[profile other]\nregion=eu-west-2\ns3 =\n  endpoint_url = nested\n"
               "aws_access_key_id = OVERRIDDEN\n[profile third]\naws_access_key_id=THREE\naws_secret_access_key=3\n");
  EXPECT_EQ(Get().value().access_key, "ONE");
  EXPECT_EQ(Get().value().secret_key.Reveal(), "one/secret+=");
  variables_["AWS_PROFILE"] = "other";
  EXPECT_EQ(Get().value().access_key, "TWO");
  EXPECT_EQ(Get().value().session_token.Reveal(), "t");
  const auto profile = AwsProfile::Load(Variables());
  ASSERT_TRUE(Succeeds(profile));
  EXPECT_EQ(profile.value().Find("region"), "eu-west-2");
  EXPECT_EQ(profile.value().Find("endpoint_url"), std::nullopt);
  variables_["AWS_PROFILE"] = "third";
  EXPECT_EQ(Get().value().access_key, "THREE");
  variables_["AWS_PROFILE"] = "missing";
  const auto missing = Get();
  ExpectError(missing, ErrorCode::kInvalidArgument);
  EXPECT_THAT(missing.error().message(), ::testing::HasSubstr("missing"));
}

TEST_F(CredentialsTest, AProfileIsReadAgainOnceItsKeysAreNotTaken) {
  WriteAwsFile("credentials", "[default]\naws_access_key_id=OLD\naws_secret_access_key=1\n");
  CredentialChain chain(Variables(), HttpOptions(), &clock_);
  EXPECT_EQ(chain.Get().value().access_key, "OLD");
  WriteAwsFile("credentials", "[default]\naws_access_key_id=NEW\naws_secret_access_key=2\n");
  EXPECT_EQ(chain.Get().value().access_key, "OLD");
  // Two requests at once may be refused; both are to be sent again.
  EXPECT_TRUE(chain.Renew());
  EXPECT_TRUE(chain.Renew());
  EXPECT_EQ(chain.Get().value().access_key, "NEW");
  variables_["AWS_ACCESS_KEY_ID"] = "ENV";
  EXPECT_FALSE(chain.Renew());
}

TEST_F(CredentialsTest, FilesMayBeElsewhere) {
  testing::WriteAll(directory_ / "keys", "[default]\naws_access_key_id=A\naws_secret_access_key=B\n");
  variables_["AWS_SHARED_CREDENTIALS_FILE"] = (directory_ / "keys").string();
  EXPECT_EQ(Get().value().access_key, "A");
}

TEST_F(CredentialsTest, WhatWeCannotDoIsNamedWithTheWayAround) {
  WriteAwsFile("config", "[default]\nsso_session = work\n");
  const auto sso = Get();
  ExpectError(sso, ErrorCode::kRefused);
  EXPECT_THAT(sso.error().message(), ::testing::HasSubstr("export-credentials"));
}

TEST_F(CredentialsTest, TheContainersServiceIsAskedWithItsToken) {
  std::string seen_token;
  int requests = 0;
  HttpServer server([&](const ServerRequest& request) {
    ++requests;
    seen_token = request.Header("authorization");
    ServerReply reply;
    reply.body = R"({"AccessKeyId":"CONTAINER","SecretAccessKey":"s","Token":"t)" + std::to_string(requests) +
                 R"(","Expiration":"2026-01-01T01:00:00Z"})";
    return reply;
  });
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server.Url() + "/role";
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "plain";
  testing::WriteAll(directory_ / "token", "fromfile\n");
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = (directory_ / "token").string();
  CredentialChain chain(Variables(), HttpOptions(), &clock_);
  EXPECT_EQ(chain.Get().value().session_token.Reveal(), "t1");
  EXPECT_EQ(seen_token, "fromfile");
  // Kept until five minutes before the end.
  clock_.Advance(std::chrono::minutes(54));
  EXPECT_EQ(chain.Get().value().session_token.Reveal(), "t1");
  clock_.Advance(std::chrono::minutes(2));
  EXPECT_EQ(chain.Get().value().session_token.Reveal(), "t2");
  // And fetched at once when the service says that they have expired.
  EXPECT_TRUE(chain.Renew());
  EXPECT_EQ(chain.Get().value().session_token.Reveal(), "t3");
}

TEST_F(CredentialsTest, CredentialsThatCannotBeRenewedAreUsedUntilTheyExpire) {
  bool broken = false;
  HttpServer server([&](const ServerRequest&) {
    ServerReply reply;
    reply.status = broken ? 500 : 200;
    reply.body = R"({"AccessKeyId":"A","SecretAccessKey":"verysecret","Expiration":"2026-01-01T01:00:00Z"})";
    return reply;
  });
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server.Url();
  CredentialChain chain(Variables(), HttpOptions(), &clock_);
  ASSERT_TRUE(Succeeds(chain.Get()));
  broken = true;
  clock_.Advance(std::chrono::minutes(58));
  EXPECT_TRUE(Succeeds(chain.Get()));
  clock_.Advance(std::chrono::minutes(3));
  const auto expired = chain.Get();
  ExpectError(expired, ErrorCode::kUnavailable);
  EXPECT_THAT(expired.error().message(), ::testing::Not(::testing::HasSubstr("verysecret")));
}

TEST_F(CredentialsTest, TheContainersServiceMustBeNear) {
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://example.com/steal";
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "containertoken";
  const auto far = Get();
  ExpectError(far, ErrorCode::kRefused);
  EXPECT_THAT(far.error().message(), ::testing::Not(::testing::HasSubstr("containertoken")));
  for (const char* trick : {"http://127.0.0.1.example.com/steal", "http://127.0.0.1:80@example.com/steal"}) {
    variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = trick;
    ExpectError(Get(), ErrorCode::kRefused);
  }
}

TEST_F(CredentialsTest, TheMachinesServiceIsAskedByItsSecondVersion) {
  HttpServer server([&](const ServerRequest& request) {
    ServerReply reply;
    if (request.method == "PUT" && request.path == "/latest/api/token") {
      reply.body = "sessiontoken";
    } else if (request.Header("x-aws-ec2-metadata-token") != "sessiontoken") {
      reply.status = 401;
    } else if (request.path == "/latest/meta-data/iam/security-credentials/") {
      reply.body = "my-role\n";
    } else if (request.path == "/latest/meta-data/iam/security-credentials/my-role") {
      reply.body =
          R"({"Code":"Success","AccessKeyId":"MACHINE","SecretAccessKey":"s","Token":"t","Expiration":"2026-01-01T06:00:00Z"})";
    } else {
      reply.status = 404;
    }
    return reply;
  });
  variables_.erase("AWS_EC2_METADATA_DISABLED");
  variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = server.Url();
  const auto got = Get();
  ASSERT_TRUE(Succeeds(got));
  EXPECT_EQ(got.value().access_key, "MACHINE");
  EXPECT_EQ(got.value().expires,
            WallTime(std::chrono::sys_days(std::chrono::year(2026) / 1 / 1)) + std::chrono::hours(6));
}

TEST_F(CredentialsTest, AMachineWithoutARoleHasNone) {
  HttpServer server([&](const ServerRequest& request) {
    ServerReply reply;
    reply.status = request.method == "PUT" ? 200 : 404;
    return reply;
  });
  variables_.erase("AWS_EC2_METADATA_DISABLED");
  variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = server.Url();
  ExpectError(Get(), ErrorCode::kRefused);
}

// A token service that gives keys for the token of the moment.
ServerReply TokenService(const ServerRequest& request, const std::string& token) {
  ServerReply reply;
  if (request.method != "POST" || request.path != "/" ||
      request.Header("content-type") != "application/x-www-form-urlencoded") {
    reply.status = 404;
  } else if (request.body !=
             "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Ftrainer"
             "&RoleSessionName=weightwire&WebIdentityToken=" +
                 token) {
    reply.status = 403;
    reply.body =
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type>"
        "<Code>AccessDenied</Code><Message>Not authorized</Message></Error></ErrorResponse>";
  } else {
    reply.body =
        "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">"
        "<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>POD</AccessKeyId><SecretAccessKey>s</"
        "SecretAccessKey>"
        "<SessionToken>t</SessionToken><Expiration>2026-01-01T01:00:00Z</Expiration></Credentials>"
        "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>";
  }
  return reply;
}

TEST_F(CredentialsTest, AWebIdentitysTokenIsExchangedAndReadAgainEachTime) {
  std::string token = "first.token%2B";
  HttpServer server([&](const ServerRequest& request) { return TokenService(request, token); });
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = (directory_ / "token").string();
  variables_["AWS_ENDPOINT_URL_STS"] = server.Url() + "/";
  ExpectError(Get(), ErrorCode::kRefused);  // no role
  variables_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/trainer";
  const auto no_file = Get();
  ExpectError(no_file, ErrorCode::kRefused);
  EXPECT_THAT(no_file.error().message(), ::testing::HasSubstr("token"));
  testing::WriteAll(directory_ / "token", "first.token+\n");
  CredentialChain chain(Variables(), HttpOptions(), &clock_);
  const auto got = chain.Get();
  ASSERT_TRUE(Succeeds(got));
  EXPECT_EQ(got.value().access_key, "POD");
  EXPECT_EQ(got.value().session_token.Reveal(), "t");
  EXPECT_EQ(got.value().expires,
            WallTime(std::chrono::sys_days(std::chrono::year(2026) / 1 / 1)) + std::chrono::hours(1));
  // Kubernetes renews the file; the old token is not taken any more.
  token = "second";
  testing::WriteAll(directory_ / "token", "second");
  clock_.Advance(std::chrono::minutes(56));
  EXPECT_TRUE(Succeeds(chain.Get()));
  testing::WriteAll(directory_ / "token", "verysecret");
  EXPECT_TRUE(chain.Renew());
  const auto refused = chain.Get();
  ExpectError(refused, ErrorCode::kRefused);
  EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("AccessDenied"));
  EXPECT_THAT(refused.error().message(), ::testing::Not(::testing::HasSubstr("verysecret")));
}

TEST_F(CredentialsTest, AProfileMayHaveAWebIdentity) {
  HttpServer server([&](const ServerRequest& request) { return TokenService(request, "abc"); });
  testing::WriteAll(directory_ / "token", "abc");
  WriteAwsFile("config", "[default]\nrole_arn = arn:aws:iam::1:role/trainer\nweb_identity_token_file = " +
                             (directory_ / "token").string() + "\n");
  variables_["AWS_ENDPOINT_URL"] = server.Url();
  EXPECT_EQ(Get().value().access_key, "POD");
}

TEST_F(CredentialsTest, AWebIdentitysTokenGoesNowhereUnencrypted) {
  testing::WriteAll(directory_ / "token", "abc");
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = (directory_ / "token").string();
  variables_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/trainer";
  variables_["AWS_ENDPOINT_URL_STS"] = "http://sts.example.com";
  const auto far = Get();
  ExpectError(far, ErrorCode::kRefused);
  EXPECT_THAT(far.error().message(), ::testing::HasSubstr("not sent"));
  EXPECT_EQ(StsEndpoint("eu-west-1"), "https://sts.eu-west-1.amazonaws.com");
  EXPECT_EQ(StsEndpoint("cn-north-1"), "https://sts.cn-north-1.amazonaws.com.cn");
  EXPECT_EQ(StsEndpoint(""), "https://sts.amazonaws.com");
}

TEST_F(CredentialsTest, ATokenServiceThatIsBusyMayBeAskedAgain) {
  int status = 503;
  std::string body;
  HttpServer server([&](const ServerRequest&) {
    ServerReply reply;
    reply.status = status;
    reply.body = body;
    return reply;
  });
  testing::WriteAll(directory_ / "token", "abc");
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = (directory_ / "token").string();
  variables_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/trainer";
  variables_["AWS_ENDPOINT_URL_STS"] = server.Url();
  ExpectError(Get(), ErrorCode::kUnavailable);
  status = 400;
  body = "<ErrorResponse><Error><Code>IDPCommunicationError</Code></Error></ErrorResponse>";
  ExpectError(Get(), ErrorCode::kUnavailable);
  body = "<ErrorResponse><Error><Code>InvalidIdentityToken</Code></Error></ErrorResponse>";
  ExpectError(Get(), ErrorCode::kRefused);
  status = 200;
  ExpectError(Get(), ErrorCode::kUnavailable);
}

TEST_F(CredentialsTest, AProfilesProcessIsRunAgainBeforeItsKeysExpire) {
  const std::string answer =
      R"({"Version": 1, "AccessKeyId": "PROCESS", "SecretAccessKey": "s", "SessionToken": "t'"$n"'",
                              "Expiration": "2026-01-01T01:00:00Z"})";
  testing::WriteAll(directory_ / "keys.sh", "n=$(cat '" + (directory_ / "n").string() + "')\necho '" + answer + "'\n");
  testing::WriteAll(directory_ / "n", "1");
  WriteAwsFile("config", "[default]\ncredential_process = sh '" + (directory_ / "keys.sh").string() + "'\n");
  CredentialChain chain(Variables(), HttpOptions(), &clock_);
  EXPECT_EQ(chain.Get().value().access_key, "PROCESS");
  EXPECT_EQ(chain.Get().value().session_token.Reveal(), "t1");
  testing::WriteAll(directory_ / "n", "2");
  EXPECT_EQ(chain.Get().value().session_token.Reveal(), "t1");
  clock_.Advance(std::chrono::minutes(56));
  EXPECT_EQ(chain.Get().value().session_token.Reveal(), "t2");
}

TEST_F(CredentialsTest, AProcessThatFailsTellsSoAndNothingElse) {
  for (const char* command : {"echo verysecret; exit 3", "echo verysecret", "echo '{\"AccessKeyId\": \"verysecret\"}'",
                              "kill -9 $$", "/no/such/program", "yes verysecret"}) {
    const auto failed = ProcessCredentials(command);
    ExpectError(failed, ErrorCode::kRefused);
    EXPECT_THAT(failed.error().message(), ::testing::HasSubstr("credential_process"));
    EXPECT_THAT(failed.error().message(), ::testing::Not(::testing::HasSubstr("verysecret")));
  }
  // It, and what it has started, is not waited for for ever.
  ExpectError(ProcessCredentials("sleep 600 & sleep 600", std::chrono::milliseconds(50)), ErrorCode::kRefused);
}

TEST_F(CredentialsTest, WhereOnlyKeysWillDoNobodyIsAskedAndNothingRun) {
  int requests = 0;
  HttpServer server([&](const ServerRequest&) {
    ++requests;
    return ServerReply();
  });
  const std::string ran = (directory_ / "ran").string();
  testing::WriteAll(directory_ / "token", "abc");
  WriteAwsFile("config", "[default]\ncredential_process = touch '" + ran + "'\n");
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = (directory_ / "token").string();
  variables_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/trainer";
  variables_["AWS_ENDPOINT_URL_STS"] = server.Url();
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server.Url();
  variables_.erase("AWS_EC2_METADATA_DISABLED");
  variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = server.Url();
  CredentialChain chain(Variables(), HttpOptions(), &clock_, CredentialKinds::kOnlyKeys);
  ExpectError(chain.Get(), ErrorCode::kRefused);
  EXPECT_EQ(requests, 0);
  EXPECT_FALSE(std::filesystem::exists(ran));
  WriteAwsFile("credentials", "[default]\naws_access_key_id=HFAK1\naws_secret_access_key=s\n");
  EXPECT_EQ(chain.Get().value().access_key, "HFAK1");
}

TEST_F(CredentialsTest, ALineBreakInAKeyIsRefusedAndNotShown) {
  variables_["AWS_ACCESS_KEY_ID"] = "A";
  variables_["AWS_SECRET_ACCESS_KEY"] = "s";
  variables_["AWS_SESSION_TOKEN"] = "token\r\nx-evil: 1";
  const auto got = Get();
  ExpectError(got, ErrorCode::kRefused);
  EXPECT_THAT(got.error().message(), ::testing::Not(::testing::HasSubstr("evil")));
}

}  // namespace
}  // namespace weightwire
