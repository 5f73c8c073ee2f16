#include "base/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/signals_blocked.h"

namespace weightwire {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Result<ProcessResult> Shell(const std::string& script, ProcessOptions options = {}) {
  return RunProcess({"sh", "-c", script}, options);
}

TEST(Process, ReturnsOutputAndExitStatus) {
  ProcessOptions options;
  options.input = "to be read";
  const auto ran = Shell("cat; exit 3", options);
  ASSERT_TRUE(ran.ok()) << ran.error().message();
  EXPECT_EQ(ran.value().output, "to be read");
  EXPECT_EQ(ran.value().status, 3);
  EXPECT_EQ(Shell("kill -9 $$").value().status, 128 + 9);
}

TEST(Process, AProgramThatDoesNotReadItsInputRaisesNoSignal) {
  ProcessOptions options;
  options.input = std::string(kMaxProcessInput, 'x');
  EXPECT_EQ(Shell("exec 0<&-; true", options).value().status, 0);
}

TEST(Process, AMissingProgramIsAnErrorOrTheShellsStatus) {
  const auto missing = RunProcess({"no-such-program-anywhere", "secret"}, {});
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::kIo);
  EXPECT_THAT(missing.error().message(), HasSubstr("no-such-program-anywhere"));
  EXPECT_THAT(missing.error().message(), Not(HasSubstr("secret")));
  EXPECT_EQ(Shell("exec no-such-program-anywhere 2>&1").value().status, 127);
}

TEST(Process, KillsAProgramThatPrintsWithoutEnd) {
  const auto endless = Shell("yes");
  ASSERT_FALSE(endless.ok());
  EXPECT_EQ(endless.error().code(), ErrorCode::kLimit);
}

TEST(Process, KillsAProgramAndItsChildrenOnTimeout) {
  // Its child holds the pipe; were only the shell killed, it would go on holding it.
  ProcessOptions options;
  options.deadline = std::chrono::milliseconds(50);
  const auto late = Shell("sleep 600 & sleep 600", options);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code(), ErrorCode::kUnavailable);
}

TEST(Process, AProgramReceivesSignalsThoughItsStarterBlocksThem) {
  const SignalsBlocked blocked;
  EXPECT_EQ(Shell("kill -TERM $$; sleep 600").value().status, 128 + 15);
}

}  // namespace
}  // namespace weightwire
