// A mirror that changes its files in place: what mirror.h promises, in three files.
//
//   mirror_open.cc      opens a mirror, and completes a change that a crash interrupted
//   mirror_in_place.cc  changes weights by the journal, and undoes that
//   mirror_files.cc     replaces whole files: loads, changes of the layout; adopts existing files
//
// For these files only; all others use mirror.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/filesystem.h"
#include "base/result.h"
#include "base/sha256.h"
#include "base/threads.h"
#include "codec/decode/staged_change.h"
#include "codec/digest/digest.h"
#include "codec/kernels/kernels.h"
#include "follow/mirror/mirror.h"
#include "follow/mirror/mirror_content.h"
#include "follow/mirror/mirror_state.h"
#include "follow/mirror/replacement.h"
#include "tensor/checkpoint_plan.h"
#include "tensor/layout.h"

namespace weightwire {

// Names below DIR/.weightwire; mirror.h says what they are.
inline constexpr std::string_view kJournalFile = "journal";
// A change is prepared under these names: its journal, and the states while and after it is written.
inline constexpr std::string_view kNextJournalFile = "journal.next";
inline constexpr std::string_view kWritingStateFile = "state.writing.json";
inline constexpr std::string_view kWrittenStateFile = "state.written.json";
inline constexpr std::string_view kIncoming = "incoming";
inline constexpr std::string_view kReplacementFile = "replacement";
[[nodiscard]] std::string LayoutFile(const Sha256Digest& layout);
[[nodiscard]] std::string DigestFile(const Sha256Digest& state);

// "DIR must be loaded again: WHY"
[[nodiscard]] Error ReloadNeededError(const FileSystem::Path& directory, const std::string& why);

class MirrorInPlace final : public Mirror {
 public:
  MirrorInPlace(FileSystem& files, FileSystem::Path directory, MirrorOptions options, const Kernels& kernels,
                ThreadPool& pool)
      : files_(files),
        directory_(std::move(directory)),
        own_(directory_ / kMirrorFolder),
        options_(std::move(options)),
        kernels_(kernels),
        pool_(pool) {}

  Status Open();

  [[nodiscard]] const std::optional<Held>& held() const override { return held_; }
  [[nodiscard]] const std::optional<Error>& damage() const override { return damage_; }
  [[nodiscard]] Result<StateView> View() override {
    WW_RETURN_IF_ERROR(CheckUsable());
    WW_CHECK(content_.has_value());
    return content_->view();
  }
  // kCorrupt names a tensor that has another digest; that is damage() then.
  Status Verify() override;
  Status Apply(const std::shared_ptr<const StagedChange>& change, const Held& after) override;
  Status Sync() override;
  [[nodiscard]] bool synced() const override { return !state_.unsynced.has_value(); }
  [[nodiscard]] std::optional<Held> undo_target() const override {
    return undo_.has_value() && !needs_recovery_ && held_ == undo_->after ? std::optional(undo_->before) : std::nullopt;
  }
  Status Undo() override;
  Result<std::unique_ptr<TargetLoad>> BeginLoad(std::span<const AnchorFile> files) override;
  Result<bool> Recover() override;
  Result<bool> RunMaintenance() override;
  Result<Sha256Digest> DigestAs(const Layout& layout) override;
  Status Adopt(const Held& held, const Layout& layout) override;

 private:
  class Loading;
  // Durable files in incoming/ that only have to take their places.
  struct PreparedFiles {
    Replacement replacement;
    std::shared_ptr<const Layout> layout;
    std::vector<Digest> digests;
    std::optional<MirrorContent> content;  // of a load: the files in incoming/
  };

  [[nodiscard]] Status CheckUsable() const;
  Status ClaimDirectory();
  Status LoadState();
  Status FinishInterrupted();
  Status FinishByFiles();
  Status FinishByJournal(const Held& target);
  Status FinishUnstarted();
  Status FindDamage() const;
  void SetDamaged(const Error& why) {
    damage_ = ReloadNeededError(directory_, why.message());
    held_.reset();
    content_.reset();
  }
  Status OpenContent(bool check);
  Result<std::shared_ptr<const Layout>> ReadLayout(const Sha256Digest& hash);
  [[nodiscard]] std::optional<ChangeNote> ReadUndo();
  Status RemoveStaleFiles();

  Status SaveState(const MirrorState& next);
  Result<std::unique_ptr<FileLock>> LockContent();
  Status OpenUpdates();
  Status WriteChange(const StagedChange& change);
  Status ApplyByJournal(const StagedChange& change, const Held& after);
  Status PrepareChange(const StagedChange& change, const ChangeNote& note, const MirrorState& writing,
                       const MirrorState& written);
  Result<std::unique_ptr<NewFile>> CreateStateFile(std::string_view name, const MirrorState& state);
  Status ApplyByFiles(const StagedChange& change, const Held& after);
  Result<PreparedFiles> PrepareChangedFiles(const StagedChange& change, const Held& after);
  Status RewriteFile(const PlannedFile& file, const StateView& after);
  Result<PreparedFiles> PrepareLoadedFiles(const Held& held, const Layout& layout, std::vector<std::string> names);
  Status Activate();
  Status Install(const Replacement& replacement);
  Result<std::vector<std::string>> OwnedFiles();
  Status SaveLayoutAndDigests(const Layout& layout, const std::vector<Digest>& digests, const Sha256Digest& state);

  FileSystem& files_;
  FileSystem::Path directory_;
  FileSystem::Path own_;
  MirrorOptions options_;
  const Kernels& kernels_;
  ThreadPool& pool_;

  std::unique_ptr<FileLock> follower_lock_;
  MirrorState state_;  // that of state.json
  std::optional<Held> held_;
  std::optional<Error> damage_;
  // The disk failed during a change, so memory may not match it.
  bool needs_recovery_ = false;
  std::optional<MirrorContent> content_;             // if held()
  std::vector<std::unique_ptr<UpdateMap>> updates_;  // of the content's files, once they are needed
  std::optional<ChangeNote> undo_;                   // the journal's note, if its change can be undone
  // The change from held_ to this version is prepared: its journal and states are durable, under the names above.
  std::optional<Held> prepared_change_;
  std::optional<PreparedFiles> prepared_files_;
  std::uint64_t loads_ = 0;  // begun so far; incoming/ belongs to the last one
};

}  // namespace weightwire
