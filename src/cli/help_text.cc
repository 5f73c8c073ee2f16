#include "cli/help_text.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cli/text.h"

namespace weightwire {
namespace {

constexpr std::size_t kMinWidth = 40;
constexpr std::size_t kDefaultWidth = 100;
constexpr std::size_t kMaxWidth = 120;
// Where the help of options begins; below a name that is longer.
constexpr std::size_t kColumn = 30;

// Words, broken into lines of at most `width` columns.
std::vector<std::string> Wrap(const std::string& text, std::size_t width) {
  std::vector<std::string> lines(1);
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \n", start), text.size());
    const std::string word = text.substr(start, end - start);
    start = end + 1;
    if (word.empty()) continue;
    if (!lines.back().empty() && DisplayWidth(lines.back()) + 1 + DisplayWidth(word) > width) lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  return lines;
}

// "  NAME        help …", wrapped.
std::string Entry(const std::string& title, const std::string& help, std::size_t width) {
  std::string text = "  " + title;
  const std::size_t title_width = DisplayWidth(text);
  const bool fits = title_width + 2 <= kColumn;
  const std::size_t column = std::min(kColumn, width / 2);
  text += fits && title_width < column ? std::string(column - title_width, ' ') : "\n" + std::string(column, ' ');
  const auto lines = Wrap(help, width - column);
  return text + fmt::format("{}\n", fmt::join(lines, "\n" + std::string(column, ' ')));
}

std::string HelpOfOption(const OptionDescription& option) {
  std::string help = option.help;
  if (!option.default_text.empty()) help += fmt::format(" (default: {})", option.default_text);
  if (!option.variable.empty()) help += fmt::format(" [{}]", option.variable);
  return help;
}

std::string Section(const std::string& head, const std::vector<OptionDescription>& options, std::size_t width) {
  if (options.empty()) return "";
  std::string text = "\n" + head + ":\n";
  for (const OptionDescription& option : options) text += Entry(option.Title(), HelpOfOption(option), width);
  return text;
}

// A summary as a sentence.
std::string Sentence(std::string text) {
  if (!text.empty() && 'a' <= text.front() && text.front() <= 'z') text.front() = static_cast<char>(text.front() - 32);
  return text.ends_with('.') ? text : text + ".";
}

}  // namespace

std::size_t HelpWidth() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefaultWidth;
  return std::clamp<std::size_t>(size.ws_col, kMinWidth, kMaxWidth);
}

std::string WrapParagraphs(const std::string& text, std::size_t width) {
  std::string wrapped;
  std::string paragraph;
  const auto end_paragraph = [&] {
    if (!paragraph.empty()) wrapped += fmt::format("{}\n", fmt::join(Wrap(std::exchange(paragraph, ""), width), "\n"));
  };
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    const std::string line = text.substr(start, end - start);
    start = end + 1;
    if (line.empty() || line.front() == ' ') {
      end_paragraph();
      wrapped += line + "\n";
    } else {
      paragraph += (paragraph.empty() ? "" : " ") + line;
    }
  }
  end_paragraph();
  return wrapped;
}

std::string HelpText(const ProgramDescription& program, std::size_t width) {
  std::string text = WrapParagraphs(program.summary, width);
  text += fmt::format("\nUsage: {} COMMAND [OPTIONS] ARGUMENTS\n\nCommands:\n", program.name);
  for (const CommandDescription& command : program.commands) text += Entry(command.name, command.summary, width);
  text += Section("Options of every command", program.options, width);
  return text + "\n" + WrapParagraphs(program.notes, width);
}

std::string HelpText(const ProgramDescription& program, const CommandDescription& command, std::size_t width) {
  std::string text = WrapParagraphs(Sentence(command.summary), width);
  text += fmt::format("\nUsage: {}\n", command.Usage(program.name));
  text += Section("Arguments", command.arguments, width);
  text += Section("Options", command.options, width);
  text += Section("Options of every command", program.options, width);
  return command.notes.empty() ? text : text + "\n" + WrapParagraphs(command.notes, width);
}

}  // namespace weightwire
