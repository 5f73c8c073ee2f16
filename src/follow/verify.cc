#include "follow/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/failure_policy.h"
#include "follow/staged_versions.h"
#include "log/limits.h"
#include "store/policy.h"

namespace weightwire {

Verifier::Verifier(Run run, Version from, const Kernels& kernels, ThreadPool& pool)
    : run_(std::move(run)), from_(from), kernels_(kernels), pool_(pool) {}

Result<bool> Verifier::Step() {
  switch (phase_) {
    case Phase::kBegin:
      WW_RETURN_IF_ERROR(Begin());
      break;
    case Phase::kRecord:
      WW_RETURN_IF_ERROR(ReadRecord());
      break;
    case Phase::kDelta:
      WW_RETURN_IF_ERROR(ReadDelta());
      break;
    case Phase::kAnchor:
      WW_RETURN_IF_ERROR(ReadAnchor());
      break;
    case Phase::kEnd:
      return true;
  }
  return phase_ == Phase::kEnd;
}

void Verifier::Damaged(std::string sentence) {
  // As many as a person would read; the first ones say most.
  constexpr std::size_t kMostSentences = 1'000;
  if (report_.damage.size() < kMostSentences) report_.damage.push_back(std::move(sentence));
}

Status Verifier::Begin() {
  std::optional<Version> newest;
  if (const auto found = run_.FindNewest(std::nullopt); found.ok()) {
    if (found.value().has_value()) newest = found.value()->record.version;
  } else if (!MaySucceedLater(found.error())) {
    WW_TRY(newest, run_.FindNewestNumber());
  } else {
    return found.error();
  }
  if (!newest.has_value()) {
    return Error(ErrorCode::kNotFound, fmt::format("the run at {} has no version yet", run_.store().Name()));
  }
  if (*newest < from_) {
    return Error(ErrorCode::kNotFound, fmt::format("the run at {} has no version {}", run_.store().Name(), from_));
  }
  WW_TRY(anchors_, run_.ListAnchors(from_));
  report_.newest = *newest;
  version_ = from_;
  phase_ = Phase::kRecord;
  return Ok();
}

Status Verifier::ReadRecord() {
  record_.reset();
  const std::shared_ptr<const Layout> layout_before = std::exchange(layout_, nullptr);
  parts_.clear();
  parts_complete_ = true;
  parts_gone_ = false;
  const auto record = run_.ReadRecord(version_);
  if (!record.ok() && MaySucceedLater(record.error())) return record.error();
  if (record.ok()) record_ = record.value();
  if (!record_.has_value()) {
    Damaged(record.ok() ? fmt::format("the record of version {} is missing", version_) : record.error().message());
    EndVersion();
    return Ok();
  }
  if (layout_before != nullptr && layout_before->hash() == record_->record.layout) {
    layout_ = layout_before;
  } else {
    auto layout = run_.ReadLayout(record_->record.layout);
    if (!layout.ok() && MaySucceedLater(layout.error())) return layout.error();
    if (layout.ok()) {
      layout_ = std::make_shared<const Layout>(std::move(layout).value());
    } else {
      Damaged(fmt::format("the layout of version {}: {}", version_, layout.error().message()));
    }
  }
  ++report_.records;
  if (const auto& named = record_->record.anchor; named.has_value()) {
    const auto read = unnamed_.find(named->name);
    if (read != unnamed_.end() && !CheckNamed(record_->record, read->second)) unnamed_.erase(read);
  }
  if (before_.has_value()) {
    const Status follows = CheckFollows(*before_, *record_);
    if (!follows.ok()) Damaged(follows.error().message());
  }
  phase_ = Phase::kDelta;
  return Ok();
}

Status Verifier::ReadDelta() {
  const auto& delta = record_->record.delta;
  if (!delta.has_value()) {
    replayed_ = nullptr;  // its own anchor says what it is
    phase_ = Phase::kAnchor;
    return Ok();
  }
  if (parts_.size() == delta->size()) {
    if (parts_complete_) {
      Replay();
    } else {
      replayed_ = nullptr;
      if (parts_gone_) ++report_.pruned;
    }
    phase_ = Phase::kAnchor;
    return Ok();
  }
  const PartRef& part = (*delta)[parts_.size()];
  auto bytes = run_.ReadPart(part, kTransferThreads);
  if (!bytes.ok() && MaySucceedLater(bytes.error())) return bytes.error();
  if (bytes.ok()) {
    ++report_.parts;
    report_.bytes += bytes.value().size();
    parts_.push_back(std::move(bytes).value());
    return Ok();
  }
  parts_complete_ = false;
  if (bytes.error().code() == ErrorCode::kNotFound) {
    parts_gone_ = true;
  } else {
    Damaged(bytes.error().message());
  }
  parts_.emplace_back();
  return Ok();
}

void Verifier::Replay() {
  const Record& record = record_->record;
  if (replayed_ == nullptr) return;
  const auto replay = [&]() -> Status {
    WW_TRY(const StateView view, replayed_->View());
    WW_TRY(const auto change, DecodeVersion(record, replayed_->held()->state, parts_, view, kernels_, pool_));
    return replayed_->Apply(change, HeldOf(*record_));
  };
  const Status done = replay();
  if (done.ok()) return;
  Damaged(fmt::format("the delta of version {}: {}", version_, done.error().message()));
  replayed_ = nullptr;
}

Status Verifier::ReadAnchor() {
  if (load_ != nullptr) return LoadPortion();
  if (!anchors_.empty() && anchors_.front().version == version_) return BeginAnchor(anchors_.front());
  EndVersion();
  return Ok();
}

Status Verifier::BeginAnchor(const AnchorName& name) {
  auto anchor = run_.ReadAnchor(name);
  if (!anchor.ok() && MaySucceedLater(anchor.error())) return anchor.error();
  if (!anchor.ok() || layout_ == nullptr) {
    // kNotFound is not damage: the anchor was listed, so gc has removed it since.
    if (!anchor.ok() && anchor.error().code() != ErrorCode::kNotFound) Damaged(anchor.error().message());
    DropAnchor();
    return Ok();
  }
  if (!HasStateOf(record_->record, anchor.value())) {
    // A writer died between its anchor and its record, or another one committed first. No reader takes such an anchor,
    // and gc removes it.
    DropAnchor();
    return Ok();
  }
  if (CheckNamed(record_->record, anchor.value())) unnamed_.emplace(name, anchor.value());
  loaded_ = std::make_unique<MemoryTarget>(kernels_, pool_);
  WW_TRY(load_, AnchorLoad::Begin(run_, std::move(anchor).value(), *record_, layout_, *loaded_, pool_));
  load_is_damaged_ = false;
  return Ok();
}

Status Verifier::LoadPortion() {
  if (load_->IsComplete()) {
    FinishAnchor();
    return Ok();
  }
  WW_TRY(const LoadedPortion portion, load_->LoadPortion());
  report_.bytes += portion.bytes;
  return portion.lost.has_value() ? SkipLostObject(*portion.lost) : Ok();
}

Status Verifier::SkipLostObject(const Error& lost) {
  if (lost.code() == ErrorCode::kNotFound) {
    // gc removes anchor.json first: if that is missing too, nothing is wrong.
    const auto manifest = run_.store().Stat(AnchorManifestKey(load_->name()));
    if (!manifest.ok() && manifest.error().code() != ErrorCode::kNotFound) return manifest.error();
    if (!manifest.ok()) {
      DropAnchor();
      return Ok();
    }
  }
  Damaged(lost.message());
  load_is_damaged_ = true;
  load_->SkipObject();
  return Ok();
}

void Verifier::FinishAnchor() {
  ++report_.anchors;
  if (!load_is_damaged_) {
    const Status committed = load_->Commit();
    load_ = nullptr;
    if (!committed.ok()) {
      Damaged(fmt::format("{}: {}", AnchorFolder(anchors_.front()), committed.error().message()));
    } else if (replayed_ == nullptr) {
      replayed_ = std::move(loaded_);
    } else {
      CheckReplayed();
    }
  }
  DropAnchor();
}

void Verifier::DropAnchor() {
  load_ = nullptr;
  loaded_ = nullptr;
  anchors_.erase(anchors_.begin());
}

bool Verifier::CheckNamed(const Record& record, const KnownAnchor& anchor) {
  if (!Contradicts(record, anchor)) return true;
  Damaged(fmt::format("{}: its hash is not the one in the record of version {}",
                      AnchorManifestKey(anchor.manifest.name), record.version));
  return false;
}

void Verifier::CheckReplayed() {
  const Status check = replayed_->Verify();
  if (check.ok()) return;
  Damaged(fmt::format("version {}, replayed: {}", version_, check.error().message()));
  replayed_ = nullptr;
}

void Verifier::EndVersion() {
  if (!record_.has_value()) {
    replayed_ = nullptr;
    std::erase_if(anchors_, [this](const AnchorName& name) { return name.version == version_; });
  }
  if (version_ == *report_.newest && replayed_ != nullptr) CheckReplayed();
  if (replayed_ != nullptr) ++report_.states;
  if (version_ == *report_.newest) {
    if (replayed_ == nullptr) Damaged(fmt::format("nothing leads to version {}, the newest", version_));
    phase_ = Phase::kEnd;
    return;
  }
  before_ = std::move(record_);
  ++version_;
  phase_ = Phase::kRecord;
}

}  // namespace weightwire
