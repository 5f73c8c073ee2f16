// The settings: options that exist on more than one surface, of the command, the Python package and the engine
// plug-ins.
//
// One table gives each its name, type, default and help. The name `poll-interval` makes the option --poll-interval, the
// argument poll_interval and the variable WEIGHTWIRE_POLL_INTERVAL. Commands declare theirs with AddSetting
// (cli/options.h), the binding exports the table as _core.settings(), and tests/python/test_surface.py compares all of
// them. An option of one surface alone is declared there, not here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weightwire {

enum class SettingType : std::uint8_t {
  kFlag,          // 1/0/true/false/yes/no/on/off
  kCount,         // a whole number
  kCountOrNever,  // a whole number above 0, or "never"; None in Python
  kVersion,       // a version of a run
  kDuration,      // "1.5m"; a bare number means seconds
  kSize,          // "256MiB"; a bare number means bytes
  kPath,
  kText,
  kChoice,  // one of `choices`
};

// What a setting that reads "1s" in a command is in Python: float seconds, int bytes, bool, int, str or a path.
struct Setting {
  std::string_view name;  // with dashes
  SettingType type;
  std::string_view default_text;  // as a user would write it; empty: none
  std::string_view help;          // one sentence, verb first, without a full stop
  // Where it exists, separated by spaces. "*" for commands: a global option of the program.
  std::string_view commands;
  std::string_view python;   // classes and functions of the package
  bool engine = false;       // the engine plug-ins read the variable
  bool environment = false;  // there is a variable
  // Why it is missing on a surface, or differs there. Empty if it is the same everywhere.
  std::string_view note = {};
  std::string_view choices = {};  // of a choice, separated by spaces
  bool positive = false;          // zero is refused
};

namespace settings {

// --- all programs ---
inline constexpr Setting kThreads{
    .name = "threads",
    .type = SettingType::kCount,
    .default_text = "",
    .help = "use N threads (default: one for each core)",
    .commands = "*",
    .python = "Publisher Follower load Run.load Run.checkout",
    .engine = true,
    .environment = true,
    .positive = true,
};
inline constexpr Setting kLogFormat{
    .name = "log-format",
    .type = SettingType::kChoice,
    .default_text = "text",
    .help = "print progress, warnings and errors as text or as lines of JSON",
    .commands = "*",
    .python = "",
    .environment = true,
    .note = "Python and the engines log with Python's logging, which has its own formats",
    .choices = "text json",
};
inline constexpr Setting kMaxBytesPerSecond{
    .name = "max-bytes-per-second",
    .type = SettingType::kSize,
    .default_text = "",
    .help = "send and receive at most SIZE per second (default: no limit)",
    .commands = "publish follow checkout log followers anchor verify gc init",
    .python = "Publisher Follower",
    .engine = true,
    .environment = true,
    .positive = true,
};
inline constexpr Setting kRetryFor{
    .name = "retry-for",
    .type = SettingType::kDuration,
    .default_text = "10m",
    .help = "retry for TIME while the store cannot be reached",
    .commands = "publish follow checkout log followers anchor verify gc init",
    .python = "",
    .environment = true,
    .note =
        "a publisher, a follower or an engine that lives on retries for as long as it lives; callers in Python give "
        "a timeout to flush, result or wait. `follow` that was up to date once retries without end unless this is "
        "given",
};

// --- publishers ---
inline constexpr Setting kStateDir{
    .name = "state-dir",
    .type = SettingType::kPath,
    .default_text = "",
    .help = "keep the base copy and unsent versions in PATH",
    .commands = "publish",
    .python = "Publisher",
    .environment = true,
    .note =
        "the command needs one between two calls and has a default: $XDG_STATE_HOME/weightwire or "
        "~/.local/state/weightwire, by the run's id; a Publisher without one keeps both in memory",
};
inline constexpr Setting kAnchorEvery{
    .name = "anchor-every",
    .type = SettingType::kCountOrNever,
    .default_text = "100",
    .help = "write an anchor, a complete checkpoint, every N versions",
    .commands = "publish",
    .python = "Publisher",
    .note = "no variable: it belongs to a run, not to a machine",
};
inline constexpr Setting kAnchorPercent{
    .name = "anchor-percent",
    .type = SettingType::kCountOrNever,
    .default_text = "100",
    .help = "also write one when the deltas since the last anchor add up to N percent of the model",
    .commands = "publish",
    .python = "Publisher",
    .note = "no variable: it belongs to a run, not to a machine",
};
inline constexpr Setting kSingleWriter{
    .name = "single-writer",
    .type = SettingType::kFlag,
    .default_text = "0",
    .help = "create the run even where the store cannot keep two publishers apart",
    .commands = "publish init",
    .python = "Publisher",
    .note = "no variable: each run needs its own decision",
};
inline constexpr Setting kDiscardConflicting{
    .name = "discard-conflicting",
    .type = SettingType::kFlag,
    .default_text = "0",
    .help = "discard unsent versions whose numbers another publisher has taken",
    .commands = "publish",
    .python = "Publisher",
    .note = "no variable: losing data takes an explicit option",
};
inline constexpr Setting kAllowNewModel{
    .name = "allow-new-model",
    .type = SettingType::kFlag,
    .default_text = "0",
    .help = "publish even if no tensor has the name and the shape of one in the newest version",
    .commands = "publish",
    .python = "Publisher",
    .note = "no variable: replacing a run's model takes an explicit option",
};
inline constexpr Setting kIncludeCodeInAnchors{
    .name = "include-code",
    .type = SettingType::kFlag,
    .default_text = "0",
    .help = "put files into anchors that can run as code when loaded (.py, pickles)",
    .commands = "publish anchor",
    .python = "Publisher",
    .note = "no variable: code takes an explicit option. Readers have an option of the same name",
};

// --- followers ---
inline constexpr Setting kIncludeCodeInDirectory{
    .name = "include-code",
    .type = SettingType::kFlag,
    .default_text = "0",
    .help = "fetch files that can run as code when loaded (.py, pickles); only from a bucket that you trust",
    .commands = "follow checkout",
    .python = "Follower Run.checkout",
    .note = "no variable: code takes an explicit option. Publishers have an option of the same name",
};
inline constexpr Setting kPollInterval{
    .name = "poll-interval",
    .type = SettingType::kDuration,
    .default_text = "1s",
    .help = "look for a newer version every TIME",
    .commands = "follow",
    .python = "Follower",
    .engine = true,
    .environment = true,
    .positive = true,
};
inline constexpr Setting kEveryVersion{
    .name = "every-version",
    .type = SettingType::kFlag,
    .default_text = "0",
    .help = "apply each version on its own, instead of several in one update",
    .commands = "follow",
    .python = "Follower",
    .engine = true,
    .environment = true,
};
inline constexpr Setting kMaxLag{
    .name = "max-lag",
    .type = SettingType::kCount,
    .default_text = "0",
    .help = "update only once the follower is more than N versions behind",
    .commands = "follow",
    .python = "",
    .engine = true,
    .environment = true,
    .note = "a program in Python decides itself when it applies an update",
};
inline constexpr Setting kMinUpdateInterval{
    .name = "min-update-interval",
    .type = SettingType::kDuration,
    .default_text = "0s",
    .help = "wait at least TIME between two updates",
    .commands = "",
    .python = "",
    .engine = true,
    .environment = true,
    .note = "engines only: there an update pauses the engine's work",
};
inline constexpr Setting kPin{
    .name = "pin",
    .type = SettingType::kVersion,
    .default_text = "",
    .help = "hold exactly VERSION: go forward or back to it and stay there",
    .commands = "follow",
    .python = "",
    .engine = true,
    .environment = true,
    .note = "in Python it is a method, Follower.pin, because a program changes it while it follows",
};
inline constexpr Setting kName{
    .name = "name",
    .type = SettingType::kText,
    .default_text = "",
    .help = "show this follower as NAME in `weightwire followers` (default: host and directory)",
    .commands = "follow",
    .python = "Follower",
    .engine = true,
    .environment = true,
};
inline constexpr Setting kLease{
    .name = "lease",
    .type = SettingType::kFlag,
    .default_text = "1",
    .help = "keep a lease in the bucket, which protects from gc what this follower needs",
    .commands = "follow",
    .python = "Follower",
    .engine = true,
    .environment = true,
};
inline constexpr Setting kWaitForRun{
    .name = "wait-for-run",
    .type = SettingType::kFlag,
    .default_text = "0",
    .help = "wait for the run if it does not exist yet",
    .commands = "follow",
    .python = "Follower",
    .environment = true,
    .note = "an engine always waits for its run, because it serves meanwhile",
};
inline constexpr Setting kVerify{
    .name = "verify",
    .type = SettingType::kFlag,
    .default_text = "1",
    .help = "read and digest everything that the target holds before following",
    .commands = "follow",
    .python = "Follower",
    .note = "no variable: WEIGHTWIRE_VERIFY says what an engine compares, and an engine always verifies its mirror",
};
inline constexpr Setting kAdopt{
    .name = "adopt",
    .type = SettingType::kFlag,
    .default_text = "0",
    .help = "take over a directory that has files already; its version is found by its digest",
    .commands = "follow",
    .python = "Follower",
    .note = "no variable: it names what may happen to one directory",
};
inline constexpr Setting kSwap{
    .name = "swap",
    .type = SettingType::kFlag,
    .default_text = "0",
    .help = "keep complete copies, two at most, and replace the link DIR/current in one step: readers need no lock",
    .commands = "follow",
    .python = "Follower",
    .note = "no variable: it decides how one directory is laid out",
};

inline constexpr Setting kMetrics{
    .name = "metrics",
    .type = SettingType::kText,
    .default_text = "",
    .help =
        "serve metrics for Prometheus at http://ADDRESS/metrics; for example :9400 (this machine only) or 0.0.0.0:9400",
    .commands = "follow",
    .python = "",
    .note =
        "no variable: two followers on a machine need two addresses. An engine serves them with its own metrics, and a "
        "program in Python reads Follower.status",
};

// --- engines ---
inline constexpr Setting kRun{
    .name = "run",
    .type = SettingType::kText,
    .default_text = "",
    .help = "follow the run at this URL or path",
    .commands = "",
    .python = "",
    .engine = true,
    .environment = true,
    .note = "engines only: commands and classes take the run as their first argument",
};
inline constexpr Setting kMirror{
    .name = "mirror",
    .type = SettingType::kPath,
    .default_text = "",
    .help = "keep the mirror in PATH (default: the directory that the engine serves)",
    .commands = "",
    .python = "",
    .engine = true,
    .environment = true,
    .note = "engines only: commands and classes take the directory as their second argument",
};
inline constexpr Setting kEngineVerify{
    .name = "verify",
    .type = SettingType::kChoice,
    .default_text = "full",
    .help =
        "compare all readable parameters with the mirror in the background after an update (full), or only what was "
        "written (commit)",
    .commands = "",
    .python = "",
    .engine = true,
    .environment = true,
    .note =
        "engines only: a follower verifies its target when it starts, an engine compares its memory with its mirror",
    .choices = "full commit",
};
inline constexpr Setting kVerifyInterval{
    .name = "verify-interval",
    .type = SettingType::kDuration,
    .default_text = "60s",
    .help = "wait at least TIME between two full comparisons",
    .commands = "",
    .python = "",
    .engine = true,
    .environment = true,
    .note = "engines only, as WEIGHTWIRE_VERIFY is",
};

}  // namespace settings

// All settings, in the order of the documentation. A name may occur twice, but only once on each surface.
[[nodiscard]] std::span<const Setting> AllSettings();

// "--poll-interval"; "--no-lease" for a flag that is set by default.
[[nodiscard]] std::string OptionName(const Setting& setting);
// "poll_interval".
[[nodiscard]] std::string PythonName(const Setting& setting);
// "WEIGHTWIRE_POLL_INTERVAL"; empty if the setting has no variable.
[[nodiscard]] std::string EnvironmentName(const Setting& setting);
// "duration" and so on, as _core.settings() says it.
[[nodiscard]] std::string_view NameOf(SettingType type);
// The words of `commands`, `python` or `choices`.
[[nodiscard]] std::vector<std::string> WordsOf(std::string_view words);

// A variable that is not in the table, but known: set for commands of --exec, or read by the core itself.
struct OtherVariable {
  std::string_view name;
  std::string_view help;
};
[[nodiscard]] std::span<const OtherVariable> OtherVariables();

// The names that begin with WEIGHTWIRE_ and mean nothing to weightwire, sorted. A misspelled variable has no effect, so
// that programs warn of each one.
[[nodiscard]] std::vector<std::string> UnknownVariables(const std::vector<std::string>& names);
// The same for this process's environment.
[[nodiscard]] std::vector<std::string> UnknownVariables();

// "WEIGHTWIRE_POL_INTERVAL is unknown and has no effect; did you mean WEIGHTWIRE_POLL_INTERVAL?"
[[nodiscard]] std::string UnknownVariableWarning(const std::string& name);

}  // namespace weightwire
