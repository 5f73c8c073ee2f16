#include "cli/in_place.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "tensor/json.h"
#include "tensor/safetensors.h"

namespace weightwire {
namespace {

namespace fs = std::filesystem;

using Bytes = std::span<const std::uint8_t>;

constexpr std::string_view kMagic = "WWJRNL01";
constexpr std::string_view kJournalName = ".weightwire-journal";
constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr std::uint8_t kFileFollows = 1;
constexpr std::uint8_t kNoMoreFiles = 0;

// The journal is written in pieces of about this size.
constexpr std::size_t kJournalBuffer = std::size_t{1} << 18;
// Neighbouring changes become one run up to this size.
constexpr std::size_t kMaxRunBytes = std::size_t{1} << 16;
// Runs closer than this are read and written together: a call costs more than the bytes between.
constexpr std::uint64_t kMaxGapBytes = 4096;
constexpr std::uint64_t kMaxSegmentBytes = std::uint64_t{1} << 18;

fs::path JournalOf(const fs::path& checkpoint) {
  std::error_code ignored;
  if (fs::is_directory(checkpoint, ignored)) return checkpoint / kJournalName;
  return checkpoint.parent_path() / fmt::format("{}.{}", kJournalName, checkpoint.filename().string());
}

fs::path TemporaryOf(const fs::path& journal) { return journal.string() + std::string(kTemporarySuffix); }

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() != fs::file_type::not_found;
}

// A directory's own journal and those of single files in it; complete ones, or what is left of incomplete ones.
Result<std::vector<fs::path>> JournalsIn(const fs::path& directory, bool complete) {
  std::vector<fs::path> journals;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(kJournalName) && name.ends_with(kTemporarySuffix) != complete) {
      journals.push_back(entry->path());
    }
  }
  if (error) {
    return Error(ErrorCode::kIo, fmt::format("cannot list {}: {}", directory.string(), error.message()));
  }
  std::sort(journals.begin(), journals.end());
  return journals;
}

// The effects on the disk, each of which the hook may forbid; after that nothing happens any more.
class Disk {
 public:
  explicit Disk(const FaultHook& hook) : hook_(hook) {}

  [[nodiscard]] bool stopped() const { return stopped_; }

  Result<File> CreateJournal(const fs::path& path) {
    WW_RETURN_IF_ERROR(Ask(DiskEffect::kCreateJournal));
    return File::Create(path);
  }
  Status WriteAt(DiskEffect effect, const File& file, std::uint64_t offset, Bytes bytes) {
    const Fault fault = Decide(effect);
    if (fault == Fault::kStopHalfway) WW_RETURN_IF_ERROR(file.WriteAt(offset, bytes.first(bytes.size() / 2)));
    if (fault != Fault::kGoOn) return Stopped();
    return file.WriteAt(offset, bytes);
  }
  Status Sync(DiskEffect effect, const File& file) {
    WW_RETURN_IF_ERROR(Ask(effect));
    return file.Sync();
  }
  Status NameJournal(const fs::path& from, const fs::path& to) {
    WW_RETURN_IF_ERROR(Ask(DiskEffect::kNameJournal));
    return Rename(from, to, Existing::kRefuse);
  }
  Status RemoveJournal(const fs::path& path) {
    WW_RETURN_IF_ERROR(Ask(DiskEffect::kRemoveJournal));
    std::error_code error;
    fs::remove(path, error);
    if (error) return Error(ErrorCode::kIo, fmt::format("cannot remove {}: {}", path.string(), error.message()));
    WW_RETURN_IF_ERROR(Ask(DiskEffect::kSyncDirectory));
    return SyncDirectory(path.parent_path());
  }

 private:
  static Error Stopped() { return {ErrorCode::kIo, "stopped by a test"}; }
  Fault Decide(DiskEffect effect) {
    const Fault fault = stopped_ ? Fault::kStopBefore : hook_ ? hook_(effect) : Fault::kGoOn;
    stopped_ = fault != Fault::kGoOn;
    return fault;
  }
  Status Ask(DiskEffect effect) {
    if (Decide(effect) != Fault::kGoOn) return Stopped();
    return Ok();
  }

  const FaultHook& hook_;
  bool stopped_ = false;
};

// A journal under construction: under its temporary name until Commit, and removed if that does not come.
class JournalWriter {
 public:
  static Result<JournalWriter> Create(const fs::path& journal, Disk& disk) {
    WW_TRY(File file, disk.CreateJournal(TemporaryOf(journal)));
    return JournalWriter(std::move(file), journal, disk);
  }
  JournalWriter(JournalWriter&& other) noexcept
      : file_(std::move(other.file_)),
        journal_(std::move(other.journal_)),
        disk_(other.disk_),
        buffer_(std::move(other.buffer_)),
        hash_(std::move(other.hash_)),
        size_(other.size_),
        run_end_(other.run_end_),
        pending_(std::exchange(other.pending_, false)) {}
  JournalWriter& operator=(JournalWriter&&) = delete;
  ~JournalWriter() {
    if (pending_ && !disk_->stopped()) ::unlink(file_.path().c_str());
  }

  Status Begin(const StagedChange& change) {
    Append({reinterpret_cast<const std::uint8_t*>(kMagic.data()), kMagic.size()});
    Append(change.state_before());
    Append(change.state_after());
    return FlushIfLarge();
  }

  Status BeginFile(std::string_view name, std::uint64_t size) {
    ByteWriter out(buffer_);
    out.U8(kFileFollows);
    out.Varint(name.size());
    out.Bytes({reinterpret_cast<const std::uint8_t*>(name.data()), name.size()});
    out.Varint(size);
    run_end_ = 0;
    return FlushIfLarge();
  }
  // Ascending, and apart from the run before. REQUIRES: as many old bytes as new ones, at least one.
  Status Run(std::uint64_t offset, Bytes old_bytes, Bytes new_bytes) {
    WW_CHECK(offset >= run_end_ && old_bytes.size() == new_bytes.size() && !old_bytes.empty());
    ByteWriter out(buffer_);
    out.Varint(offset - run_end_);
    out.Varint(old_bytes.size());
    out.Bytes(old_bytes);
    out.Bytes(new_bytes);
    run_end_ = offset + old_bytes.size();
    return FlushIfLarge();
  }
  Status EndFile() {
    ByteWriter out(buffer_);
    out.Varint(0);
    out.Varint(0);
    return FlushIfLarge();
  }

  // Returns once the journal is on the disk under its own name.
  Status Commit() {
    buffer_.push_back(kNoMoreFiles);
    WW_RETURN_IF_ERROR(Flush());
    Append(hash_.Finish());
    WW_RETURN_IF_ERROR(disk_->WriteAt(DiskEffect::kWriteJournal, file_, size_, buffer_));
    WW_RETURN_IF_ERROR(disk_->Sync(DiskEffect::kSyncJournal, file_));
    WW_RETURN_IF_ERROR(disk_->NameJournal(file_.path(), journal_));
    pending_ = false;
    return Ok();
  }

 private:
  JournalWriter(File file, fs::path journal, Disk& disk)
      : file_(std::move(file)), journal_(std::move(journal)), disk_(&disk) {}

  void Append(Bytes bytes) { ByteWriter(buffer_).Bytes(bytes); }
  Status FlushIfLarge() { return buffer_.size() < kJournalBuffer ? Ok() : Flush(); }
  Status Flush() {
    hash_.Update(buffer_);
    WW_RETURN_IF_ERROR(disk_->WriteAt(DiskEffect::kWriteJournal, file_, size_, buffer_));
    size_ += buffer_.size();
    buffer_.clear();
    return Ok();
  }

  File file_;
  fs::path journal_;
  Disk* disk_;
  std::vector<std::uint8_t> buffer_;
  Sha256 hash_;
  std::uint64_t size_ = 0;
  std::uint64_t run_end_ = 0;
  bool pending_ = true;
};

// Neighbouring changes of one tensor on their way to the journal, as runs.
class RunCollector {
 public:
  // `begin` is where the tensor lies in the file, `held` what the file holds there.
  RunCollector(JournalWriter& journal, std::uint64_t begin, Bytes held)
      : journal_(journal), begin_(begin), held_(held) {}

  // REQUIRES: ascending offsets within the tensor.
  Status Add(std::uint64_t offset, Bytes old_bytes, Bytes new_bytes) {
    if (std::memcmp(held_.data() + offset, old_bytes.data(), old_bytes.size()) != 0) {
      return Error(ErrorCode::kMismatch, "the checkpoint was changed by something else meanwhile; nothing was written");
    }
    if (!old_.empty() && (offset != offset_ + old_.size() || old_.size() + old_bytes.size() > kMaxRunBytes)) {
      WW_RETURN_IF_ERROR(Flush());
    }
    if (old_.empty()) offset_ = offset;
    old_.insert(old_.end(), old_bytes.begin(), old_bytes.end());
    new_.insert(new_.end(), new_bytes.begin(), new_bytes.end());
    return Ok();
  }
  Status Flush() {
    if (old_.empty()) return Ok();
    WW_RETURN_IF_ERROR(journal_.Run(begin_ + offset_, old_, new_));
    old_.clear();
    new_.clear();
    return Ok();
  }

 private:
  JournalWriter& journal_;
  std::uint64_t begin_;
  Bytes held_;
  std::uint64_t offset_ = 0;
  std::vector<std::uint8_t> old_;
  std::vector<std::uint8_t> new_;
};

Status JournalTensor(const StagedTensor& staged, Bytes held, std::uint64_t begin, JournalWriter& journal) {
  RunCollector runs(journal, begin, held);
  if (staged.is_new()) {
    // Removed by one delta and added again by a later one: all of it may differ.
    WW_CHECK(staged.new_bytes().size() == held.size());
    for (std::size_t at = 0; at < held.size(); at += kMaxRunBytes) {
      const std::size_t size = std::min(kMaxRunBytes, held.size() - at);
      const Bytes old_bytes = held.subspan(at, size);
      const Bytes new_bytes = staged.new_bytes().subspan(at, size);
      if (std::memcmp(old_bytes.data(), new_bytes.data(), size) == 0) continue;
      WW_RETURN_IF_ERROR(runs.Add(at, old_bytes, new_bytes));
    }
    return runs.Flush();
  }
  const auto width = static_cast<std::size_t>(staged.unit_bytes());
  Status status;
  staged.ForEachChanged(0, held.size() / width,
                        [&](std::uint64_t unit, const std::uint8_t* new_unit, const std::uint8_t* old_unit) {
                          if (status.ok()) status = runs.Add(unit * width, {old_unit, width}, {new_unit, width});
                        });
  if (!status.ok()) return status.error();
  return runs.Flush();
}

Error Damaged(const fs::path& journal) {
  return {
      ErrorCode::kCorrupt,
      fmt::format("the journal {} of an unfinished update is damaged; restore the checkpoint from where it came from "
                  "and remove the journal",
                  journal.string())};
}

// A complete journal, its hash checked.
class Journal {
 public:
  struct FileChanges {
    std::string name;
    std::uint64_t size = 0;
    ByteReader runs;  // up to the run of length 0, and beyond
  };
  struct Run {
    std::uint64_t offset = 0;
    Bytes old_bytes;
    Bytes new_bytes;
  };

  static Result<Journal> Open(const fs::path& path) {
    WW_TRY(MappedFile map, MappedFile::Open(path));
    Journal journal(std::move(map));
    if (!journal.Parse().ok()) return Damaged(path);
    return journal;
  }

  [[nodiscard]] const std::vector<FileChanges>& files() const { return files_; }

  // The next run, or one without bytes at the end. `end` is where the one before ended.
  static Result<Run> NextRun(ByteReader& in, std::uint64_t end) {
    Run run;
    WW_TRY(const std::uint64_t gap, in.Varint());
    WW_TRY(const std::uint64_t size, in.Varint());
    const auto offset = CheckedAdd(end, gap);
    if (!offset.has_value()) return Error(ErrorCode::kCorrupt, "a run is out of range");
    run.offset = *offset;
    WW_TRY(run.old_bytes, in.Bytes(size));
    WW_TRY(run.new_bytes, in.Bytes(size));
    return run;
  }

 private:
  explicit Journal(MappedFile map) : map_(std::move(map)) {}

  Status Parse() {
    const Error bad(ErrorCode::kCorrupt, "");
    const Bytes bytes = map_.bytes();
    constexpr std::size_t kHashBytes = sizeof(Sha256Digest);
    if (bytes.size() < kMagic.size() + 3 * kHashBytes + 1) return bad;
    const Sha256Digest hash = Sha256Of(bytes.first(bytes.size() - kHashBytes));
    if (!std::equal(hash.begin(), hash.end(), bytes.end() - kHashBytes)) return bad;
    if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) return bad;
    ByteReader in(bytes.first(bytes.size() - kHashBytes).subspan(kMagic.size() + 2 * kHashBytes));
    while (true) {
      WW_TRY(const std::uint8_t follows, in.U8());
      if (follows == kNoMoreFiles) return in.ExpectEnd();
      WW_TRY(const std::uint64_t length, in.Varint());
      if (length > kMaxNameBytes) return bad;
      WW_TRY(const auto name, in.Bytes(length));
      WW_TRY(const std::uint64_t size, in.Varint());
      FileChanges file{{name.begin(), name.end()}, size, in};
      const fs::path relative(file.name);
      if (relative.is_absolute() || std::find(relative.begin(), relative.end(), "..") != relative.end()) return bad;
      std::uint64_t end = 0;
      while (true) {
        WW_TRY(const Run run, NextRun(in, end));
        if (run.old_bytes.empty()) break;
        end = run.offset + run.old_bytes.size();
        if (end > size) return bad;
      }
      files_.push_back(std::move(file));
    }
  }

  MappedFile map_;
  std::vector<FileChanges> files_;
};

// Runs that are read and written together, and the bytes the file holds from the first to the last of them.
struct Segment {
  std::vector<Journal::Run> runs;
  std::vector<std::uint8_t> held;

  [[nodiscard]] std::uint64_t begin() const { return runs.front().offset; }
};

// Calls function(segment) -> Status for all of the file's runs.
template <typename Function>
Status ForEachSegment(const Journal::FileChanges& changes, const File& file, Function&& function) {
  ByteReader in = changes.runs;
  Segment segment;
  std::uint64_t end = 0;
  const auto give = [&]() -> Status {
    if (segment.runs.empty()) return Ok();
    segment.held.resize(end - segment.begin());
    WW_RETURN_IF_ERROR(file.ReadAt(segment.begin(), segment.held));
    WW_RETURN_IF_ERROR(function(segment));
    segment.runs.clear();
    return Ok();
  };
  while (true) {
    WW_TRY(const Journal::Run run, Journal::NextRun(in, end));
    const bool last = run.old_bytes.empty();
    if (!segment.runs.empty() && (last || run.offset - end > kMaxGapBytes ||
                                  run.offset + run.old_bytes.size() - segment.begin() > kMaxSegmentBytes)) {
      WW_RETURN_IF_ERROR(give());
    }
    if (last) return Ok();
    end = run.offset + run.old_bytes.size();
    segment.runs.push_back(run);
  }
}

Status CheckHoldsOldOrNew(const Journal::FileChanges& changes, const File& file) {
  const Error changed(
      ErrorCode::kMismatch,
      fmt::format("{} was changed by something else since its update began; restore the checkpoint from "
                  "where it came from and remove the journal beside it",
                  file.path().string()));
  WW_TRY(const std::uint64_t size, file.size());
  if (size != changes.size) return changed;
  return ForEachSegment(changes, file, [&](const Segment& segment) -> Status {
    for (const Journal::Run& run : segment.runs) {
      const std::uint8_t* held = segment.held.data() + (run.offset - segment.begin());
      // A write may have stopped anywhere: each byte for itself is old or new.
      for (std::size_t i = 0; i < run.old_bytes.size(); ++i) {
        if (held[i] != run.old_bytes[i] && held[i] != run.new_bytes[i]) return changed;
      }
    }
    return Ok();
  });
}

Status WriteNew(const Journal::FileChanges& changes, const File& file, Disk& disk) {
  return ForEachSegment(changes, file, [&](Segment& segment) {
    for (const Journal::Run& run : segment.runs) {
      std::copy(run.new_bytes.begin(), run.new_bytes.end(),
                segment.held.begin() + static_cast<std::ptrdiff_t>(run.offset - segment.begin()));
    }
    return disk.WriteAt(DiskEffect::kWriteWeights, file, segment.begin(), segment.held);
  });
}

Status RollForward(const fs::path& journal_path, Disk& disk) {
  WW_TRY(const Journal journal, Journal::Open(journal_path));
  std::vector<File> files;
  for (const Journal::FileChanges& changes : journal.files()) {
    WW_TRY(File file, File::OpenForUpdate(journal_path.parent_path() / changes.name));
    WW_RETURN_IF_ERROR(CheckHoldsOldOrNew(changes, file));
    files.push_back(std::move(file));
  }
  for (std::size_t i = 0; i < files.size(); ++i) WW_RETURN_IF_ERROR(WriteNew(journal.files()[i], files[i], disk));
  for (const File& file : files) WW_RETURN_IF_ERROR(disk.Sync(DiskEffect::kSyncWeights, file));
  return disk.RemoveJournal(journal_path);
}

int OpenAndLock(const fs::path& path, int flags, int operation) {
  const int descriptor = ::open(path.empty() ? "." : path.c_str(), flags | O_CLOEXEC);
  if (descriptor < 0) return -1;  // whoever reads it next will say why it cannot be opened
  // A file system without locks has no other answer than to go on.
  if (::flock(descriptor, operation | LOCK_NB) == 0 || errno != EWOULDBLOCK) return descriptor;
  ::close(descriptor);
  errno = EWOULDBLOCK;
  return -1;
}

}  // namespace

Result<UpdateLock> UpdateLock::Take(const fs::path& checkpoint) {
  UpdateLock lock;
  std::error_code ignored;
  const bool is_directory = fs::is_directory(checkpoint, ignored);
  const Error busy(ErrorCode::kIo, fmt::format("another weightwire is updating {} at this moment; try again later",
                                               checkpoint.string()));
  errno = 0;
  lock.directory_ = OpenAndLock(is_directory ? checkpoint : checkpoint.parent_path(), O_RDONLY | O_DIRECTORY,
                                is_directory ? LOCK_EX : LOCK_SH);
  if (lock.directory_ < 0 && errno == EWOULDBLOCK) return busy;
  if (!is_directory) {
    errno = 0;
    lock.file_ = OpenAndLock(checkpoint, O_RDONLY, LOCK_EX);
    if (lock.file_ < 0 && errno == EWOULDBLOCK) return busy;
  }
  return lock;
}

UpdateLock::UpdateLock(UpdateLock&& other) noexcept
    : directory_(std::exchange(other.directory_, -1)), file_(std::exchange(other.file_, -1)) {}

UpdateLock::~UpdateLock() {
  if (file_ >= 0) ::close(file_);
  if (directory_ >= 0) ::close(directory_);
}

Result<std::optional<fs::path>> PendingUpdate(const fs::path& checkpoint) {
  std::error_code ignored;
  if (fs::is_directory(checkpoint, ignored)) {
    WW_TRY(const auto journals, JournalsIn(checkpoint, true));
    return journals.empty() ? std::nullopt : std::optional(checkpoint);
  }
  if (Exists(JournalOf(checkpoint))) return std::optional(checkpoint);
  const fs::path directory = checkpoint.parent_path();
  if (Exists(directory / kJournalName)) return std::optional(directory.empty() ? fs::path(".") : directory);
  return std::optional<fs::path>();
}

Result<bool> FinishPendingUpdate(const fs::path& checkpoint, const FaultHook& hook) {
  std::error_code ignored;
  std::vector<fs::path> complete;
  std::vector<fs::path> incomplete;
  if (fs::is_directory(checkpoint, ignored)) {
    WW_TRY(complete, JournalsIn(checkpoint, true));
    WW_TRY(incomplete, JournalsIn(checkpoint, false));
  } else {
    const fs::path journal = JournalOf(checkpoint);
    if (Exists(journal)) complete.push_back(journal);
    if (Exists(TemporaryOf(journal))) incomplete.push_back(TemporaryOf(journal));
  }
  for (const fs::path& leftover : incomplete) fs::remove(leftover, ignored);
  Disk disk(hook);
  for (const fs::path& journal : complete) {
    // Whoever named it may have been killed before that was on the disk, and then a power failure could take it away
    // from half-written weights.
    WW_RETURN_IF_ERROR(SyncDirectory(journal.parent_path()));
    const Status finished = RollForward(journal, disk);
    if (!finished.ok()) return finished.error().In(fmt::format("cannot finish the update of {}", checkpoint.string()));
  }
  return !complete.empty();
}

Status UpdateInPlace(const fs::path& path, const Checkpoint& base, const StagedChange& change, const FaultHook& hook) {
  if (!(change.layout_before() == change.layout_after())) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("cannot update {} in place: the names, types or shapes of its tensors change; write the "
                             "result elsewhere with -o",
                             path.string()));
  }
  const fs::path journal_path = JournalOf(path);
  const fs::path directory = journal_path.parent_path();
  for (const CheckpointFile& file : base.files()) {
    std::error_code ignored;
    if (!fs::is_symlink(directory / file.name, ignored)) continue;
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("cannot update {} in place: it is a link, and others may use what it points to; write the "
                             "result elsewhere with -o",
                             (directory / file.name).string()));
  }

  Disk disk(hook);
  WW_TRY(JournalWriter journal, JournalWriter::Create(journal_path, disk));
  WW_RETURN_IF_ERROR(journal.Begin(change));
  for (const CheckpointFile& file : base.files()) {
    WW_TRY(const MappedFile map, MappedFile::Open(directory / file.name));
    const auto view = SafetensorsView::Parse(map.bytes());
    if (!view.ok()) return view.error().In(map.path().string());
    WW_RETURN_IF_ERROR(journal.BeginFile(file.name, map.bytes().size()));
    for (const TensorView& tensor : view.value().tensors()) {
      const auto index = change.layout_after().Resolve(tensor.spec.name);
      if (!index.has_value() || change.layout_after().byte_size(*index) != tensor.bytes.size()) {
        return Error(ErrorCode::kMismatch, fmt::format("tensor {} of {} was changed by something else meanwhile",
                                                       Quoted(tensor.spec.name), map.path().string()));
      }
      const StagedTensor* staged = change.Find(*index);
      if (staged == nullptr) continue;
      const auto begin = static_cast<std::uint64_t>(tensor.bytes.data() - map.bytes().data());
      WW_RETURN_IF_ERROR(JournalTensor(*staged, tensor.bytes, begin, journal));
    }
    WW_RETURN_IF_ERROR(journal.EndFile());
  }
  WW_RETURN_IF_ERROR(journal.Commit());
  const Status written = RollForward(journal_path, disk);
  if (!written.ok()) {
    return written.error().In(fmt::format(
        "the update of {0} has begun and is not complete; run 'weightwire apply --in-place {0}' to finish it",
        path.string()));
  }
  return Ok();
}

}  // namespace weightwire
