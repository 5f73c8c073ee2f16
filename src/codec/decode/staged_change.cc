#include "codec/decode/staged_change.h"

#include <cstring>

#include "base/check.h"
#include "codec/decode/staged_builder.h"
#include "codec/digest/state.h"
#include "codec/format/units.h"

namespace weightwire {

namespace {

void Scatter(std::span<const StagedChunk> chunks, int unit_bytes, UnfilledVector<std::uint8_t> StagedChunk::*units,
             std::span<std::uint8_t> target) {
  WithUnit(unit_bytes, [&]<typename Unit>() {
    for (const StagedChunk& chunk : chunks) {
      std::uint8_t* to = target.data() + chunk.first_unit * sizeof(Unit);
      const std::uint8_t* from = (chunk.*units).data();
      const std::size_t count = chunk.offsets.size();
      const std::uint32_t* offsets = chunk.offsets.data();
      // The target is touched here and there only: ask for the cache lines of a hundred units or so, then write the
      // hundred before. To ask for one and write one in turn is slower, and so is asking for lines to write, which
      // waits where asking for them into the second level does not.
      constexpr std::size_t kAskedAtOnce = 128;
      for (std::size_t asked = 0; asked < count + kAskedAtOnce; asked += kAskedAtOnce) {
        for (std::size_t k = asked; k < std::min(asked + kAskedAtOnce, count); ++k) {
          __builtin_prefetch(to + std::size_t{offsets[k]} * sizeof(Unit), 0, 2);
        }
        if (asked == 0) continue;
        for (std::size_t k = asked - kAskedAtOnce; k < std::min(asked, count); ++k) {
          StoreUnit<Unit>(to, offsets[k], LoadUnit<Unit>(from, k));
        }
      }
    }
  });
}

struct Change {
  std::uint64_t unit;
  const std::uint8_t* new_unit;
  const std::uint8_t* old_unit;
};

// Walks the changes of a list of chunks.
struct Cursor {
  std::span<const StagedChunk> chunks;
  std::size_t width;
  std::size_t k = 0;

  [[nodiscard]] bool done() const { return chunks.empty(); }
  [[nodiscard]] Change operator*() const {
    const StagedChunk& chunk = chunks.front();
    return {chunk.first_unit + chunk.offsets[k], chunk.new_units.data() + k * width,
            chunk.old_units.data() + k * width};
  }
  void operator++() {
    if (++k == chunks.front().offsets.size()) {
      chunks = chunks.subspan(1);
      k = 0;
    }
  }
};

constexpr std::uint64_t kMaxOffset = 0xffffffff;

std::uint64_t LastUnit(const StagedChunk& chunk) { return chunk.first_unit + chunk.offsets.back(); }

// One chunk, or a few where the stretch is too long for one, of chunks that interleave.
std::vector<StagedChunk> Interleaved(std::span<const StagedChunk> chunks, std::size_t width) {
  std::size_t count = 0;
  std::vector<Cursor> cursors;  // a heap: the one with the smallest unit in front
  for (const StagedChunk& chunk : chunks) {
    count += chunk.offsets.size();
    cursors.push_back({{&chunk, 1}, width});
  }
  const auto later = [](const Cursor& a, const Cursor& b) { return (*a).unit > (*b).unit; };
  std::make_heap(cursors.begin(), cursors.end(), later);
  std::vector<StagedChunk> result;
  std::size_t written = 0;  // to the last chunk
  const auto finish = [&] {
    if (result.empty()) return;
    result.back().offsets.resize(written);
    result.back().new_units.resize(written * width);
    result.back().old_units.resize(written * width);
    count -= written;
    written = 0;
  };
  while (!cursors.empty()) {
    std::pop_heap(cursors.begin(), cursors.end(), later);
    const Change change = *cursors.back();
    if (result.empty() || change.unit - result.back().first_unit > kMaxOffset) {
      finish();
      StagedChunk& chunk = result.emplace_back();
      chunk.first_unit = change.unit;
      chunk.offsets.resize(count);
      chunk.new_units.resize(count * width);
      chunk.old_units.resize(count * width);
    }
    StagedChunk& chunk = result.back();
    chunk.offsets[written] = static_cast<std::uint32_t>(change.unit - chunk.first_unit);
    std::memcpy(chunk.new_units.data() + written * width, change.new_unit, width);
    std::memcpy(chunk.old_units.data() + written * width, change.old_unit, width);
    ++written;
    ++cursors.back();
    if (cursors.back().done()) {
      cursors.pop_back();
    } else {
      std::push_heap(cursors.begin(), cursors.end(), later);
    }
  }
  finish();
  return result;
}

// Two changes of one tensor, one after the other, as one.
std::vector<StagedChunk> Merge(std::span<const StagedChunk> first, std::span<const StagedChunk> second,
                               std::size_t width) {
  std::vector<StagedChunk> chunks;
  const auto append = [&](const Change& change) {
    if (std::memcmp(change.new_unit, change.old_unit, width) == 0) return;  // there and back again
    if (chunks.empty() || change.unit - chunks.back().first_unit > kMaxOffset)
      chunks.push_back({change.unit, {}, {}, {}});
    StagedChunk& chunk = chunks.back();
    chunk.offsets.push_back(static_cast<std::uint32_t>(change.unit - chunk.first_unit));
    chunk.new_units.insert(chunk.new_units.end(), change.new_unit, change.new_unit + width);
    chunk.old_units.insert(chunk.old_units.end(), change.old_unit, change.old_unit + width);
  };
  Cursor a{first, width};
  Cursor b{second, width};
  while (!a.done() || !b.done()) {
    if (b.done() || (!a.done() && (*a).unit < (*b).unit)) {
      append(*a);
      ++a;
    } else if (a.done() || (*b).unit < (*a).unit) {
      append(*b);
      ++b;
    } else {
      append({(*a).unit, (*b).new_unit, (*a).old_unit});
      ++a;
      ++b;
    }
  }
  return chunks;
}

}  // namespace

std::vector<StagedChunk> InOrder(std::vector<StagedChunk> chunks, std::size_t unit_bytes) {
  std::sort(chunks.begin(), chunks.end(),
            [](const StagedChunk& a, const StagedChunk& b) { return a.first_unit < b.first_unit; });
  std::vector<StagedChunk> result;
  for (std::size_t begin = 0; begin < chunks.size();) {
    std::uint64_t last = LastUnit(chunks[begin]);
    std::size_t end = begin + 1;
    for (; end < chunks.size() && chunks[end].first_unit <= last; ++end) last = std::max(last, LastUnit(chunks[end]));
    if (end == begin + 1) {
      result.push_back(std::move(chunks[begin]));
    } else {
      for (StagedChunk& chunk : Interleaved(std::span(chunks).subspan(begin, end - begin), unit_bytes)) {
        result.push_back(std::move(chunk));
      }
      for (std::size_t i = begin; i < end; ++i) chunks[i] = {};
    }
    begin = end;
  }
  return result;
}

void StagedTensor::Write(std::span<std::uint8_t> tensor_bytes) const {
  if (is_new_) {
    WW_CHECK(tensor_bytes.size() == new_bytes_.size());
    std::copy(new_bytes_.begin(), new_bytes_.end(), tensor_bytes.begin());
    return;
  }
  Scatter(chunks_, unit_bytes_, &StagedChunk::new_units, tensor_bytes);
}

void StagedTensor::Undo(std::span<std::uint8_t> tensor_bytes) const {
  WW_CHECK(!is_new_);
  Scatter(chunks_, unit_bytes_, &StagedChunk::old_units, tensor_bytes);
}

Sha256Digest StagedChange::state_before() const { return StateDigest(*layout_before_, digests_before_); }
Sha256Digest StagedChange::state_after() const { return StateDigest(*layout_after_, digests_after_); }

const StagedTensor* StagedChange::Find(std::size_t tensor) const {
  const auto at =
      std::lower_bound(tensors_.begin(), tensors_.end(), tensor,
                       [](const StagedTensor& staged, std::size_t wanted) { return staged.tensor() < wanted; });
  return at != tensors_.end() && at->tensor() == tensor ? &*at : nullptr;
}

std::optional<std::size_t> StagedChange::Origin(std::size_t tensor) const {
  if (layout_before_ == layout_after_) return tensor;
  return layout_before_->FindSame(layout_after_->tensors()[tensor]);
}

StagedChange StagedChange::Nothing(std::shared_ptr<const Layout> layout, std::vector<Digest> digests) {
  std::shared_ptr<const Layout> same = layout;
  StagedChangeBuilder builder(std::move(layout), std::move(same), digests);
  return builder.Finish(std::move(digests));
}

std::shared_ptr<const StagedChange> StagedChange::Fold(std::span<const std::shared_ptr<const StagedChange>> changes) {
  WW_CHECK(!changes.empty());
  if (changes.size() == 1) return changes.front();
  const StagedChange& last = *changes.back();
  StagedChangeBuilder builder(changes.front()->layout_before_, last.layout_after_, changes.front()->digests_before_);
  for (std::size_t tensor = 0; tensor < last.layout_after_->size(); ++tensor) {
    // Back through the changes to where the tensor begins, then forward again.
    std::vector<const StagedTensor*> history;
    std::size_t index = tensor;
    for (std::size_t k = changes.size(); k-- > 0;) {
      const StagedTensor* staged = changes[k]->Find(index);
      if (staged != nullptr) history.push_back(staged);
      if (staged != nullptr && staged->is_new()) break;
      const std::optional<std::size_t> origin = changes[k]->Origin(index);
      WW_CHECK(origin.has_value());
      index = *origin;
    }
    if (history.empty()) continue;
    const int unit_bytes = history.front()->unit_bytes();
    if (history.back()->is_new()) {
      const auto from = history.back()->new_bytes();
      std::vector<std::uint8_t> bytes(from.begin(), from.end());
      for (std::size_t k = history.size() - 1; k-- > 0;) history[k]->Write(bytes);
      builder.AddNew(tensor, unit_bytes, std::move(bytes));
      continue;
    }
    std::vector<StagedChunk> merged(history.back()->chunks().begin(), history.back()->chunks().end());
    for (std::size_t k = history.size() - 1; k-- > 0;) {
      merged = Merge(merged, history[k]->chunks(), static_cast<std::size_t>(unit_bytes));
    }
    if (!merged.empty()) builder.AddChanged(tensor, unit_bytes, std::move(merged));
  }
  return std::make_shared<const StagedChange>(builder.Finish(last.digests_after_));
}

}  // namespace weightwire
