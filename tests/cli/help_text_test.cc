#include "cli/help_text.h"

#include <gtest/gtest.h>

#include "cli/completion.h"

namespace weightwire {
namespace {

TEST(HelpText, WrapsParagraphsAndKeepsExamples) {
  EXPECT_EQ(WrapParagraphs("one two\nthree\n\nExamples:\n  a  b  c d e f g\nfour", 9),
            "one two\nthree\n\nExamples:\n  a  b  c d e f g\nfour\n");
  EXPECT_EQ(WrapParagraphs("a-word-that-is-too-long b", 5), "a-word-that-is-too-long\nb\n");
}

TEST(Description, ReadsWhatIsDeclared) {
  CLI::App app("the program", "tool");
  CLI::App& sub = *app.add_subcommand("go", "go somewhere");
  std::string place;
  std::string speed;
  std::vector<std::string> stops;
  bool fast = false;
  sub.add_option("PLACE", place, "where")->type_name("PATH")->required();
  sub.add_option("STOP", stops, "on the path")->type_name("PATH")->expected(0, -1);
  sub.add_option("-s,--speed", speed, "how fast (default: walk)")->type_name("walk|run|N")->envname("TOOL_SPEED");
  sub.add_flag("--fast", fast, "run");
  const ProgramDescription program = Describe(app);
  ASSERT_EQ(program.commands.size(), 1U);
  const CommandDescription& go = program.commands.front();
  EXPECT_EQ(go.Usage("tool"), "tool go [OPTIONS] PLACE [STOP...]");
  ASSERT_EQ(go.options.size(), 2U);
  EXPECT_EQ(go.options[0].Title(), "-s, --speed walk|run|N");
  EXPECT_EQ(go.options[0].default_text, "walk");
  EXPECT_EQ(go.options[0].help, "how fast");
  EXPECT_EQ(go.options[0].variable, "TOOL_SPEED");
  EXPECT_EQ(go.options[0].Choices(), (std::vector<std::string>{"walk", "run"}));
  EXPECT_EQ(go.options[1].Title(), "--fast");
  EXPECT_EQ(program.Find("come"), nullptr);
  const std::string text = HelpText(program, go, 60);
  EXPECT_TRUE(text.starts_with("Go somewhere.\n\nUsage: tool go [OPTIONS] PLACE [STOP...]\n")) << text;
  EXPECT_NE(text.find("how fast (default: walk)\n                              [TOOL_SPEED]\n"), std::string::npos);
  EXPECT_FALSE(CompletionScript(program, "tcsh").ok());
}

}  // namespace
}  // namespace weightwire
