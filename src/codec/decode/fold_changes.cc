// StagedChange::Fold: several changes as one.
//
// A tensor is folded in stretches, by many threads. In a stretch, the changes of all versions are written into a block
// of scratch memory that fits the nearest cache, the newest last, and the old bits of the oldest. A bitmap marks the
// changed units, and a scan of the bitmap gives their order, so nothing is compared or merged.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/memory_pool.h"
#include "codec/decode/chunk_writer.h"
#include "codec/decode/staged_builder.h"
#include "codec/decode/staged_change.h"
#include "codec/format/units.h"

namespace weightwire {
namespace {

// Changed units that a job reads, about, and the units that it covers at most: so that offsets fit.
constexpr std::uint64_t kJobChanges = 1 << 17;
constexpr std::uint64_t kMostJobUnits = std::uint64_t{1} << 31;
// Size of a block's new bits, and of its old bits.
constexpr std::size_t kBlockBytes = 1 << 14;

// The changes of one tensor of the last layout, newest first.
struct History {
  std::size_t tensor = 0;
  std::vector<const StagedTensor*> changes;

  [[nodiscard]] const StagedTensor& oldest() const { return *changes.back(); }
  [[nodiscard]] bool is_new() const { return oldest().is_new(); }
  [[nodiscard]] std::uint64_t changed() const {
    std::uint64_t sum = 0;
    for (const StagedTensor* change : changes) sum += change->is_new() ? 0 : change->changed();
    return sum;
  }
};

// The histories of all tensors that change, by tensor.
std::vector<History> HistoriesOf(std::span<const std::shared_ptr<const StagedChange>> changes) {
  const Layout& last = changes.back()->layout_after();
  const bool is_same = std::all_of(changes.begin(), changes.end(), [&](const auto& change) {
    return &change->layout_before() == &last && &change->layout_after() == &last;
  });
  std::vector<History> histories;
  std::vector<std::size_t> next(changes.size(), 0);  // in a change's tensors, where all layouts are one
  for (std::size_t tensor = 0; tensor < last.size(); ++tensor) {
    History history{tensor, {}};
    // Back through the changes to where the tensor begins.
    std::size_t index = tensor;
    bool begins_later = false;
    for (std::size_t k = changes.size(); k-- > 0;) {
      const StagedTensor* staged = nullptr;
      if (is_same) {
        const auto tensors = changes[k]->tensors();
        if (next[k] < tensors.size() && tensors[next[k]].tensor() == tensor) staged = &tensors[next[k]++];
      } else {
        staged = changes[k]->Find(index);
      }
      if (staged != nullptr && !begins_later) history.changes.push_back(staged);
      begins_later = begins_later || (staged != nullptr && staged->is_new());
      if (is_same) continue;
      if (begins_later) break;
      const std::optional<std::size_t> origin = changes[k]->Origin(index);
      WW_CHECK(origin.has_value());
      index = *origin;
    }
    if (!history.changes.empty()) histories.push_back(std::move(history));
  }
  return histories;
}

// A stretch of a tensor.
struct FoldJob {
  std::size_t history = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::vector<StagedChunk> chunks;  // the result
};

// Returns the unit of change number `changes` of a tensor.
std::uint64_t UnitAt(const StagedTensor& staged, std::uint64_t changes) {
  for (const StagedChunk& chunk : staged.chunks()) {
    if (changes < chunk.offsets.size()) return chunk.first_unit + chunk.offsets[changes];
    changes -= chunk.offsets.size();
  }
  WW_CHECK(false);
}

// Cuts a tensor into stretches with about as many changes each.
void AddJobs(const std::vector<History>& histories, std::size_t at, std::uint64_t units, std::vector<FoldJob>& jobs) {
  const History& history = histories[at];
  const StagedTensor& largest =
      **std::max_element(history.changes.begin(), history.changes.end(),
                         [](const StagedTensor* a, const StagedTensor* b) { return a->changed() < b->changed(); });
  const std::uint64_t count = std::clamp<std::uint64_t>(history.changed() / kJobChanges, 1, largest.changed());
  std::vector<std::uint64_t> ends;
  for (std::uint64_t i = 1; i < count; ++i) ends.push_back(UnitAt(largest, largest.changed() / count * i));
  ends.push_back(units);
  std::uint64_t begin = 0;
  for (const std::uint64_t end : ends) {
    while (begin < end) {
      const std::uint64_t to = std::min(end, begin + kMostJobUnits);
      jobs.push_back({at, begin, to, {}});
      begin = to;
    }
  }
}

// The changes of a stretch that are not folded yet, oldest version first.
struct Unfolded {
  std::vector<ChangeSlice> slices;
  std::size_t slice = 0;
  std::size_t k = 0;  // in the slice
  // The same where the block begins.
  std::size_t block_slice = 0;
  std::size_t block_k = 0;

  [[nodiscard]] bool done() const { return slice == slices.size(); }
  [[nodiscard]] std::uint64_t next_unit() const { return slices[slice].first_unit + slices[slice].offsets[k]; }
};

// Scratch memory of one thread.
struct FoldScratch {
  std::vector<Unfolded> versions;
  std::vector<std::uint64_t> is_changed;  // a bit for each unit of the block
  UnfilledVector<std::uint8_t> new_block;
  UnfilledVector<std::uint8_t> old_block;
  UnfilledVector<std::uint32_t> offsets;
  UnfilledVector<std::uint8_t> new_units;
  UnfilledVector<std::uint8_t> old_units;
};

template <typename Unit>
class StretchFolder {
 public:
  StretchFolder(FoldScratch& scratch, const std::shared_ptr<MemoryPool>& pool) : scratch_(scratch), pool_(pool) {
    scratch.is_changed.resize(kUnits / 64);
    scratch.new_block.resize(kBlockBytes);
    scratch.old_block.resize(kBlockBytes);
  }

  void Fold(const History& history, FoldJob& job) {
    std::uint64_t most = 0;
    std::vector<Unfolded>& versions = scratch_.versions;
    versions.resize(history.changes.size());
    for (std::size_t i = 0; i < versions.size(); ++i) {
      Unfolded& version = versions[i];
      version.slices.clear();
      version.slice = version.k = 0;
      history.changes[versions.size() - 1 - i]->ForEachSlice(job.begin, job.end, [&](const ChangeSlice& slice) {
        version.slices.push_back(slice);
        most += slice.offsets.size();
      });
    }
    std::erase_if(versions, [](const Unfolded& version) { return version.slices.empty(); });
    if (versions.size() == 1) return Copy(versions.front(), job);
    scratch_.offsets.resize(most);
    scratch_.new_units.resize(most * sizeof(Unit));
    scratch_.old_units.resize(most * sizeof(Unit));
    std::size_t count = 0;
    while (!versions.empty()) {
      std::uint64_t first = ~std::uint64_t{0};
      for (const Unfolded& version : versions) first = std::min(first, version.next_unit());
      Write(first);
      count = Collect(first - job.begin, count);
      std::erase_if(versions, [](const Unfolded& version) { return version.done(); });
    }
    if (count == 0) return;
    StagedChunk chunk = EmptyChunk(pool_);
    chunk.first_unit = job.begin;
    chunk.offsets.assign(scratch_.offsets.begin(), scratch_.offsets.begin() + static_cast<std::ptrdiff_t>(count));
    const auto bytes = static_cast<std::ptrdiff_t>(count * sizeof(Unit));
    chunk.new_units.assign(scratch_.new_units.begin(), scratch_.new_units.begin() + bytes);
    chunk.old_units.assign(scratch_.old_units.begin(), scratch_.old_units.begin() + bytes);
    job.chunks.push_back(std::move(chunk));
  }

 private:
  static constexpr std::size_t kUnits = kBlockBytes / sizeof(Unit);

  void Copy(const Unfolded& version, FoldJob& job) {
    for (const ChangeSlice& slice : version.slices) {
      StagedChunk chunk = EmptyChunk(pool_);
      const std::size_t bytes = slice.offsets.size() * sizeof(Unit);
      chunk.first_unit = slice.first_unit;
      chunk.offsets.assign(slice.offsets.begin(), slice.offsets.end());
      chunk.new_units.assign(slice.new_units, slice.new_units + bytes);
      chunk.old_units.assign(slice.old_units, slice.old_units + bytes);
      job.chunks.push_back(std::move(chunk));
    }
  }

  // The changes of the block that begins at unit `first`: their new bits, then, from the newest version back, their old
  // ones.
  void Write(std::uint64_t first) {
    for (Unfolded& version : scratch_.versions) {
      version.block_slice = version.slice;
      version.block_k = version.k;
      for (; !version.done() && version.next_unit() < first + kUnits; ++version.slice, version.k = 0) {
        const ChangeSlice& slice = version.slices[version.slice];
        std::uint64_t* const is_changed = scratch_.is_changed.data();
        std::uint8_t* const to = scratch_.new_block.data();
        const auto shift = static_cast<std::uint32_t>(slice.first_unit - first);  // modulo 2^32
        const std::size_t end = EndOf(slice, version.k, first + kUnits);
        for (std::size_t k = version.k; k < end; ++k) {
          const std::uint32_t at = slice.offsets[k] + shift;
          is_changed[at / 64] |= std::uint64_t{1} << (at % 64);
          StoreUnit<Unit>(to, at, LoadUnit<Unit>(slice.new_units, k));
        }
        version.k = end;
        if (end < slice.offsets.size()) break;
      }
    }
    for (std::size_t i = scratch_.versions.size(); i-- > 0;) {
      const Unfolded& version = scratch_.versions[i];
      for (std::size_t s = version.block_slice; s < version.slices.size() && s <= version.slice; ++s) {
        const ChangeSlice& slice = version.slices[s];
        std::uint8_t* const to = scratch_.old_block.data();
        const auto shift = static_cast<std::uint32_t>(slice.first_unit - first);
        const std::size_t end = s == version.slice ? version.k : slice.offsets.size();
        for (std::size_t k = s == version.block_slice ? version.block_k : 0; k < end; ++k) {
          StoreUnit<Unit>(to, slice.offsets[k] + shift, LoadUnit<Unit>(slice.old_units, k));
        }
      }
    }
  }

  // The first change of a slice from k on that is not before a unit.
  static std::size_t EndOf(const ChangeSlice& slice, std::size_t k, std::uint64_t unit) {
    if (unit - slice.first_unit > slice.offsets.back()) return slice.offsets.size();
    const auto offset = static_cast<std::uint32_t>(unit - slice.first_unit);
    // Search near k first, because a block has few of a slice's changes.
    std::size_t step = 64;
    while (k + step < slice.offsets.size() && slice.offsets[k + step] < offset) {
      k += step;
      step *= 2;
    }
    const auto begin = slice.offsets.begin() + static_cast<std::ptrdiff_t>(k);
    const auto end = slice.offsets.begin() + static_cast<std::ptrdiff_t>(std::min(k + step, slice.offsets.size()));
    return static_cast<std::size_t>(std::lower_bound(begin, end, offset) - slice.offsets.begin());
  }

  // Moves the block's changes to the results, after `count` others, and leaves out those that lead back to where they
  // began. `offset` is the block's. Returns how many results there are then.
  std::size_t Collect(std::uint64_t offset, std::size_t count) {
    std::uint64_t* const is_changed = scratch_.is_changed.data();
    const std::uint8_t* const new_block = scratch_.new_block.data();
    const std::uint8_t* const old_block = scratch_.old_block.data();
    std::uint32_t* const offsets = scratch_.offsets.data();
    std::uint8_t* const new_units = scratch_.new_units.data();
    std::uint8_t* const old_units = scratch_.old_units.data();
    for (std::size_t word = 0; word < kUnits / 64; ++word) {
      if (is_changed[word] == 0) continue;
      for (std::uint64_t bits = std::exchange(is_changed[word], 0); bits != 0; bits &= bits - 1) {
        const std::size_t at = 64 * word + static_cast<std::size_t>(std::countr_zero(bits));
        const Unit new_unit = LoadUnit<Unit>(new_block, at);
        const Unit old_unit = LoadUnit<Unit>(old_block, at);
        offsets[count] = static_cast<std::uint32_t>(offset + at);
        StoreUnit<Unit>(new_units, count, new_unit);
        StoreUnit<Unit>(old_units, count, old_unit);
        count += new_unit != old_unit ? 1 : 0;
      }
    }
    return count;
  }

  FoldScratch& scratch_;
  const std::shared_ptr<MemoryPool>& pool_;
};

// Reserves memory for all results at once. Its unused end is never touched.
std::shared_ptr<MemoryPool> ReserveMemory(const std::vector<History>& histories, const std::vector<FoldJob>& jobs,
                                          const Layout& layout) {
  std::size_t bytes = jobs.size() * 3 * MemoryPool::Rounded(1);
  for (const History& history : histories) {
    if (history.is_new()) continue;
    const std::uint64_t most = std::min(history.changed(), layout.unit_count(history.tensor));
    bytes += most * (sizeof(std::uint32_t) + 2 * static_cast<std::size_t>(history.oldest().unit_bytes()));
    // Copied chunks are as many as there were.
    if (history.changes.size() == 1) bytes += history.oldest().chunks().size() * 3 * MemoryPool::Rounded(1);
  }
  return MemoryPool::Make(bytes);
}

}  // namespace

std::shared_ptr<const StagedChange> StagedChange::Fold(std::span<const std::shared_ptr<const StagedChange>> changes,
                                                       ThreadPool& pool) {
  WW_CHECK(!changes.empty());
  if (changes.size() == 1) return changes.front();
  const StagedChange& last = *changes.back();
  const std::vector<History> histories = HistoriesOf(changes);
  std::vector<FoldJob> jobs;
  for (std::size_t i = 0; i < histories.size(); ++i) {
    const std::uint64_t units = last.layout_after_->unit_count(histories[i].tensor);
    if (histories[i].is_new()) {
      jobs.push_back({i, 0, units, {}});
    } else {
      AddJobs(histories, i, units, jobs);
    }
  }
  std::vector<UnfilledVector<std::uint8_t>> new_bytes(histories.size());
  const std::shared_ptr<MemoryPool> memory = ReserveMemory(histories, jobs, *last.layout_after_);
  std::vector<FoldScratch> scratch(pool.threads());
  pool.ParallelFor(jobs.size(), [&](std::size_t i, std::size_t worker) {
    const History& history = histories[jobs[i].history];
    if (history.is_new()) {
      UnfilledVector<std::uint8_t>& bytes = new_bytes[jobs[i].history];
      bytes.assign(history.oldest().new_bytes().begin(), history.oldest().new_bytes().end());
      for (std::size_t k = history.changes.size() - 1; k-- > 0;) history.changes[k]->Write(bytes);
      return;
    }
    WithUnit(history.oldest().unit_bytes(),
             [&]<typename Unit>() { StretchFolder<Unit>(scratch[worker], memory).Fold(history, jobs[i]); });
  });
  StagedChangeBuilder builder(changes.front()->layout_before_, last.layout_after_, changes.front()->digests_before_);
  std::size_t job = 0;
  for (std::size_t i = 0; i < histories.size(); ++i) {
    std::vector<StagedChunk> chunks;
    for (; job < jobs.size() && jobs[job].history == i; ++job) {
      for (StagedChunk& chunk : jobs[job].chunks) chunks.push_back(std::move(chunk));
    }
    const int unit_bytes = histories[i].oldest().unit_bytes();
    if (histories[i].is_new()) {
      builder.AddNew(histories[i].tensor, unit_bytes, std::move(new_bytes[i]));
    } else if (!chunks.empty()) {
      builder.AddChanged(histories[i].tensor, unit_bytes, std::move(chunks));
    }
  }
  return std::make_shared<const StagedChange>(builder.Finish(last.digests_after_));
}

}  // namespace weightwire
