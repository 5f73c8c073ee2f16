#include "follow/staged_versions.h"

#include <numeric>
#include <utility>

#include "base/check.h"
#include "codec/decode/decoder.h"
#include "codec/format/delta_file.h"

namespace weightwire {
namespace {

Result<std::shared_ptr<const StagedChange>> DecodeParts(const Record& record, const Sha256Digest& before,
                                                        std::span<const std::vector<std::uint8_t>> parts,
                                                        const StateView& view, const Kernels& kernels,
                                                        ThreadPool& pool) {
  if (parts.empty()) {  // the same state under another step
    return std::make_shared<const StagedChange>(StagedChange::Nothing(view.shared_layout(), view.digests()));
  }
  std::vector<DeltaFile> files;
  for (const auto& bytes : parts) {
    WW_TRY(DeltaFile file, DeltaFile::Parse(bytes));
    files.push_back(std::move(file));
  }
  if (files.size() == 1 && files.front().index().state.has_value()) {
    return StageDelta(files.front(), view, kernels, pool);
  }
  return StageParts(files, StateDigests{before, record.state}, view, kernels, pool);
}

}  // namespace

Result<std::shared_ptr<const StagedChange>> DecodeVersion(const Record& record, const Sha256Digest& before,
                                                          std::span<const std::vector<std::uint8_t>> parts,
                                                          const StateView& view, const Kernels& kernels,
                                                          ThreadPool& pool) {
  WW_TRY(auto change, DecodeParts(record, before, parts, view, kernels, pool));
  if (change->state_before() != before || change->state_after() != record.state ||
      change->layout_after().hash() != record.layout) {
    return Corrupt("it does not lead to the state that its record names");
  }
  return change;
}

std::uint64_t StagedVersions::count() const {
  return std::accumulate(entries_.begin(), entries_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Entry& entry) { return sum + entry.versions; });
}

void StagedVersions::Combine() {
  if (!is_combined()) FoldLast(entries_.size());
}

std::shared_ptr<const StagedChange> StagedVersions::Combined() {
  Combine();
  return entries_.empty() ? nullptr : entries_.front().change;
}

Result<const StateView*> StagedVersions::View() {
  if (!view_.has_value()) {
    WW_TRY(StateView view, load_ != nullptr ? load_->View() : target_.View());
    for (const Entry& entry : entries_) view = std::move(view).After(entry.change);
    view_ = std::move(view);
  }
  return &*view_;
}

void StagedVersions::BeginWith(std::unique_ptr<AnchorLoad> load) {
  Clear();
  load_ = std::move(load);
}

void StagedVersions::Push(KnownRecord record, std::shared_ptr<const StagedChange> change) {
  if (view_.has_value()) view_ = std::move(*view_).After(change);
  entries_.push_back({std::move(record), std::move(change)});
  while (entries_.size() >= kFoldAt && (entries_.end() - kFoldAt)->versions == entries_.back().versions) {
    FoldLast(kFoldAt);
  }
}

void StagedVersions::FoldLast(std::size_t count) {
  const auto first = entries_.end() - static_cast<std::ptrdiff_t>(count);
  std::vector<std::shared_ptr<const StagedChange>> changes;
  Entry folded{std::move(entries_.back().record), nullptr, 0};
  for (auto at = first; at != entries_.end(); ++at) {
    changes.push_back(std::move(at->change));
    folded.versions += at->versions;
  }
  view_.reset();  // it points into the changes
  folded.change = StagedChange::Fold(changes, pool_);
  entries_.erase(first, entries_.end());
  entries_.push_back(std::move(folded));
}

void StagedVersions::DropAfter(Version version) {
  if (load_ != nullptr && load_->record().record.version > version) return Clear();
  view_.reset();
  while (!entries_.empty() && last().record.version > version) entries_.pop_back();
}

void StagedVersions::Clear() {
  view_.reset();
  entries_.clear();
  load_ = nullptr;
}

Status StagedVersions::WriteToTarget() {
  WW_CHECK(!empty());
  const Held after = HeldOf(last());
  if (load_ == nullptr) return target_.Apply(Combined(), after);
  Status committed = load_->Commit(Combined(), after);
  if (!committed.ok() && target_.held() == HeldOf(load_->record())) {
    view_.reset();
    load_ = nullptr;
  }
  return committed;
}

}  // namespace weightwire
