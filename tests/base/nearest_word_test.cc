#include "base/nearest_word.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace weightwire {
namespace {

const std::vector<std::string>& Words() {
  static const std::vector<std::string> words = {"publish", "follow", "log", "--poll-interval", "--last"};
  return words;
}

TEST(NearestWord, FindsWhatWasMeant) {
  EXPECT_EQ(NearestWord("pubish", Words()), "publish");
  EXPECT_EQ(NearestWord("publihs", Words()), "publish");
  EXPECT_EQ(NearestWord("--pol-intervall", Words()), "--poll-interval");
  EXPECT_EQ(NearestWord("lgo", Words()), "log");
  EXPECT_EQ(NearestWord("--pol", Words()), "--poll-interval");
}

TEST(NearestWord, SuggestsNothingForAnotherWord) {
  EXPECT_EQ(NearestWord("serve", Words()), std::nullopt);
  EXPECT_EQ(NearestWord("x", Words()), std::nullopt);
  EXPECT_EQ(NearestWord("", Words()), std::nullopt);
  EXPECT_EQ(NearestWord("publish", {}), std::nullopt);
  EXPECT_EQ(NearestWord(std::string(1'000'000, 'a'), Words()), std::nullopt);
}

}  // namespace
}  // namespace weightwire
