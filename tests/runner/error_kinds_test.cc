#include "runner/error_kinds.h"

#include <gtest/gtest.h>

#include <set>

#include "base/failure_policy.h"

namespace weightwire {
namespace {

TEST(ErrorKinds, EveryKindHasItsOwnNameStatusAndException) {
  std::set<std::string_view> names;
  std::set<std::string_view> exceptions;
  int before = 1;
  for (const ErrorKind& kind : AllErrorKinds()) {
    EXPECT_GT(kind.exit_status, before) << kind.name;
    before = kind.exit_status;
    EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
    EXPECT_TRUE(exceptions.insert(kind.exception).second) << kind.exception;
  }
}

TEST(ErrorKinds, TransientErrorsAreRetryableForUsersToo) {
  for (int code = 1; code <= static_cast<int>(ErrorCode::kTimeout); ++code) {
    const auto error = static_cast<ErrorCode>(code);
    const bool retryable = KindOf(error).retryable;
    // A wait that timed out may be repeated by its caller; the core itself never repeats it.
    EXPECT_EQ(retryable, ReactionTo(error) == Reaction::kRetrySoon || error == ErrorCode::kTimeout) << code;
  }
}

TEST(ErrorKinds, UsersSeeOneKindForReactionsThatAreAlike) {
  EXPECT_EQ(KindOf(ErrorCode::kLimit).name, KindOf(ErrorCode::kUnsupported).name);
  EXPECT_EQ(KindOf(ErrorCode::kUnknownOutcome).name, KindOf(ErrorCode::kUnavailable).name);
  EXPECT_EQ(KindOf(ErrorCode::kConflict).exit_status, 9);
}

}  // namespace
}  // namespace weightwire
