#include "codec/decode/write_change.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "codec/decode/unit_scatter.h"

namespace weightwire {
namespace {

// Changed units, or units' worth of the bytes of new tensors, that a thread takes at once.
constexpr std::size_t kBatchUnits = 1 << 14;
constexpr std::size_t kUnitsPerNewByte =
    64;  // copying this many bytes in order takes about as long as writing one scattered unit

// Changes of a chunk, or bytes of a new tensor.
struct Part {
  const StagedTensor* tensor = nullptr;
  const StagedChunk* chunk = nullptr;  // none for bytes
  std::size_t begin = 0;
  std::size_t end = 0;
};

// Parts in batches of about the same size.
class Batches {
 public:
  Batches(const StagedChange& change, bool with_new) {
    for (const StagedTensor& tensor : change.tensors()) {
      if (tensor.is_new()) {
        if (with_new) Add({&tensor, nullptr, 0, tensor.new_bytes().size()}, kUnitsPerNewByte);
        continue;
      }
      for (const StagedChunk& chunk : tensor.chunks()) Add({&tensor, &chunk, 0, chunk.offsets.size()}, 1);
    }
    ends_.push_back(parts_.size());
  }

  // Calls function(part) for all parts, by many threads.
  template <typename Function>
  void ForEach(ThreadPool& pool, const Function& function) const {
    pool.ParallelFor(ends_.size(), [&](std::size_t i, std::size_t) {
      for (std::size_t p = i == 0 ? 0 : ends_[i - 1]; p < ends_[i]; ++p) function(parts_[p]);
    });
  }

 private:
  void Add(Part part, std::size_t per_unit) {
    const std::size_t end = part.end;
    for (part.end = 0; part.end < end;) {
      part.begin = part.end;
      part.end = std::min(end, part.begin + (kBatchUnits - size_) * per_unit);
      parts_.push_back(part);
      size_ += (part.end - part.begin + per_unit - 1) / per_unit;
      if (size_ < kBatchUnits) continue;
      ends_.push_back(parts_.size());
      size_ = 0;
    }
  }

  std::vector<Part> parts_;
  std::vector<std::size_t> ends_;  // of batches
  std::size_t size_ = 0;           // of the one that is being filled
};

// Calls function.operator()<Unit>(offsets, bits, units) for each place, with the old or the new bits.
template <typename Function>
void WithPart(const Part& part, UnfilledVector<std::uint8_t> StagedChunk::*bits, const TensorPlaces& places,
              const Function& function) {
  const std::span<const std::uint32_t> offsets =
      std::span(part.chunk->offsets).subspan(part.begin, part.end - part.begin);
  WithUnit(part.tensor->unit_bytes(), [&]<typename Unit>() {
    const std::uint8_t* const from = (part.chunk->*bits).data() + part.begin * sizeof(Unit);
    for (const std::span<std::uint8_t> place : places[part.tensor->tensor()]) {
      function.template operator()<Unit>(offsets, from, place.data() + part.chunk->first_unit * sizeof(Unit));
    }
  });
}

void Write(const Part& part, UnfilledVector<std::uint8_t> StagedChunk::*bits, const TensorPlaces& places) {
  if (part.chunk == nullptr) {
    const auto bytes = part.tensor->new_bytes().subspan(part.begin, part.end - part.begin);
    for (const std::span<std::uint8_t> place : places[part.tensor->tensor()]) {
      WW_CHECK(place.size() == part.tensor->new_bytes().size());
      std::copy(bytes.begin(), bytes.end(), place.begin() + static_cast<std::ptrdiff_t>(part.begin));
    }
    return;
  }
  WithPart(part, bits, places,
           []<typename Unit>(std::span<const std::uint32_t> offsets, const std::uint8_t* from, std::uint8_t* units) {
             WriteUnits<Unit>(offsets, from, units);
           });
}

}  // namespace

std::optional<std::size_t> FindOtherBits(const StagedChange& change, const TensorPlaces& places, ThreadPool& pool,
                                         bool taken_back) {
  constexpr std::size_t kNone = ~std::size_t{0};
  std::atomic<std::size_t> other = kNone;
  Batches(change, false).ForEach(pool, [&](const Part& part) {
    if (other.load(std::memory_order_relaxed) != kNone) return;
    WithPart(part, taken_back ? &StagedChunk::new_units : &StagedChunk::old_units, places,
             [&]<typename Unit>(std::span<const std::uint32_t> offsets, const std::uint8_t* bits, std::uint8_t* units) {
               if (!HaveBits<Unit>(offsets, bits, units)) other = part.tensor->tensor();
             });
  });
  const std::size_t tensor = other.load();
  return tensor == kNone ? std::nullopt : std::optional(tensor);
}

void WriteChange(const StagedChange& change, const TensorPlaces& places, ThreadPool& pool) {
  Batches(change, true).ForEach(pool, [&](const Part& part) { Write(part, &StagedChunk::new_units, places); });
}

void TakeBackChange(const StagedChange& change, const TensorPlaces& places, ThreadPool& pool) {
  Batches(change, false).ForEach(pool, [&](const Part& part) { Write(part, &StagedChunk::old_units, places); });
}

}  // namespace weightwire
