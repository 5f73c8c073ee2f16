#include "follow/in_place/in_place_update.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "follow/in_place/journal.h"
#include "follow/in_place/journal_writer.h"
#include "follow/in_place/tensor_locations.h"

namespace weightwire {
namespace {

using Path = FileSystem::Path;

constexpr std::string_view kJournalName = ".weightwire-journal";
constexpr std::string_view kTemporarySuffix = ".tmp";

Result<bool> Exists(FileSystem& files, const Path& path) {
  WW_TRY(const std::optional<FileInfo> there, files.Stat(path));
  return there.has_value();
}

Path DirectoryOf(const Path& file) { return file.has_parent_path() ? file.parent_path() : Path("."); }

Result<Path> JournalOf(FileSystem& files, const Path& checkpoint) {
  WW_TRY(const bool is_directory, IsDirectory(files, checkpoint));
  if (is_directory) return checkpoint / kJournalName;
  return DirectoryOf(checkpoint) / fmt::format("{}.{}", kJournalName, checkpoint.filename().string());
}

Path TemporaryOf(const Path& journal) { return journal.string() + std::string(kTemporarySuffix); }

// A checkpoint's journals: complete ones, or what is left of incomplete ones. A directory has its own and those of
// single files in it.
Result<std::vector<Path>> JournalsOf(FileSystem& files, const Path& checkpoint, bool complete) {
  std::vector<Path> journals;
  WW_TRY(const bool is_directory, IsDirectory(files, checkpoint));
  if (is_directory) {
    WW_TRY(const std::vector<std::string> names, files.List(checkpoint));
    for (const std::string& name : names) {
      if (name.starts_with(kJournalName) && name.ends_with(kTemporarySuffix) != complete) {
        journals.push_back(checkpoint / name);
      }
    }
    return journals;
  }
  WW_TRY(const Path journal, JournalOf(files, checkpoint));
  const Path path = complete ? journal : TemporaryOf(journal);
  WW_TRY(const bool there, Exists(files, path));
  if (there) journals.push_back(path);
  return journals;
}

// Replays a complete journal forward, and removes it.
Status ReplayAndRemove(const Path& journal_path, const InPlaceTools& tools) {
  const Path directory = journal_path.parent_path();
  const auto replay = [&]() -> Status {
    WW_TRY(const Journal journal, Journal::Open(tools.files, journal_path, tools.kernels));
    return ReplayJournal(tools.files, directory, journal, Journal::Direction::kForward, tools.pool);
  };
  if (const Status replayed = replay(); !replayed.ok()) {
    const Error& error = replayed.error();
    if (error.code() == ErrorCode::kIo) return error;
    return Error(error.code(),
                 error.message() + "; restore the checkpoint from where it came from and remove the journal beside it");
  }
  WW_RETURN_IF_ERROR(tools.files.Remove(journal_path));
  return tools.files.SyncDirectory(directory);
}

// Returns once the journal of the change is durable, under its own name.
Status CommitJournal(const Path& journal_path, const Checkpoint& base, const StagedChange& change,
                     const InPlaceTools& tools) {
  WW_TRY(const std::vector<TensorLocation> locations, LocationsIn(base.files(), base.layout()));
  std::vector<std::span<const std::uint8_t>> tensors;
  for (std::size_t i = 0; i < base.layout().size(); ++i) tensors.push_back(base.bytes(i));
  JournalRequest request;
  request.change = &change;
  request.files = base.files();
  request.locations = locations;
  request.tensors = tensors;
  request.check_tensors = true;
  const Path temporary = TemporaryOf(journal_path);
  WW_TRY(const std::unique_ptr<NewFile> file, WriteJournal(tools.files, temporary, request, tools.kernels, tools.pool));
  WW_RETURN_IF_ERROR(file->Sync());
  WW_RETURN_IF_ERROR(tools.files.Rename(temporary, journal_path));
  return tools.files.SyncDirectory(journal_path.parent_path());
}

}  // namespace

Result<std::optional<Path>> PendingUpdate(FileSystem& files, const Path& checkpoint) {
  WW_TRY(const std::vector<Path> journals, JournalsOf(files, checkpoint, true));
  if (!journals.empty()) return std::optional(checkpoint);
  WW_TRY(const bool is_directory, IsDirectory(files, checkpoint));
  if (is_directory) return std::optional<Path>();
  const Path directory = DirectoryOf(checkpoint);
  WW_TRY(const bool pending, Exists(files, directory / kJournalName));
  return pending ? std::optional(directory) : std::nullopt;
}

Result<bool> FinishPendingUpdate(const Path& checkpoint, const InPlaceTools& tools) {
  WW_TRY(const std::vector<Path> incomplete, JournalsOf(tools.files, checkpoint, false));
  for (const Path& leftover : incomplete) WW_RETURN_IF_ERROR(tools.files.Remove(leftover));
  WW_TRY(const std::vector<Path> complete, JournalsOf(tools.files, checkpoint, true));
  for (const Path& journal : complete) {
    // The process that named the journal may have been killed before the name was durable. A power failure must not
    // remove the journal while the weights are half written.
    WW_RETURN_IF_ERROR(tools.files.SyncDirectory(journal.parent_path()));
    const Status finished = ReplayAndRemove(journal, tools);
    if (!finished.ok()) return finished.error().In(fmt::format("cannot finish the update of {}", checkpoint.string()));
  }
  return !complete.empty();
}

Status UpdateInPlace(const Path& path, const Checkpoint& base, const StagedChange& change, const InPlaceTools& tools) {
  if (!(change.layout_before() == change.layout_after())) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("cannot update {} in place: the names, types or shapes of its tensors change; write the "
                             "result elsewhere with -o",
                             path.string()));
  }
  WW_TRY(const Path journal, JournalOf(tools.files, path));
  for (const CheckpointFile& file : base.files()) {
    const Path weights = journal.parent_path() / file.name;
    WW_TRY(const std::optional<FileInfo> there, tools.files.Stat(weights));
    if (!there.has_value()) continue;
    const bool link = there->kind == FileKind::kLink;
    if (!link && there->names <= 1) continue;
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("cannot update {} in place: it {}, and others may use {}; write the result elsewhere with "
                             "-o",
                             weights.string(), link ? "is a link" : "has another name, too (a hard link)",
                             link ? "what it points to" : "that"));
  }
  WW_RETURN_IF_ERROR(CommitJournal(journal, base, change, tools));
  const Status written = ReplayAndRemove(journal, tools);
  if (!written.ok()) {
    return written.error().In(fmt::format(
        "the update of {0} has begun and is not complete; run 'weightwire apply --in-place {0}' to finish it",
        path.string()));
  }
  return Ok();
}

}  // namespace weightwire
