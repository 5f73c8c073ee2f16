#include "runner/settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/quantities.h"
#include "publish/policy.h"
#include "runner/policy.h"

namespace weightwire {
namespace {

TEST(Settings, HaveOneNameOnEachSurface) {
  EXPECT_EQ(OptionName(settings::kPollInterval), "--poll-interval");
  EXPECT_EQ(PythonName(settings::kPollInterval), "poll_interval");
  EXPECT_EQ(EnvironmentName(settings::kPollInterval), "WEIGHTWIRE_POLL_INTERVAL");
  EXPECT_EQ(OptionName(settings::kLease), "--no-lease");
  EXPECT_EQ(EnvironmentName(settings::kLease), "WEIGHTWIRE_LEASE");
  EXPECT_EQ(EnvironmentName(settings::kAdopt), "");
}

TEST(Settings, OccurOnceOnEachSurface) {
  std::set<std::string> seen;
  for (const Setting& setting : AllSettings()) {
    const std::string name(setting.name);
    for (const std::string& command : WordsOf(setting.commands)) EXPECT_TRUE(seen.insert(command + " " + name).second);
    for (const std::string& python : WordsOf(setting.python)) EXPECT_TRUE(seen.insert(python + " " + name).second);
    EXPECT_TRUE(!setting.engine || seen.insert("engine " + name).second) << name;
    EXPECT_TRUE(!setting.environment || seen.insert(EnvironmentName(setting)).second) << name;
  }
}

TEST(Settings, SayWhyASurfaceLacksThem) {
  for (const Setting& setting : AllSettings()) {
    const bool everywhere = !setting.commands.empty() && !setting.python.empty() && setting.environment;
    EXPECT_TRUE(everywhere || !setting.note.empty()) << setting.name;
    EXPECT_TRUE(!setting.engine || setting.environment) << setting.name << ": an engine has nothing but variables";
    EXPECT_TRUE(setting.engine || !setting.commands.empty()) << setting.name;
  }
}

TEST(Settings, HaveHelpThatIsOneSentence) {
  for (const Setting& setting : AllSettings()) {
    EXPECT_TRUE('a' <= setting.help.front() && setting.help.front() <= 'z') << setting.name;
    EXPECT_NE(setting.help.back(), '.') << setting.name;
  }
}

TEST(Settings, HaveDefaultsOfTheirType) {
  for (const Setting& setting : AllSettings()) {
    const std::string text(setting.default_text);
    switch (setting.type) {
      case SettingType::kFlag:
        EXPECT_TRUE(ParseFlag(text).ok()) << setting.name;
        break;
      case SettingType::kCount:
      case SettingType::kCountOrNever:
      case SettingType::kVersion:
        EXPECT_EQ(text.find_first_not_of("0123456789"), std::string::npos) << setting.name;
        break;
      case SettingType::kDuration:
        EXPECT_TRUE(ParseDuration(text).ok()) << setting.name;
        break;
      case SettingType::kSize:
        EXPECT_TRUE(text.empty() || ParseSize(text).ok()) << setting.name;
        break;
      case SettingType::kPath:
      case SettingType::kText:
        break;
      case SettingType::kChoice: {
        const auto choices = WordsOf(setting.choices);
        EXPECT_EQ(std::count(choices.begin(), choices.end(), text), 1) << setting.name;
        break;
      }
    }
    EXPECT_EQ(setting.choices.empty(), setting.type != SettingType::kChoice) << setting.name;
  }
}

TEST(Settings, HaveTheDefaultsOfThePolicyFiles) {
  EXPECT_EQ(ParseDuration(std::string(settings::kPollInterval.default_text)).value(), kPollInterval);
  EXPECT_EQ(settings::kAnchorEvery.default_text, std::to_string(kAnchorEveryVersions));
  EXPECT_EQ(settings::kAnchorPercent.default_text, std::to_string(kAnchorEveryPercent));
}

TEST(Variables, ThatMeanNothingAreFound) {
  const std::vector<std::string> names = {"PATH",
                                          "WEIGHTWIRE",
                                          "WEIGHTWIRE_POLL",
                                          "WEIGHTWIRE_POLL_INTERVAL",
                                          "WEIGHTWIRE_VERSION",
                                          "WEIGHTWIRE_STEP",
                                          "WEIGHTWIRE_MIRROR",
                                          "WEIGHTWIRE_RUN",
                                          "WEIGHTWIRE_ISA",
                                          "WEIGHTWIRE_ADOPT"};
  EXPECT_EQ(UnknownVariables(names), (std::vector<std::string>{"WEIGHTWIRE_ADOPT", "WEIGHTWIRE_POLL"}));
}

TEST(Variables, ThatMeanNothingAreWarnedOf) {
  EXPECT_EQ(UnknownVariableWarning("WEIGHTWIRE_POL_INTERVAL"),
            "WEIGHTWIRE_POL_INTERVAL is unknown and has no effect; did you mean WEIGHTWIRE_POLL_INTERVAL?");
  EXPECT_EQ(UnknownVariableWarning("WEIGHTWIRE_CHECK_EVERYTHING"),
            "WEIGHTWIRE_CHECK_EVERYTHING is unknown and has no effect");
}

TEST(Words, AreSeparatedBySpaces) {
  EXPECT_EQ(WordsOf(""), std::vector<std::string>{});
  EXPECT_EQ(WordsOf("publish"), std::vector<std::string>{"publish"});
  EXPECT_EQ(WordsOf("publish follow  log"), (std::vector<std::string>{"publish", "follow", "log"}));
}

}  // namespace
}  // namespace weightwire
