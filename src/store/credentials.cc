#include "store/credentials.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "store/aws_profile.h"
#include "store/times.h"

namespace weightwire {
namespace {

// How long before they expire credentials are fetched again, as the AWS tools do.
constexpr std::chrono::minutes kRefreshBefore{5};
constexpr std::uint64_t kMaxTokenFileBytes = 64 << 10;
constexpr const char* kContainerHost = "http://169.254.170.2";
constexpr const char* kMachineHost = "http://169.254.169.254";

HttpOptions ServiceOptions() {
  HttpOptions options;
  options.connect_timeout = std::chrono::milliseconds(2'000);
  options.request_timeout = std::chrono::milliseconds(5'000);
  options.ignore_proxies = true;
  return options;
}

// The answer of both services. Messages never quote it.
Result<Credentials> ParseAnswer(const HttpAnswer& answer, std::string_view whose) {
  const auto damaged = [&](std::string_view what) {
    return Error(ErrorCode::kUnavailable, fmt::format("cannot get credentials from {}: {}", whose, what));
  };
  if (answer.status != 200) return damaged(fmt::format("it answers with status {}", answer.status));
  const auto json = nlohmann::json::parse(answer.BodyText(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return damaged("its answer is not understood");
  const auto text = [&](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (const std::string code = text("Code"); !code.empty() && code != "Success") {
    return damaged("it says that it has none");
  }
  Credentials credentials{text("AccessKeyId"), Secret(text("SecretAccessKey")), Secret(text("Token")), std::nullopt};
  if (credentials.access_key.empty() || credentials.secret_key.empty()) return damaged("its answer has no keys");
  if (const std::string expires = text("Expiration"); !expires.empty()) {
    credentials.expires = ParseIsoTime(expires);
    if (!credentials.expires) return damaged("its answer has no valid date");
  }
  return credentials;
}

// What an http:// address of the container service may start with: nothing that leaves the machine.
bool IsLocalService(std::string_view url) {
  const std::string_view origin = OriginOf(url);
  if (origin.find('@') != std::string_view::npos) return false;  // the host is what comes after it
  for (const std::string_view host : {"http://127.0.0.1", "http://localhost", "http://[::1]", "http://169.254.170.2",
                                      "http://169.254.170.23", "http://[fd00:ec2::23]"}) {
    if (origin == host || (origin.starts_with(host) && origin[host.size()] == ':')) return true;
  }
  return false;
}

// Keys and a token go into headers, where a line break would start another.
bool FitsInHeader(std::string_view text) { return text.find_first_of("\r\n") == std::string_view::npos; }

}  // namespace

CredentialChain::CredentialChain(Environment environment, const Clock* clock)
    : environment_(std::move(environment)), clock_(clock), http_(ServiceOptions()) {}

Result<Credentials> CredentialChain::Get() {
  const std::lock_guard lock(mutex_);
  const WallTime now = clock_->Wall();
  if (held_ && (!held_->expires || now < *held_->expires - kRefreshBefore)) return *held_;
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
  const auto profile_key = profile.Find("aws_access_key_id");
  const auto profile_secret = profile.Find("aws_secret_access_key");
  if (profile_key && profile_secret) {
    return Credentials{
        *profile_key, Secret(*profile_secret), Secret(profile.Find("aws_session_token").value_or("")), {}};
  }
  for (const char* other : {"sso_session", "sso_start_url", "role_arn", "credential_process", "login_session"}) {
    if (profile.Find(other)) {
      return Error(ErrorCode::kRefused,
                   fmt::format("the AWS profile {} gets its credentials by {}, which weightwire cannot do; run: eval "
                               "\"$(aws configure export-credentials --profile {} --format env)\"",
                               profile.name(), other, profile.name()));
    }
  }

  if (const auto path = environment_("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")) {
    return FromContainer(kContainerHost + *path);
  }
  if (const auto url = environment_("AWS_CONTAINER_CREDENTIALS_FULL_URI")) return FromContainer(*url);
  const bool disabled = environment_("AWS_EC2_METADATA_DISABLED").value_or("") == "true";
  if (!disabled) {
    auto machine = FromMachine();
    if (machine.ok() || machine.error().code() != ErrorCode::kNotFound) return machine;
  }
  return Error(ErrorCode::kRefused,
               "no S3 credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; neither the "
               "environment, the AWS profile nor a metadata service has any");
}

Result<Credentials> CredentialChain::FromContainer(const std::string& url) {
  if (!url.starts_with("https://") && !IsLocalService(url)) {
    return Error(ErrorCode::kRefused,
                 "AWS_CONTAINER_CREDENTIALS_FULL_URI must be https, or http on this machine; no credentials were asked "
                 "for there");
  }
  HttpRequest request;
  request.url = url;
  std::string token = environment_("AWS_CONTAINER_AUTHORIZATION_TOKEN").value_or("");
  // The file counts more, for it is renewed.
  if (const auto path = environment_("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")) {
    WW_TRY(const File file, File::OpenForRead(*path));
    WW_TRY(const std::uint64_t size, file.size());
    if (size > kMaxTokenFileBytes) {
      return Error(ErrorCode::kLimit, fmt::format("{} is too large for a token", *path));
    }
    token.resize(size);
    WW_RETURN_IF_ERROR(file.ReadAt(0, {reinterpret_cast<std::uint8_t*>(token.data()), token.size()}));
    while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  }
  if (!FitsInHeader(token)) return Error(ErrorCode::kRefused, "the container's authorization token has a line break");
  if (!token.empty()) request.headers.push_back("Authorization: " + token);
  const auto answer = http_.Perform(request);
  if (!answer.ok()) {
    return Error(ErrorCode::kUnavailable,
                 "cannot get credentials from the container's service: " + answer.error().message());
  }
  return ParseAnswer(answer.value(), "the container's service");
}

// kNotFound when there is no such service, or it has no role.
Result<Credentials> CredentialChain::FromMachine() {
  const std::string base = environment_("AWS_EC2_METADATA_SERVICE_ENDPOINT").value_or(kMachineHost);
  const auto none = [](std::string_view why) {
    return Error(ErrorCode::kNotFound, fmt::format("the metadata service has no credentials: {}", why));
  };
  HttpRequest token_request;
  token_request.method = "PUT";
  token_request.url = base + "/latest/api/token";
  token_request.headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600"};
  const auto token = http_.Perform(token_request);
  if (!token.ok()) return none(token.error().message());
  if (token.value().status != 200 || !FitsInHeader(token.value().BodyText())) return none("it gives no token");

  HttpRequest request;
  request.headers = {fmt::format("X-aws-ec2-metadata-token: {}", token.value().BodyText())};
  request.url = base + "/latest/meta-data/iam/security-credentials/";
  const auto role = http_.Perform(request);
  if (!role.ok()) return none(role.error().message());
  if (role.value().status != 200) return none("this machine has no role");
  const std::string_view names = role.value().BodyText();
  request.url += PercentEncode(names.substr(0, names.find('\n')), Slashes::kEncode);
  const auto answer = http_.Perform(request);
  if (!answer.ok()) {
    return Error(ErrorCode::kUnavailable,
                 "cannot get credentials from the metadata service: " + answer.error().message());
  }
  return ParseAnswer(answer.value(), "the metadata service");
}

}  // namespace weightwire
