#include "store/credentials/aws_profile.h"

#include <fmt/format.h>

#include <cctype>
#include <filesystem>
#include <vector>

#include "base/file.h"

namespace weightwire {
namespace {

constexpr std::uint64_t kMaxFileBytes = 1 << 20;

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

// A file's text; empty when there is none.
Result<std::string> ReadText(const std::filesystem::path& path) {
  const auto file = File::OpenForRead(path);
  if (!file.ok() && file.error().code() == ErrorCode::kNotFound) return std::string();
  if (!file.ok()) return Error(ErrorCode::kInvalidArgument, file.error().message());
  WW_TRY(const std::uint64_t size, file.value().size());
  if (size > kMaxFileBytes) {
    return Error(ErrorCode::kLimit,
                 fmt::format("{} has {} bytes; a file of profiles may have {}", path.string(), size, kMaxFileBytes));
  }
  std::string text(size, 0);
  WW_RETURN_IF_ERROR(file.value().ReadAt(0, {reinterpret_cast<std::uint8_t*>(text.data()), text.size()}));
  return text;
}

// Adds the settings of the section `[section]` that are not there yet. True if the section is there.
bool AddSection(std::string_view text, std::string_view section, std::map<std::string, std::string, std::less<>>* to) {
  bool found = false;
  bool inside = false;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view raw = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::string_view line = Trimmed(raw);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      const std::size_t close = line.find(']');
      inside = close != std::string_view::npos && Trimmed(line.substr(1, close - 1)) == section;
      found = found || inside;
      continue;
    }
    // Indented lines belong to a nested setting, of which we need none.
    const bool nested = std::isspace(static_cast<unsigned char>(raw.front())) != 0;
    const std::size_t equals = line.find('=');
    if (!inside || nested || equals == std::string_view::npos) continue;
    to->try_emplace(std::string(Trimmed(line.substr(0, equals))), Trimmed(line.substr(equals + 1)));
  }
  return found;
}

std::filesystem::path DefaultFile(const Environment& environment, const char* name) {
  const auto home = environment("HOME");
  return home ? std::filesystem::path(*home) / ".aws" / name : std::filesystem::path();
}

}  // namespace

Result<AwsProfile> AwsProfile::Load(const Environment& environment) {
  AwsProfile profile;
  const auto chosen = environment("AWS_PROFILE");
  profile.name_ = chosen.value_or("default");
  const auto credentials_file = environment("AWS_SHARED_CREDENTIALS_FILE");
  const auto config_file = environment("AWS_CONFIG_FILE");
  WW_TRY(const std::string credentials, ReadText(credentials_file ? std::filesystem::path(*credentials_file)
                                                                  : DefaultFile(environment, "credentials")));
  WW_TRY(const std::string config,
         ReadText(config_file ? std::filesystem::path(*config_file) : DefaultFile(environment, "config")));
  bool found = AddSection(credentials, profile.name_, &profile.settings_);
  if (profile.name_ == "default") found = AddSection(config, "default", &profile.settings_) || found;
  found = AddSection(config, "profile " + profile.name_, &profile.settings_) || found;
  if (chosen && !found) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("AWS_PROFILE is {}, but there is no such profile in the AWS config or credentials file",
                             profile.name_));
  }
  return profile;
}

std::optional<std::string> AwsProfile::Find(std::string_view setting) const {
  const auto found = settings_.find(setting);
  if (found == settings_.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

}  // namespace weightwire
