#include "store/credentials/hf_token.h"

#include <filesystem>
#include <string>
#include <utility>

#include "store/credentials/token_file.h"

namespace weightwire {

Secret HfToken(const Environment& environment) {
  if (const auto token = environment("HF_TOKEN")) return Secret(*token);
  std::filesystem::path path;
  if (const auto file = environment("HF_TOKEN_PATH")) {
    path = *file;
  } else if (const auto home = environment("HF_HOME")) {
    path = std::filesystem::path(*home) / "token";
  } else if (const auto user = environment("HOME")) {
    path = std::filesystem::path(*user) / ".cache" / "huggingface" / "token";
  }
  auto read = ReadTokenFile(path);
  if (!read.ok()) return {};
  std::string token = std::move(read.value());
  token.erase(token.find_last_not_of(" \r\n\t") + 1);
  return token.find_first_of("\r\n") == std::string::npos ? Secret(token) : Secret();
}

}  // namespace weightwire
