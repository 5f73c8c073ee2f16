#include "publish/base_copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "codec/digest/state.h"
#include "codec/format/units.h"
#include "tensor/dtype.h"

namespace weightwire {
namespace {

// All bits of a tensor to memory of its size.
Status CopyBits(const StateBits& bits, std::size_t tensor, std::uint8_t* to) {
  const UnitReader* reader = bits.reader(tensor);
  if (reader == nullptr) {
    std::copy(bits.tensors[tensor].begin(), bits.tensors[tensor].end(), to);
    return Ok();
  }
  const int unit_bytes = UnitBytes(bits.layout->tensors()[tensor].dtype);
  return ReadUnits(*reader, 0, bits.layout->byte_size(tensor) / static_cast<std::uint64_t>(unit_bytes), unit_bytes, to);
}

}  // namespace

Status CheckBits(const StateBits& bits) {
  const Layout& layout = *bits.layout;
  if (bits.tensors.size() != layout.size() || (!bits.readers.empty() && bits.readers.size() != layout.size())) {
    return Error(ErrorCode::kInvalidArgument, "cannot publish: the state does not have a tensor for each of its names");
  }
  for (std::size_t i = 0; i < layout.size(); ++i) {
    if (bits.tensors[i].size() == (bits.reader(i) == nullptr ? layout.byte_size(i) : 0)) continue;
    return Error(ErrorCode::kInvalidArgument,
                 "cannot publish: the data of '" + layout.tensors()[i].name + "' is not of the size its shape says");
  }
  return Ok();
}

Sha256Digest BaseCopy::state() const {
  WW_CHECK(shards_ == nullptr);
  return StateDigest(*layout(), digests_);
}

StateView BaseCopy::View() const {
  std::vector<std::span<const std::uint8_t>> tensors;
  for (std::size_t i = 0; i < layout()->size(); ++i) tensors.push_back(storage_->bytes(i));
  return {layout(), std::move(tensors), digests_};
}

void BaseCopy::Invalidate() {
  run_locked_([&] {
    storage_.reset();
    steps_.clear();
    for (const auto& weak : pins_) {
      if (const auto pin = weak.lock(); pin != nullptr) pin->revoked = true;
    }
    pins_.clear();
  });
  digests_.clear();
  shards_.reset();
}

Status BaseCopy::Replace(const StateBits& bits, Version version) {
  WW_CHECK(bits.tensors.size() == bits.layout->size());
  Invalidate();
  WW_TRY(std::unique_ptr<BaseStorage> storage, MakeStorage(location_, bits.layout));
  WW_TRY(const std::vector<std::uint8_t*> to, storage->ForWriting());
  for (std::size_t i = 0; i < to.size(); ++i) WW_RETURN_IF_ERROR(CopyBits(bits, i, to[i]));
  if (bits.unchanged != nullptr) WW_RETURN_IF_ERROR(bits.unchanged());
  // Of the copy, not of the original: what is digested is what the next delta is made from.
  std::vector<std::span<const std::uint8_t>> copies;
  for (std::size_t i = 0; i < to.size(); ++i) copies.push_back(storage->bytes(i));
  digests_ = bits.shards != nullptr ? DigestShards(*bits.shards, copies, kernels_, pool_)
                                    : DigestTensors(copies, kernels_, pool_);
  shards_ = bits.shards;
  version_ = version;
  run_locked_([&] { storage_ = std::move(storage); });
  return Ok();
}

std::optional<std::size_t> BaseCopy::Adopt(std::span<const Candidate> candidates) {
  Invalidate();
  auto opened = OpenStorage(location_);
  if (!opened.ok()) return std::nullopt;
  std::unique_ptr<BaseStorage> storage = std::move(opened).value();
  std::vector<std::span<const std::uint8_t>> tensors;
  for (std::size_t i = 0; i < storage->layout()->size(); ++i) tensors.push_back(storage->bytes(i));
  std::vector<Digest> digests = DigestTensors(tensors, kernels_, pool_);
  const Sha256Digest state = StateDigest(*storage->layout(), digests);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].state != state) continue;
    if (candidates[i].layout->tensors() != storage->layout()->tensors()) continue;
    // The same tensors, with the ties that the version knows of.
    auto reshaped = *candidates[i].layout == *storage->layout()
                        ? Result<std::unique_ptr<BaseStorage>>(std::move(storage))
                        : storage->Reshaped(candidates[i].layout);
    if (!reshaped.ok()) return std::nullopt;
    digests_ = std::move(digests);
    version_ = candidates[i].version;
    run_locked_([&] { storage_ = std::move(reshaped).value(); });
    return i;
  }
  return std::nullopt;
}

BaseCopy::UndoStep BaseCopy::BeginStep(const Layout& after) const {
  UndoStep step;
  step.from = version_ + 1;
  step.before = layout();
  step.digests_before = digests_;
  if (*layout() == after) return step;
  step.reshapes = true;
  for (std::size_t i = 0; i < layout()->size(); ++i) {
    const auto same = after.FindSame(layout()->tensors()[i]);
    step.after.push_back(same);
    if (same.has_value()) continue;
    const auto bytes = storage_->bytes(i);
    step.removed.emplace(i, std::vector<std::uint8_t>(bytes.begin(), bytes.end()));
    step.bytes += bytes.size();
  }
  return step;
}

EncodeRequest BaseCopy::RequestFor(const StateBits& bits, const BaseStorage& target,
                                   const std::vector<std::uint8_t*>& update) const {
  const Layout& after = *bits.layout;
  const Layout& before = *layout();
  EncodeRequest request;
  request.layout_before = shards_ != nullptr ? shards_->whole().get() : &before;
  request.layout_after = shards_ != nullptr ? shards_->whole().get() : &after;
  if (shards_ == nullptr) request.digests_before = digests_;
  request.keep_old = true;
  request.seal = false;
  request.may_move = bits.unchanged != nullptr;
  request.entries.reserve(after.size());
  const bool same_layout = before == after;
  for (std::size_t i = 0; i < after.size(); ++i) {
    EncodeEntry entry;
    entry.tensor = shards_ != nullptr ? shards_->all()[i].tensor : i;
    if (shards_ != nullptr) entry.box = shards_->all()[i].box;
    entry.new_bytes = bits.tensors[i];
    entry.reader = bits.reader(i);
    const auto origin = same_layout ? std::optional(i) : before.FindSame(after.tensors()[i]);
    entry.has_old = origin.has_value();
    if (origin.has_value()) {
      entry.old_bytes = target.bytes(i);
      entry.before = digests_[*origin];
      entry.update = update[i];
    }
    request.entries.push_back(std::move(entry));
  }
  return request;
}

Result<BaseAdvance> BaseCopy::Advance(const StateBits& bits, bool unless_same) {
  WW_CHECK((shards_ == nullptr) == (bits.shards == nullptr) && (shards_ == nullptr || *shards_ == *bits.shards));
  const Layout& after = *bits.layout;
  const std::shared_ptr<const Layout> before = layout();
  const Version version_before = version_;
  UndoStep step = BeginStep(after);
  // Effects come before the lock. A new layout gets storage of its own, which readers see only once it is complete.
  std::unique_ptr<BaseStorage> reshaped;
  if (step.reshapes) {
    WW_TRY(reshaped, storage_->Reshaped(bits.layout));
  }
  BaseStorage& target = reshaped != nullptr ? *reshaped : *storage_;
  WW_TRY(const std::vector<std::uint8_t*> update, target.ForWriting());

  EncodeRequest request = RequestFor(bits, target, update);
  // A new tensor has no old bits to take back, so what can go wrong with it comes first.
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (request.entries[i].has_old) continue;
    if (const Status copied = CopyBits(bits, i, update[i]); !copied.ok()) {
      Invalidate();  // its storage has been reshaped
      return copied.error();
    }
    request.entries[i].new_bytes = target.bytes(i);
    request.entries[i].reader = nullptr;
  }
  std::optional<Result<EncodedDelta>> encoded;
  run_locked_([&] {
    encoded = EncodeDelta(request, kernels_, pool_, scratch_);
    if (!encoded->ok()) return;
    step.replaced = std::move(encoded->value().replaced);
    std::ranges::sort(step.replaced, {},
                      [](const ReplacedUnits& units) { return std::pair(units.entry, units.first_unit); });
    step.kept = std::move(encoded->value().kept);
    for (const UndoBits& kept : step.kept) step.bytes += kept.memory_bytes();
    const bool same = !step.reshapes && step.replaced.empty();
    if (same && unless_same) return;
    if (reshaped != nullptr) storage_ = std::move(reshaped);
    steps_.push_back(std::move(step));
    ++version_;
  });
  if (!encoded->ok()) {
    if (reshaped != nullptr) Invalidate();  // the bits are as they were, but in storage that was to be dropped
    return encoded->error();
  }
  if (const Status unchanged = bits.unchanged != nullptr ? bits.unchanged() : Ok(); !unchanged.ok()) {
    // Whatever was read, only what was kept has been written over.
    static_cast<void>(RollBack(version_before));
    return unchanged.error();
  }
  EncodedDelta& delta = encoded->value();
  BaseAdvance advance;
  for (const EntryReport& report : delta.reports) advance.changed += report.changed;
  advance.same = advance.changed == 0 && *before == after;
  if (!advance.same) advance.delta = std::move(delta.unsealed);
  advance.before = std::exchange(digests_, std::move(delta.digests_after));
  if (shards_ != nullptr) {
    digests_.clear();
    for (const EntryReport& report : delta.reports) digests_.push_back(report.after);
  }
  return advance;
}

Status BaseCopy::Advance(const StagedChange& change) {
  WW_CHECK(change.digests_before() == digests_);
  UndoStep step = BeginStep(change.layout_after());
  std::unique_ptr<BaseStorage> reshaped;
  if (step.reshapes) {
    WW_TRY(reshaped, storage_->Reshaped(std::make_shared<const Layout>(change.layout_after())));
  }
  BaseStorage& target = reshaped != nullptr ? *reshaped : *storage_;
  WW_TRY(const std::vector<std::uint8_t*> update, target.ForWriting());
  run_locked_([&] {
    for (const StagedTensor& tensor : change.tensors()) {
      tensor.Write({update[tensor.tensor()], target.layout()->byte_size(tensor.tensor())});
    }
    if (reshaped != nullptr) storage_ = std::move(reshaped);
    // Published already, so it is not rolled back; and nobody can have pinned what came before.
    steps_.clear();
    ++version_;
  });
  digests_ = change.digests_after();
  return Ok();
}

void BaseCopy::AdvanceSame() {
  run_locked_([&] {
    steps_.push_back(BeginStep(*layout()));
    ++version_;
  });
}

void BaseCopy::PutOldBits(const UndoStep& step, std::size_t tensor_after, int unit_bytes, std::uint64_t offset,
                          std::span<std::uint8_t> out) {
  const auto& replaced = step.replaced;  // by tensor
  const auto begin = std::partition_point(replaced.begin(), replaced.end(),
                                          [=](const ReplacedUnits& units) { return units.entry < tensor_after; });
  const auto end_of_tensor = std::partition_point(
      begin, replaced.end(), [=](const ReplacedUnits& units) { return units.entry == tensor_after; });
  const std::span<const ReplacedUnits> all(begin, end_of_tensor);
  const auto width = static_cast<std::uint64_t>(unit_bytes);
  const std::uint64_t end = offset + out.size();
  // The last stretch that begins at or before the offset may reach into the range.
  auto stretch = std::ranges::upper_bound(all, offset / width, {}, &ReplacedUnits::first_unit);
  if (stretch != all.begin()) --stretch;
  for (; stretch != all.end() && stretch->first_unit * width < end; ++stretch) {
    const std::uint64_t skip = offset / width > stretch->first_unit ? offset / width - stretch->first_unit : 0;
    auto at = std::ranges::lower_bound(stretch->positions, skip, std::ranges::less{});
    for (; at != stretch->positions.end(); ++at) {
      const std::uint64_t byte = (stretch->first_unit + *at) * width;
      if (byte >= end) break;
      // A unit may lie across an end of the range.
      const std::uint64_t from = std::max(byte, offset);
      const std::uint64_t to = std::min(byte + width, end);
      const auto index = static_cast<std::uint64_t>(at - stretch->positions.begin());
      std::memcpy(out.data() + (from - offset), stretch->old_units.data() + index * width + (from - byte), to - from);
    }
  }
}

Status BaseCopy::ApplyUndoStep() {
  const UndoStep& step = steps_.back();
  std::unique_ptr<BaseStorage> reshaped;
  if (step.reshapes) {
    WW_TRY(reshaped, storage_->Reshaped(step.before));
  }
  BaseStorage& target = reshaped != nullptr ? *reshaped : *storage_;
  WW_TRY(const std::vector<std::uint8_t*> update, target.ForWriting());
  run_locked_([&] {
    for (std::size_t i = 0; i < step.before->size(); ++i) {
      const std::span<std::uint8_t> bytes(update[i], step.before->byte_size(i));
      const std::optional<std::size_t> after = step.reshapes ? step.after[i] : std::optional(i);
      if (after.has_value()) {
        PutOldBits(step, *after, UnitBytes(step.before->tensors()[i].dtype), 0, bytes);
      } else {
        std::ranges::copy(step.removed.at(i), bytes.begin());
      }
    }
    if (reshaped != nullptr) storage_ = std::move(reshaped);
    digests_ = step.digests_before;
    version_ = step.from - 1;
    steps_.pop_back();
  });
  return Ok();
}

Status BaseCopy::RollBack(Version to) {
  WW_CHECK(to <= version_);
  if (version_ - to > steps_.size()) {
    Invalidate();
    return Error(ErrorCode::kNotFound, "the bits that the base copy had before are not kept any more");
  }
  while (version_ > to) {
    if (const Status taken = ApplyUndoStep(); !taken.ok()) {
      Invalidate();
      return taken.error().In("the base copy could not be rolled back");
    }
  }
  return Ok();
}

std::uint64_t BaseCopy::StepLimit() const {
  constexpr std::uint64_t kLeast = std::uint64_t{64} << 20;
  return std::max(kLeast, layout()->total_bytes() / 4);
}

void BaseCopy::DiscardUndo(Version up_to, std::uint64_t max_step_bytes) {
  run_locked_([&] {
    DropUndo(up_to);
    while (step_bytes() > max_step_bytes) {
      std::shared_ptr<const BasePin> oldest;
      for (const auto& weak : pins_) {
        const auto pin = weak.lock();
        if (pin == nullptr || !pin->revocable || pin->revoked || pin->version >= up_to) continue;
        if (oldest == nullptr || pin->version < oldest->version) oldest = pin;
      }
      if (oldest == nullptr) return;
      oldest->revoked = true;
      DropUndo(up_to);
    }
  });
}

void BaseCopy::DropUndo(Version safe) {
  std::erase_if(pins_, [](const std::weak_ptr<const BasePin>& pin) { return pin.expired(); });
  for (const auto& weak : pins_) {
    // A step leads back to its version minus one: a pinned version needs all steps after it.
    if (const auto pin = weak.lock(); pin != nullptr && !pin->revoked) safe = std::min(safe, pin->version);
  }
  while (!steps_.empty() && steps_.front().from <= safe) {
    scratch_.Reuse(std::move(steps_.front().kept));
    steps_.pop_front();
  }
}

std::uint64_t BaseCopy::step_bytes() const {
  std::uint64_t bytes = 0;
  for (const UndoStep& step : steps_) bytes += step.bytes;
  return bytes;
}

std::shared_ptr<const BasePin> BaseCopy::Pin(bool revocable) {
  auto pin = std::make_shared<const BasePin>(BasePin{version_, layout(), revocable});
  run_locked_([&] { pins_.emplace_back(pin); });
  return pin;
}

Status BaseCopy::ReadAt(const BasePin& pin, std::size_t tensor, std::uint64_t offset,
                        std::span<std::uint8_t> out) const {
  Status status;
  run_locked_([&] {
    if (pin.revoked) {
      status = Error(ErrorCode::kMismatch, "the base copy has moved on too far from the version that was read from it");
      return;
    }
    const int unit_bytes = UnitBytes(pin.layout->tensors()[tensor].dtype);
    // Where the tensor went, step by step, until it was removed or is in the base as it is now.
    struct Hop {
      const UndoStep* step;
      std::size_t tensor_after;
    };
    std::vector<Hop> hops;
    std::size_t now = tensor;
    std::span<const std::uint8_t> bytes;
    bool found = false;
    for (const UndoStep& step : steps_) {
      if (step.from <= pin.version) continue;
      if (step.reshapes && !step.after[now].has_value()) {
        bytes = step.removed.at(now);
        found = true;
        break;
      }
      if (step.reshapes) now = *step.after[now];
      hops.push_back({&step, now});
    }
    if (!found) bytes = storage_->bytes(now);
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
    std::for_each(hops.rbegin(), hops.rend(),
                  [&](const Hop& hop) { PutOldBits(*hop.step, hop.tensor_after, unit_bytes, offset, out); });
  });
  return status;
}

}  // namespace weightwire
