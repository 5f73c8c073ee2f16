#include "store/credentials/credential_chain.h"

#include <fmt/format.h>

#include <utility>

#include "store/credentials/aws_profile.h"
#include "store/credentials/credential_process.h"
#include "store/credentials/metadata_credentials.h"
#include "store/credentials/web_identity.h"
#include "store/policy.h"

namespace weightwire {
namespace {

// Where the token service is: one that is named, or AWS's of the region.
std::string EndpointOfSts(const Environment& environment, const AwsProfile& profile) {
  std::optional<std::string> named = environment("AWS_ENDPOINT_URL_STS");
  if (!named) named = environment("AWS_ENDPOINT_URL");
  if (!named) named = profile.Find("endpoint_url");
  if (named) return named->substr(0, named->find_last_not_of('/') + 1);
  std::optional<std::string> region = environment("AWS_REGION");
  if (!region) region = environment("AWS_DEFAULT_REGION");
  if (!region) region = profile.Find("region");
  return StsEndpoint(region.value_or(""));
}

std::optional<Credentials> KeysOfProfile(const AwsProfile& profile) {
  const auto key = profile.Find("aws_access_key_id");
  const auto secret = profile.Find("aws_secret_access_key");
  if (!key || !secret) return {};
  return Credentials{*key, Secret(*secret), Secret(profile.Find("aws_session_token").value_or("")), {}};
}

// What the profile says. kNotFound: nothing about credentials.
Result<Credentials> OfProfile(const Environment& environment, const AwsProfile& profile, HttpClient& http) {
  if (auto keys = KeysOfProfile(profile)) return *std::move(keys);
  const auto role = profile.Find("role_arn");
  if (const auto token_file = profile.Find("web_identity_token_file"); token_file && role) {
    return WebIdentityCredentials(
        {*token_file, *role, profile.Find("role_session_name").value_or(""), EndpointOfSts(environment, profile)},
        http);
  }
  if (const auto command = profile.Find("credential_process")) return ProcessCredentials(*command);
  for (const char* other : {"sso_session", "sso_start_url", "role_arn", "login_session"}) {
    if (!profile.Find(other)) continue;
    return Error(
        ErrorCode::kRefused,
        fmt::format("the AWS profile {0} gets its credentials by {1}, which weightwire cannot do; make a profile "
                    "with: credential_process = aws configure export-credentials --profile {0} --format process",
                    profile.name(), other));
  }
  return Error(ErrorCode::kNotFound, "the AWS profile has no credentials");
}

}  // namespace

CredentialChain::CredentialChain(Environment environment, HttpOptions http, const Clock* clock, CredentialKinds kinds)
    : environment_(std::move(environment)),
      clock_(clock),
      kinds_(kinds),
      near_(MetadataHttpOptions()),
      far_(std::move(http)) {}

Result<Credentials> CredentialChain::Get() {
  const std::lock_guard lock(mutex_);
  const WallTime now = clock_->Wall();
  if (held_ && (!held_->expires || now < *held_->expires - kCredentialRefreshBefore)) return *held_;
  auto fetched = Fetch();
  if (fetched.ok()) {
    if (!FitsInHeader(fetched.value().access_key) || !FitsInHeader(fetched.value().session_token.Reveal())) {
      return Error(ErrorCode::kRefused, "the S3 credentials contain a line break; check where they come from");
    }
    held_ = fetched.value();
    return fetched;
  }
  // Not renewed in time, but not expired either.
  if (held_ && now < *held_->expires) return *held_;
  return fetched;
}

bool CredentialChain::Renew() {
  const std::lock_guard lock(mutex_);
  held_.reset();  // also if another thread has done so already: what it fetches is new to this one
  return !environment_("AWS_ACCESS_KEY_ID");
}

Result<Credentials> CredentialChain::Fetch() {
  const auto access_key = environment_("AWS_ACCESS_KEY_ID");
  const auto secret_key = environment_("AWS_SECRET_ACCESS_KEY");
  if (access_key.has_value() != secret_key.has_value()) {
    return Error(ErrorCode::kRefused,
                 "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set; set both or neither");
  }
  if (access_key) {
    return Credentials{*access_key, Secret(*secret_key), Secret(environment_("AWS_SESSION_TOKEN").value_or("")), {}};
  }

  WW_TRY(const AwsProfile profile, AwsProfile::Load(environment_));
  if (kinds_ == CredentialKinds::kOnlyKeys) {
    if (auto keys = KeysOfProfile(profile)) return *std::move(keys);
    return Error(ErrorCode::kRefused, "neither the environment nor the AWS profile has keys");
  }
  if (const auto token_file = environment_("AWS_WEB_IDENTITY_TOKEN_FILE")) {
    const auto role = environment_("AWS_ROLE_ARN");
    if (!role) {
      return Error(ErrorCode::kRefused,
                   "AWS_WEB_IDENTITY_TOKEN_FILE is set, but not AWS_ROLE_ARN; set both or neither");
    }
    return WebIdentityCredentials(
        {*token_file, *role, environment_("AWS_ROLE_SESSION_NAME").value_or(""), EndpointOfSts(environment_, profile)},
        far_);
  }
  auto found = OfProfile(environment_, profile, far_);
  const auto is_there = [&] { return found.ok() || found.error().code() != ErrorCode::kNotFound; };
  if (!is_there()) found = ContainerCredentials(environment_, near_);
  if (!is_there() && environment_("AWS_EC2_METADATA_DISABLED").value_or("") != "true") {
    found = MachineCredentials(environment_, near_);
  }
  if (is_there()) return found;
  return Error(ErrorCode::kRefused,
               "no S3 credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; neither the "
               "environment, the AWS profile nor a metadata service has any");
}

}  // namespace weightwire
