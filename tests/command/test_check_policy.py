"""tools/check_policy.py: it reads constants and tables, and reports every difference."""

import importlib.util
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "tools" / "check_policy.py"
SPEC = importlib.util.spec_from_file_location("check_policy", SOURCE)
check_policy = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_policy)

HEADER = """
inline constexpr std::chrono::milliseconds kFirst{200};
inline constexpr std::chrono::hours kAge{24};
inline constexpr std::uint64_t kSize = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kRate = 100'000;
inline constexpr std::uint64_t kLifeSeconds = 86'400;
inline constexpr int kTries = 6;
"""
PAGE = """
## Timeouts, retries and limits

| what | value | home |
|---|---|---|
| the first | 200 ms | `src/store/policy.h: kFirst` |
| the age | 24 h | `src/store/policy.h: kAge` |
| the size | 16 MiB | `src/store/policy.h: kSize` |
| the rate | 100,000 | `src/store/policy.h: kRate` |
| its life | 86,400 s | `src/store/policy.h: kLifeSeconds` |
| tries | 6 | `src/store/policy.h: kTries` |
| a poll | 500 ms | `options.py: poll` |

## Another section

| a | b | `src/store/policy.h: kOther` |
"""
SOURCES = {"src/store/policy.h": HEADER, "options.py": "class Options:\n    poll: float = 0.5\n"}


def complaints(page=PAGE, **sources):
    return check_policy.complaints_about_values(check_policy.rows_of(page), {**SOURCES, **sources})


def test_a_table_that_says_what_the_code_does_passes():
    assert complaints() == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("200 ms", "300 ms", "kFirst is 200 ms, the table says 300 ms"),
        ("| 24 h", "| 24 min", "kAge is 24 h"),
        ("16 MiB", "16 KiB", "kSize is 16 MiB"),
        ("100,000", "10,000", "kRate is 100,000"),
        ("500 ms", "2 s", "poll is 500 ms"),
        ("kTries`", "kAttempts`", "has no constant kAttempts"),
        ("| tries | 6 | `src/store/policy.h: kTries` |\n", "", "kTries is in no table"),
        ("options.py", "choices.py", "choices.py does not exist"),
    ],
)
def test_a_difference_is_reported(old, new, words):
    assert any(words in complaint for complaint in complaints(PAGE.replace(old, new)))


def test_a_constant_whose_value_cannot_be_read_is_reported():
    header = HEADER.replace("kTries = 6", "kTries = Computed()")
    assert complaints(**{"src/store/policy.h": header}) == [
        "src/store/policy.h has no constant kTries that can be compared"
    ]


def test_reactions_are_compared_too():
    source = """
constexpr Reaction ReactionTo(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUnavailable:
    case ErrorCode::kUnknownOutcome:
      return Reaction::kRetrySoon;
    case ErrorCode::kLimit:
      return Reaction::kGiveUp;
  }
  return Reaction::kGiveUp;
}
"""
    rows = [["`kUnavailable`, `kUnknownOutcome`", "retry soon", "why"], ["`kLimit`", "give up", "why"]]
    assert check_policy.complaints_about_reactions(rows, source) == []
    rows[1][1] = "retry slowly"
    assert check_policy.complaints_about_reactions(rows, source) == [
        "kLimit: the table says 'retry slowly', ReactionTo says 'give up'"
    ]
    assert "kLimit: the table says 'None'" in check_policy.complaints_about_reactions(rows[:1], source)[0]


def test_the_page_of_this_tree_is_true():
    assert check_policy.main() == 0
