#include "codec/encode/delta_assembly.h"

#include <deque>
#include <optional>
#include <utility>

#include "codec/encode/unit_reader.h"
#include "codec/format/delta_file.h"
#include "codec/format/delta_index.h"

namespace weightwire {
namespace {

class Assembler {
 public:
  Assembler(const EncodeRequest& request, const EncodedEntries& entries)
      : request_(request), entries_(entries), set_used_(entries.sets.size(), false) {}

  Result<EncodedDelta> Assemble() {
    delta_.reports.resize(entries_.works.size());
    for (const EntryWork& work : entries_.works) WW_RETURN_IF_ERROR(Add(work));
    AddSets();
    DescribeStates();
    WW_TRY(delta_.unsealed, AssembleDeltaFile(contents_));
    return std::move(delta_);
  }

 private:
  Status Add(const EntryWork& work) {
    EntryReport& report = delta_.reports[work.position];
    report.units = work.map->unit_count();
    report.after = work.source->before;
    if (!work.coding.has_value()) return Ok();
    for (const TileResult& tile : work.tiles) {
      report.changed += tile.changed;
      report.single_steps += tile.single_steps;
      report.after += tile.digest_change;
    }
    if (report.changed == 0 && work.source->has_old) return Ok();
    IndexEntry entry;
    entry.tensor = work.source->tensor;
    entry.mode = ModeInFile(work);
    if (!work.map->is_whole_tensor()) entry.box = work.source->box;
    entry.before = work.source->before;
    entry.after = report.after;
    if (entry.mode == EntryMode::kWhole) {
      entry.whole_bytes = work.Bytes();
      WW_TRY(const std::span<const std::uint8_t> bytes, WholeBytes(work));
      contents_.payload.push_back(bytes);
    } else {
      entry.table_set = work.coding->table_set;
      entry.scale = work.coding->scale;
      entry.tile_log2 = work.coding->tile_log2;
      entry.changed = report.changed;
      entry.tile_bytes.reserve(work.tiles.size());
      for (const TileResult& tile : work.tiles) {
        const StoredStream& stream = tile.stream;
        entry.tile_bytes.push_back(stream.size);
        const std::span<const std::uint8_t> all = *entries_.streams[stream.worker];
        contents_.payload.push_back(all.subspan(stream.offset, stream.size));
      }
      if (HasTables(entry.mode)) set_used_[entry.table_set] = true;
    }
    report.mode = NameOf(entry);
    report.payload_bytes = entry.PayloadBytes();
    contents_.index.entries.push_back(std::move(entry));
    return Ok();
  }

  static EntryMode ModeInFile(const EntryWork& work) {
    std::uint64_t bytes = 0;
    for (const TileResult& tile : work.tiles) bytes += tile.stream.size;
    return IsSmallerWhole(*work.coding, bytes, work.Bytes()) ? EntryMode::kWhole : work.coding->mode;
  }

  [[nodiscard]] const char* NameOf(const IndexEntry& entry) const {
    switch (entry.mode) {
      case EntryMode::kWhole:
        return "whole";
      case EntryMode::kDense:
        return "dense";
      case EntryMode::kGaps:
        return "gaps";
      case EntryMode::kSparse:
        break;
    }
    return entries_.sets[entry.table_set].uniform ? "uniform" : "conditioned";
  }

  // All new bits of an entry.
  Result<std::span<const std::uint8_t>> WholeBytes(const EntryWork& work) {
    // The base has what was read, digested and kept. Read again, it need not be the same.
    if (work.source->has_old && work.source->update != nullptr) return work.source->old_bytes;
    if (work.source->reader == nullptr) return work.source->new_bytes;
    std::vector<std::uint8_t>& bytes = read_.emplace_back(work.Bytes());
    WW_RETURN_IF_ERROR(
        ReadUnits(*work.source->reader, 0, work.map->unit_count(), work.map->unit_bytes(), bytes.data()));
    return std::span<const std::uint8_t>(bytes);
  }

  // Sets that were chosen for entries that turned out unchanged are not written.
  void AddSets() {
    std::vector<std::size_t> new_number(set_used_.size());
    for (std::size_t i = 0; i < set_used_.size(); ++i) {
      new_number[i] = contents_.sets.size();
      if (set_used_[i]) contents_.sets.push_back(entries_.sets[i]);
    }
    for (IndexEntry& entry : contents_.index.entries) {
      if (HasTables(entry.mode)) entry.table_set = new_number[entry.table_set];
    }
  }

  // Layouts and, for a whole delta, state digests.
  void DescribeStates() {
    const Layout& before = *request_.layout_before;
    const Layout& after = *request_.layout_after;
    DeltaIndex& index = contents_.index;
    index.layout_hash = before.hash();
    index.aliases = before.aliases();
    if (!(before == after)) index.layout_change = CompareLayouts(before, after);
    if (!request_.digests_before.has_value()) return;
    if (before == after) {
      delta_.digests_after = *request_.digests_before;
    } else {
      delta_.digests_after.resize(after.size());
      for (std::size_t i = 0; i < after.size(); ++i) {
        const std::optional<std::size_t> old_index = before.FindSame(after.tensors()[i]);
        if (old_index.has_value()) delta_.digests_after[i] = (*request_.digests_before)[*old_index];
      }
    }
    for (const EntryWork& work : entries_.works) {
      const EntryReport& report = delta_.reports[work.position];
      delta_.digests_after[work.source->tensor] += report.after - work.source->before;
    }
    index.state = {StateDigest(before, *request_.digests_before), StateDigest(after, delta_.digests_after)};
  }

  const EncodeRequest& request_;
  const EncodedEntries& entries_;
  EncodedDelta delta_;
  DeltaFileContents contents_;
  std::vector<bool> set_used_;
  std::deque<std::vector<std::uint8_t>> read_;  // new bits of whole entries that come from readers
};

}  // namespace

Result<EncodedDelta> AssembleDelta(const EncodeRequest& request, const EncodedEntries& entries) {
  return Assembler(request, entries).Assemble();
}

}  // namespace weightwire
