#include "codec/decode/staged_change.h"

#include <cstring>

#include "base/check.h"
#include "codec/decode/staged_builder.h"
#include "codec/decode/unit_scatter.h"
#include "codec/format/units.h"

namespace weightwire {

namespace {

void Scatter(std::span<const StagedChunk> chunks, int unit_bytes, UnfilledVector<std::uint8_t> StagedChunk::*units,
             std::span<std::uint8_t> target) {
  WithUnit(unit_bytes, [&]<typename Unit>() {
    for (const StagedChunk& chunk : chunks) {
      WriteUnits<Unit>(chunk.offsets, (chunk.*units).data(), target.data() + chunk.first_unit * sizeof(Unit));
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

}  // namespace weightwire
