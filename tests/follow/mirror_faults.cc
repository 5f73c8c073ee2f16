#include "follow/mirror_faults.h"

#include <utility>

#include "base/threads.h"
#include "codec/kernels/kernels.h"
#include "follow/in_place/journal.h"

namespace weightwire::testing {

// A new file whose syncs are left out.
class FaultyMirrorDisk::UnsyncedFile final : public NewFile {
 public:
  explicit UnsyncedFile(std::unique_ptr<NewFile> inner) : inner_(std::move(inner)) {}

  Status Append(std::span<const std::uint8_t> bytes) override { return inner_->Append(bytes); }
  Status WriteAt(std::uint64_t offset, std::span<const std::uint8_t> bytes) override {
    return inner_->WriteAt(offset, bytes);
  }
  Status Resize(std::uint64_t size_bytes) override { return inner_->Resize(size_bytes); }
  Status Sync() override { return Ok(); }

 private:
  std::unique_ptr<NewFile> inner_;
};

// A file of weights whose syncs are left out.
class FaultyMirrorDisk::UnsyncedMap final : public UpdateMap {
 public:
  explicit UnsyncedMap(std::unique_ptr<UpdateMap> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] std::uint64_t size_bytes() const override { return inner_->size_bytes(); }
  Result<std::span<std::uint8_t>> ForWriting(std::uint64_t offset, std::uint64_t size) override {
    return inner_->ForWriting(offset, size);
  }
  Status Sync() override { return Ok(); }

 private:
  std::unique_ptr<UpdateMap> inner_;
};

// A file of weights that is replayed as if the journal held differences: where the file holds old bits it ends up with
// the new ones, and the other way round. So a replay is right only if no bit of the change was written before.
class FaultyMirrorDisk::DifferenceMap final : public UpdateMap {
 public:
  DifferenceMap(FaultyMirrorDisk& disk, std::unique_ptr<UpdateMap> inner, const Path& path)
      : disk_(disk), inner_(std::move(inner)), name_(path.lexically_relative(disk.directory_).string()) {}

  [[nodiscard]] std::uint64_t size_bytes() const override { return inner_->size_bytes(); }
  Result<std::span<std::uint8_t>> ForWriting(std::uint64_t offset, std::uint64_t size) override {
    WW_TRY(const std::span<std::uint8_t> bytes, inner_->ForWriting(offset, size));
    // Only a replay takes a whole file.
    if (size == inner_->size_bytes()) {
      replayed_ = bytes;
      before_.assign(bytes.begin(), bytes.end());
    }
    return bytes;
  }
  Status Sync() override {
    if (!before_.empty()) AddDifferences();
    before_.clear();
    return inner_->Sync();
  }

 private:
  void AddDifferences();

  FaultyMirrorDisk& disk_;
  std::unique_ptr<UpdateMap> inner_;
  const std::string name_;
  std::span<std::uint8_t> replayed_;
  std::vector<std::uint8_t> before_;
};

void FaultyMirrorDisk::DifferenceMap::AddDifferences() {
  const auto journal = Journal::Open(disk_.inner_, disk_.directory_ / ".weightwire" / "journal", *ScalarKernels());
  if (!journal.ok()) return;
  ThreadPool pool(1);
  for (std::size_t file = 0; file < journal.value().files().size(); ++file) {
    if (journal.value().files()[file].name != name_) continue;
    std::vector<std::uint8_t> old_bytes(replayed_.begin(), replayed_.end());
    std::vector<std::uint8_t> new_bytes = old_bytes;
    journal.value().Write(file, old_bytes, Journal::Direction::kBack, pool);
    journal.value().Write(file, new_bytes, Journal::Direction::kForward, pool);
    for (std::size_t i = 0; i < replayed_.size(); ++i) replayed_[i] = before_[i] ^ old_bytes[i] ^ new_bytes[i];
  }
}

bool FaultyMirrorDisk::IsIncoming(const Path& path) const {
  const Path incoming = directory_ / ".weightwire" / "incoming";
  return path.string().starts_with(incoming.string());
}

std::unique_ptr<NewFile> FaultyMirrorDisk::WithoutSync(std::unique_ptr<NewFile> file, const Path& path) const {
  const bool leave_out = (fault_ == MirrorFault::kJournalNotDurable && path.filename() == "journal.next") ||
                         (fault_ == MirrorFault::kLoadNotSynced && IsIncoming(path));
  return leave_out ? std::make_unique<UnsyncedFile>(std::move(file)) : std::move(file);
}

Result<std::unique_ptr<UpdateMap>> FaultyMirrorDisk::MapForUpdate(const Path& path) {
  WW_TRY(std::unique_ptr<UpdateMap> map, inner_.MapForUpdate(path));
  if (fault_ == MirrorFault::kWeightsNotSynced) {
    return std::unique_ptr<UpdateMap>(std::make_unique<UnsyncedMap>(std::move(map)));
  }
  if (fault_ == MirrorFault::kJournalHoldsDifferences) {
    return std::unique_ptr<UpdateMap>(std::make_unique<DifferenceMap>(*this, std::move(map), path));
  }
  return map;
}

Result<std::unique_ptr<NewFile>> FaultyMirrorDisk::Create(const Path& path) {
  WW_TRY(std::unique_ptr<NewFile> file, inner_.Create(path));
  return WithoutSync(std::move(file), path);
}

Result<std::unique_ptr<NewFile>> FaultyMirrorDisk::Reopen(const Path& path) {
  WW_TRY(std::unique_ptr<NewFile> file, inner_.Reopen(path));
  return WithoutSync(std::move(file), path);
}

Status FaultyMirrorDisk::Rename(const Path& from, const Path& to) {
  if (fault_ == MirrorFault::kNoWritingState && from.filename() == "state.writing.json") return Ok();
  if (fault_ == MirrorFault::kReplacementNotSaved && to.filename() == "replacement") return Ok();
  if (to.filename() == "journal") journal_was_named_ = true;
  return inner_.Rename(from, to);
}

Status FaultyMirrorDisk::SyncDirectory(const Path& directory) {
  const bool names_journal = std::exchange(journal_was_named_, false);
  if (fault_ == MirrorFault::kJournalNotDurable && names_journal) return Ok();
  if (fault_ == MirrorFault::kLoadNotSynced && IsIncoming(directory)) return Ok();
  return inner_.SyncDirectory(directory);
}

}  // namespace weightwire::testing
