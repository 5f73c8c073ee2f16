#include "log/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "log/limits.h"
#include "store/key.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

constexpr std::size_t kVersionDigits = 20;
constexpr std::string_view kAnchorManifestName = "anchor.json";

std::string VersionText(Version version) { return fmt::format("{:020}", version); }

std::optional<Version> ParseVersion(std::string_view text) {
  if (text.size() != kVersionDigits) return std::nullopt;
  Version version = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    if (__builtin_mul_overflow(version, 10, &version)) return std::nullopt;
    if (__builtin_add_overflow(version, static_cast<Version>(c - '0'), &version)) return std::nullopt;
  }
  if (version > kMaxVersion) return std::nullopt;
  return version;
}

// Takes the segment before the next "/" off the front; nothing without a "/".
std::optional<std::string_view> TakeSegment(std::string_view& rest) {
  const std::size_t slash = rest.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const std::string_view segment = rest.substr(0, slash);
  rest.remove_prefix(slash + 1);
  return segment;
}

}  // namespace

std::string RecordKey(Version version) { return fmt::format("versions/{}.json", VersionText(version)); }

std::string DeltaFolder(Version from, Version to) {
  return fmt::format("{}{}-{}/", kDeltasPrefix, VersionText(from), VersionText(to));
}

std::string PartKey(Version from, Version to, const Sha256Digest& object_hash) {
  return fmt::format("{}{}.safetensors", DeltaFolder(from, to), ToHex(object_hash));
}

std::string LayoutKey(const Sha256Digest& layout_hash) { return fmt::format("layouts/{}.json", ToHex(layout_hash)); }

std::string AnchorFolder(const AnchorName& anchor) {
  return fmt::format("{}{}/{}/", kAnchorsPrefix, VersionText(anchor.version), ToHex(anchor.id));
}

std::string AnchorManifestKey(const AnchorName& anchor) {
  return AnchorFolder(anchor) + std::string(kAnchorManifestName);
}
std::string LeaseKey(const Id& follower) { return fmt::format("{}{}.json", kLeasesPrefix, ToHex(follower)); }
std::string MarkKey(const Id& mark) { return fmt::format("{}{}.json", kMarksPrefix, ToHex(mark)); }

bool IsMarkKey(std::string_view key) {
  constexpr std::string_view kEnding = ".json";
  if (!key.starts_with(kMarksPrefix) || !key.ends_with(kEnding)) return false;
  key.remove_prefix(kMarksPrefix.size());
  key.remove_suffix(kEnding.size());
  return IdFromHex(key).has_value();
}

std::optional<DeltaName> DeltaOfKey(std::string_view key) {
  if (!key.starts_with(kDeltasPrefix)) return std::nullopt;
  key.remove_prefix(kDeltasPrefix.size());
  const auto folder = TakeSegment(key);
  if (!folder.has_value() || folder->size() != 2 * kVersionDigits + 1 || (*folder)[kVersionDigits] != '-') {
    return std::nullopt;
  }
  const auto from = ParseVersion(folder->substr(0, kVersionDigits));
  const auto to = ParseVersion(folder->substr(kVersionDigits + 1));
  if (!from.has_value() || !to.has_value() || *from >= *to) return std::nullopt;
  return DeltaName{*from, *to};
}

std::optional<AnchorName> AnchorOfKey(std::string_view key) {
  if (!key.starts_with(kAnchorsPrefix)) return std::nullopt;
  key.remove_prefix(kAnchorsPrefix.size());
  const auto version_text = TakeSegment(key);
  const auto id_text = version_text.has_value() ? TakeSegment(key) : std::nullopt;
  if (!id_text.has_value()) return std::nullopt;
  const auto version = ParseVersion(*version_text);
  const auto id = IdFromHex(*id_text);
  if (!version.has_value() || !id.has_value()) return std::nullopt;
  return AnchorName{*version, *id};
}

bool IsAnchorManifestKey(std::string_view key) {
  const auto anchor = AnchorOfKey(key);
  return anchor.has_value() && key == AnchorManifestKey(*anchor);
}

Status CheckFileName(std::string_view name) {
  const auto refuse = [&](std::string_view why) {
    return Error(ErrorCode::kCorrupt, fmt::format("{} cannot be a file of an anchor: {}", Quoted(name), why));
  };
  if (!CheckKey(name).ok()) return refuse("it is no relative path of plain characters");
  std::string_view rest = name;
  while (!rest.empty()) {
    if (rest.front() == '.') return refuse("a segment of it begins with a dot");
    const std::size_t slash = rest.find('/');
    rest.remove_prefix(slash == std::string_view::npos ? rest.size() : slash + 1);
  }
  if (name == kAnchorManifestName) return refuse("the name is taken by the anchor's own list");
  return Ok();
}

bool MayBeCode(std::string_view name) {
  static constexpr auto kEndings = std::to_array<std::string_view>(
      {".py",     ".pyc", ".pyo", ".pyw", ".pyd",  ".egg", ".whl", ".pkl", ".pickle",     ".dill",
       ".joblib", ".bin", ".pt",  ".pth", ".ckpt", ".npy", ".npz", ".so",  ".dll",        ".dylib",
       ".jar",    ".exe", ".sh",  ".bat", ".cmd",  ".ps1", ".pyz", ".pt2", ".cloudpickle"});
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  // Wherever one of them stands as a whole: libx.so.1, a.pkl.gz, a.egg/b.
  return std::any_of(kEndings.begin(), kEndings.end(), [&](std::string_view ending) {
    for (std::size_t at = lower.find(ending); at != std::string::npos; at = lower.find(ending, at + 1)) {
      const std::size_t after = at + ending.size();
      if (after == lower.size() || lower[after] == '.' || lower[after] == '/') return true;
    }
    return false;
  });
}

}  // namespace weightwire
