#include "publish/spool.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/bytes.h"
#include "base/limits.h"
#include "base/object_hash.h"
#include "base/surface.h"
#include "log/limits.h"
#include "publish/record_commit.h"

namespace weightwire {
namespace {

constexpr const char* kRecordName = "record.json";
constexpr const char* kPartName = "part.safetensors";
constexpr const char* kLayoutName = "layout.json";
constexpr const char* kUnfinished = ".tmp";
constexpr std::size_t kVersionDigits = 20;

std::optional<Version> VersionOfName(std::string_view name) {
  Version version = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data(), end, version);
  if (name.size() != kVersionDigits || error != std::errc() || stop != end) return std::nullopt;
  return version;
}

Error LostToAnotherWriter(const Run& run, const std::string& directory, const std::optional<KnownRecord>& newest,
                          Version first, Version last) {
  const Version lost = newest.has_value() ? std::min(first, newest->record.version) : first;
  const std::string which =
      first == last ? fmt::format("version {}", last) : fmt::format("versions {} to {}", first, last);
  // Only the user can know that these versions may be discarded.
  return {
      ErrorCode::kConflict,
      fmt::format("{}, so {} waiting in {} cannot be published any more: see that only one publishes, then start it "
                  "with {}, which discards what waits",
                  WhoseRecord(run, lost), which, directory, FlagText("discard-conflicting"))};
}

}  // namespace

FileSystem::Path Spool::Entry(Version version) const { return directory_ / fmt::format("{:020}", version); }

Result<SpoolEntry> Spool::Read(Version version) const {
  const FileSystem::Path entry = Entry(version);
  SpoolEntry read;
  WW_TRY(const std::vector<std::uint8_t> record, files_.Read(entry / kRecordName, kMaxRecordBytes));
  read.record_json = TextOf(record);
  WW_TRY(read.known.record, ParseRecord(read.record_json));
  read.known.hash = Sha256Of(record);
  const auto corrupt = [&](std::string_view why) {
    return Error(ErrorCode::kCorrupt, fmt::format("{}: {}", entry.string(), why));
  };
  if (read.known.record.version != version) return corrupt("it holds the record of another version");
  WW_TRY(const auto has_layout, files_.Stat(entry / kLayoutName));
  if (has_layout.has_value()) {
    WW_TRY(const std::vector<std::uint8_t> text, files_.Read(entry / kLayoutName, kMaxLayoutBytes));
    WW_TRY(Layout layout, Layout::Parse(TextOf(text)));
    if (layout.hash() != read.known.record.layout) return corrupt("its layout is not the one its record names");
    read.layout = std::make_shared<const Layout>(std::move(layout));
  }
  for (const PartRef& part : read.known.record.delta.value_or(std::vector<PartRef>())) {
    WW_TRY(const std::unique_ptr<FileMap> map, OpenPart(version));
    if (map->bytes().size() != part.size_bytes || ObjectHash(map->bytes()) != part.hash) {
      return corrupt("its part is not the one its record names");
    }
  }
  return read;
}

Result<std::vector<FoundEntry>> Spool::Recover() {
  std::vector<FoundEntry> found;
  WW_TRY(const auto there, files_.Stat(directory_));
  if (!there.has_value()) {
    WW_RETURN_IF_ERROR(files_.MakeDirectory(directory_));
    WW_RETURN_IF_ERROR(files_.SyncDirectory(directory_.parent_path()));
    return found;
  }
  WW_TRY(const std::vector<std::string> names, files_.List(directory_));
  for (const std::string& name : names) {
    if (name.ends_with(kUnfinished)) WW_RETURN_IF_ERROR(RemoveTree(files_, directory_ / name));
    const auto version = VersionOfName(name);
    if (!version.has_value()) continue;
    auto entry = Read(*version);
    if (!entry.ok() && entry.error().code() != ErrorCode::kCorrupt && entry.error().code() != ErrorCode::kNotFound) {
      return entry.error().In("cannot read the spool");
    }
    found.push_back({*version, std::move(entry)});
  }
  return found;
}

Status Spool::WriteFile(const FileSystem::Path& path, std::span<const std::uint8_t> bytes) {
  WW_TRY(const std::unique_ptr<NewFile> file, files_.Create(path));
  WW_RETURN_IF_ERROR(file->Append(bytes));
  return file->Sync();
}

Status Spool::TryWrite(Version version, std::string_view record_json, std::optional<std::span<const std::uint8_t>> part,
                       const Layout* layout) {
  const FileSystem::Path entry = Entry(version);
  const FileSystem::Path unfinished = entry.string() + kUnfinished;
  WW_RETURN_IF_ERROR(RemoveTree(files_, unfinished));
  WW_TRY(const auto former, files_.Stat(entry));
  if (former.has_value()) {
    // Durably, or a crash could bring an entry back that failed, in place of the one that was published after it.
    WW_RETURN_IF_ERROR(RemoveTree(files_, entry));
    WW_RETURN_IF_ERROR(files_.SyncDirectory(directory_));
  }
  WW_RETURN_IF_ERROR(files_.MakeDirectory(unfinished));
  if (part.has_value()) WW_RETURN_IF_ERROR(WriteFile(unfinished / kPartName, *part));
  if (layout != nullptr) WW_RETURN_IF_ERROR(WriteFile(unfinished / kLayoutName, BytesOf(layout->CanonicalJson())));
  WW_RETURN_IF_ERROR(WriteFile(unfinished / kRecordName, BytesOf(record_json)));
  WW_RETURN_IF_ERROR(files_.SyncDirectory(unfinished));
  WW_RETURN_IF_ERROR(files_.Rename(unfinished, entry));
  return files_.SyncDirectory(directory_);
}

Status Spool::Write(Version version, std::string_view record_json, std::optional<std::span<const std::uint8_t>> part,
                    const Layout* layout) {
  const Status written = TryWrite(version, record_json, part, layout);
  if (written.ok()) return Ok();
  // Its place is needed if the disk is full. If even this fails, the next Write of the version removes it.
  const Status removed = Remove(version);
  const Status unfinished = RemoveTree(files_, Entry(version).string() + kUnfinished);
  static_cast<void>(removed);
  static_cast<void>(unfinished);
  return written.error().In(fmt::format("cannot spool version {}", version));
}

Result<std::unique_ptr<FileMap>> Spool::OpenPart(Version version) const {
  return files_.Map(Entry(version) / kPartName);
}

Status Spool::Remove(Version version) {
  // The record first: without it an entry is none.
  const Status removed = files_.Remove(Entry(version) / kRecordName);
  if (!removed.ok() && removed.error().code() != ErrorCode::kNotFound) return removed.error();
  return RemoveTree(files_, Entry(version));
}

Result<std::vector<SpoolEntry>> RecoverSpool(const Run& run, Spool& spool, const std::string& directory,
                                             const std::optional<KnownRecord>& newest, bool discard_conflicting) {
  std::optional<KnownRecord> before = newest;
  std::vector<SpoolEntry> waiting;
  WW_TRY(std::vector<FoundEntry> found, spool.Recover());
  bool drop = false;
  for (FoundEntry& one : found) {
    if (drop || !one.entry.ok()) {
      // A version that is committed needs no entry. The versions after a damaged one were made from it.
      drop = drop || !newest.has_value() || one.version > newest->record.version;
      WW_RETURN_IF_ERROR(spool.Remove(one.version));
      continue;
    }
    SpoolEntry& entry = one.entry.value();
    if (entry.known.record.run != run.id()) {
      return Error(ErrorCode::kMismatch,
                   fmt::format("{} is the state directory of another run; use another one", directory));
    }
    bool ours = false;
    if (newest.has_value() && one.version <= newest->record.version) {
      WW_TRY(const auto committed, run.ReadRecord(one.version));
      ours = committed.has_value() && committed->hash == entry.known.hash;
      if (ours) {
        WW_RETURN_IF_ERROR(spool.Remove(one.version));
        continue;
      }
    } else {
      ours = before.has_value() ? CheckFollows(*before, entry.known).ok() : one.version == 0;
    }
    if (!ours) {
      if (!discard_conflicting) return LostToAnotherWriter(run, directory, newest, one.version, found.back().version);
      drop = true;
      WW_RETURN_IF_ERROR(spool.Remove(one.version));
      continue;
    }
    before = entry.known;
    waiting.push_back(std::move(entry));
  }
  return waiting;
}

}  // namespace weightwire
