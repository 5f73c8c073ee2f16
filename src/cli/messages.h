// What a program says on standard error: progress, information, warnings and errors. Its result goes to standard
// output.
//
// As text, each is one line: "warning: …". With --log-format json each is a JSON object on one line, with `event`,
// `level`, `time` and `message`. Control characters are escaped in both, because names come from outside.
//
// Thread safety: any thread may call everything but Configure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weightwire::messages {

struct Style {
  bool quiet = false;       // no progress and no information
  bool verbose = false;     // details too
  bool json = false;        // lines of JSON
  bool json_error = false;  // an error ends with a line of JSON, because the result would be JSON
};

// Called once, before a command runs. Until then all is text.
void Configure(const Style& style);

void Warning(const std::string& sentence);
// What a user may want to know, but need not.
void Info(const std::string& sentence);
// What is done in detail; only with --verbose.
void Detail(const std::string& sentence);
// The last thing that a program says. `code` is the name of the error's kind.
void Error(const std::string& sentence, std::string_view code, int exit_status);

// How progress is shown: as a line on a terminal that is written again and again, as JSON, or not at all.
enum class ProgressStyle : std::uint8_t { kNone, kLine, kJson };
[[nodiscard]] ProgressStyle ShownProgress();

// Replaces the line on the terminal, with kLine. Empty text erases it; messages erase it too. With kJson prints a line
// of JSON, at most one each second.
void Progress(const std::string& text);

}  // namespace weightwire::messages
