#include "cli/options.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "runner/policy.h"

namespace weightwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Sets a variable of the environment for the length of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }  // NOLINT
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { unsetenv(name_); }  // NOLINT

 private:
  const char* name_;
};

template <typename Target>
Target Parsed(const Setting& setting, Target target, std::vector<std::string> arguments) {
  CLI::App app;
  AddSetting(app, setting, target);
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  return target;
}

template <typename Target>
std::string Refusal(const Setting& setting, Target target, std::vector<std::string> arguments) {
  try {
    Parsed(setting, target, std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(AddSetting, FillsTargetsOfAllTypes) {
  EXPECT_EQ(Parsed(settings::kPollInterval, milliseconds(7), {}), milliseconds(7));
  EXPECT_EQ(Parsed(settings::kPollInterval, milliseconds(7), {"--poll-interval", "2s"}), seconds(2));
  EXPECT_EQ(Parsed(settings::kPollInterval, milliseconds(7), {"--poll-interval", "0.5"}), milliseconds(500));
  EXPECT_EQ(Parsed(settings::kRetryFor, std::optional<seconds>(), {"--retry-for", "1.5s"}), seconds(2));
  EXPECT_EQ(Parsed(settings::kMaxBytesPerSecond, std::uint64_t{0}, {"--max-bytes-per-second", "1KiB"}), 1024U);
  EXPECT_EQ(Parsed(settings::kPin, std::optional<std::uint64_t>(), {"--pin", "0"}), 0U);
  EXPECT_EQ(Parsed(settings::kStateDir, std::optional<std::filesystem::path>(), {"--state-dir", "/x"}), "/x");
  EXPECT_EQ(Parsed(settings::kName, std::string(), {"--name", "me"}), "me");
  EXPECT_EQ(Parsed(settings::kLogFormat, std::string("text"), {"--log-format", "json"}), "json");
  EXPECT_TRUE(Parsed(settings::kEveryVersion, false, {"--every-version"}));
  EXPECT_FALSE(Parsed(settings::kEveryVersion, false, {}));
}

TEST(AddSetting, NeverIsZeroOrNothing) {
  EXPECT_EQ(Parsed(settings::kAnchorEvery, std::uint64_t{100}, {"--anchor-every", "never"}), 0U);
  EXPECT_EQ(Parsed(settings::kAnchorEvery, std::optional<std::uint64_t>(100), {"--anchor-every", "never"}),
            std::nullopt);
  EXPECT_EQ(Parsed(settings::kAnchorEvery, std::optional<std::uint64_t>(100), {"--anchor-every", "7"}), 7U);
  EXPECT_EQ(Refusal(settings::kAnchorEvery, std::uint64_t{100}, {"--anchor-every", "0"}),
            "--anchor-every: it cannot be zero; write 'never'");
}

TEST(AddSetting, AFlagThatIsSetByDefaultHasAnOptionThatClearsIt) {
  EXPECT_TRUE(Parsed(settings::kLease, true, {}));
  EXPECT_FALSE(Parsed(settings::kLease, true, {"--no-lease"}));
  const Variable variable("WEIGHTWIRE_LEASE", "no");
  EXPECT_FALSE(Parsed(settings::kLease, true, {}));
}

TEST(AddSetting, TheOptionOverridesTheVariable) {
  {
    const Variable variable("WEIGHTWIRE_POLL_INTERVAL", "3s");
    EXPECT_EQ(Parsed(settings::kPollInterval, milliseconds(7), {}), seconds(3));
    EXPECT_EQ(Parsed(settings::kPollInterval, milliseconds(7), {"--poll-interval", "2s"}), seconds(2));
  }
  const Variable variable("WEIGHTWIRE_LEASE", "1");
  EXPECT_TRUE(Parsed(settings::kLease, true, {}));
  EXPECT_FALSE(Parsed(settings::kLease, true, {"--no-lease"}));
  const Variable empty("WEIGHTWIRE_NAME", "");
  EXPECT_EQ(Parsed(settings::kName, std::string("default"), {}), "default");
}

TEST(AddSetting, RefusesOtherValuesAndNamesWhereTheyCameFrom) {
  EXPECT_EQ(Refusal(settings::kPollInterval, milliseconds(7), {"--poll-interval", "0s"}),
            "--poll-interval: it cannot be zero; write for example 500ms or 2s");
  EXPECT_EQ(Refusal(settings::kThreads, std::size_t{1}, {"--threads", "0"}), "--threads: it cannot be zero");
  EXPECT_EQ(Refusal(settings::kLogFormat, std::string("text"), {"--log-format", "xml"}),
            "--log-format: 'xml' is none of text, json");
  EXPECT_NE(Refusal(settings::kThreads, std::size_t{1}, {"--threads", "-1"}), "");
  EXPECT_NE(Refusal(settings::kPin, std::optional<std::uint64_t>(), {"--pin", "newest"}), "");
  const Variable variable("WEIGHTWIRE_EVERY_VERSION", "maybe");
  EXPECT_EQ(Refusal(settings::kEveryVersion, false, {}),
            "WEIGHTWIRE_EVERY_VERSION: 'maybe' is neither true nor false; write 1 or 0");
}

TEST(AddSetting, HelpSaysTheDefault) {
  EXPECT_EQ(HelpOf(settings::kPollInterval), "look for a newer version every TIME (default: 1s)");
  EXPECT_EQ(HelpOf(settings::kLease),
            "do not keep a lease in the bucket, which protects from gc what this follower needs");
  EXPECT_EQ(TypeNameOf(settings::kAnchorEvery), "N|never");
  EXPECT_EQ(TypeNameOf(settings::kLogFormat), "text|json");
}

TEST(Settings, HaveTheDefaultsOfThePolicyFiles) {
  EXPECT_EQ(ParseDuration(std::string(settings::kRetryFor.default_text)).value(), kRetryFor);
}

}  // namespace
}  // namespace weightwire
