#include "codec/decode/decode_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "codec/digest/digest.h"
#include "codec/digest/state.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

// Units of a box that are digested at a time.
constexpr std::uint64_t kDigestRangeUnits = 1 << 20;

class Planner {
 public:
  Planner(std::span<const DeltaFile> parts, const std::optional<StateDigests>& promised, const StateView& base,
          const Kernels& kernels)
      : parts_(parts), promised_(promised), base_(base), kernels_(kernels) {}

  Result<DecodePlan> Plan() {
    WW_RETURN_IF_ERROR(CheckBase());
    WW_RETURN_IF_ERROR(PrepareEntries());
    WW_RETURN_IF_ERROR(CheckDigestsBefore());
    return std::move(plan_);
  }

 private:
  Status CheckBase() {
    for (const DeltaFile& part : parts_) {
      const DeltaIndex& index = part.index();
      if (index.layout_hash != base_.layout().hash()) {
        return MadeForAnotherBase(
            "the names, types or shapes of the base's tensors are not those the delta applies to");
      }
      if (index.layout_change != parts_.front().index().layout_change) {
        return DamagedDelta("its parts do not agree on the layout after it");
      }
      if (parts_.size() > 1 && index.state.has_value()) return DamagedDelta("one of its parts is a delta of its own");
    }
    if (promised_.has_value() && StateDigest(base_.layout(), base_.digests()) != promised_->before) {
      return MadeForAnotherBase("the base's bits are not those the delta applies to (" + DescribeDifference() + ")");
    }
    const auto& layout_change = parts_.front().index().layout_change;
    plan_.after = base_.shared_layout();
    if (!layout_change.has_value()) return Ok();
    WW_TRY(Layout after, ApplyLayoutChange(base_.layout(), layout_change));
    plan_.after = std::make_shared<const Layout>(std::move(after));
    return Ok();
  }

  // The first touched tensor whose digest differs, for the error.
  [[nodiscard]] std::string DescribeDifference() const {
    for (const IndexEntry& entry : parts_.front().index().entries) {
      if (parts_.front().index().layout_change.has_value() || entry.tensor >= base_.layout().size() ||
          entry.box.has_value())
        break;
      if (base_.digests()[entry.tensor] != entry.before) {
        return "tensor " + Quoted(base_.layout().tensors()[entry.tensor].name) + " differs";
      }
    }
    return "a tensor that the delta does not touch differs";
  }

  Status PrepareEntries() {
    for (const DeltaFile& part : parts_) {
      // Tables by set, width and scale: entries that agree in them share them.
      std::map<std::tuple<std::size_t, int, int>, std::shared_ptr<const ExpandedTables>> expanded;
      for (std::size_t i = 0; i < part.index().entries.size(); ++i) {
        WW_TRY(DecodeEntry entry, PrepareEntry(part, i));
        if (HasTables(entry.index->mode)) {
          auto& tables = expanded[{entry.index->table_set, entry.map->unit_bytes(), entry.index->scale}];
          if (tables == nullptr) {
            TableSet set = part.sets()[entry.index->table_set];
            set.unit_bits = 8 * entry.map->unit_bytes();
            WW_RETURN_IF_ERROR(set.CheckFits());
            tables = std::make_shared<const ExpandedTables>(set, entry.index->scale);
          }
          entry.tables = tables;
        }
        plan_.entries.push_back(std::move(entry));
      }
    }
    std::stable_sort(plan_.entries.begin(), plan_.entries.end(),
                     [](const DecodeEntry& a, const DecodeEntry& b) { return a.index->tensor < b.index->tensor; });
    return CheckBoxes();
  }

  Result<DecodeEntry> PrepareEntry(const DeltaFile& part, std::size_t i) const {
    DecodeEntry entry;
    entry.index = &part.index().entries[i];
    entry.payload = part.payload(i);
    if (entry.index->tensor >= plan_.after->size()) return DamagedDelta("an entry names a tensor that is not there");
    const TensorSpec& spec = plan_.SpecOf(entry);
    if (entry.index->box.has_value()) {
      WW_TRY(entry.map, BoxMap::Of(spec, *entry.index->box));
      // Of all of a tensor, too: whether there is a box must not change what its rows have to be.
      if (IsPacked(spec.dtype) && spec.shape.back() * static_cast<std::uint64_t>(BitsPer(spec.dtype)) % 8 != 0) {
        return DamagedDelta("there is a box of " + Quoted(spec.name) + ", whose rows do not fill whole bytes");
      }
    } else {
      entry.map = BoxMap(spec);
    }
    const std::optional<std::size_t> origin = OriginOf(entry.index->tensor, *plan_.after, base_.layout());
    entry.is_new = !origin.has_value();
    entry.origin = origin.value_or(0);
    if (entry.is_new && entry.index->box.has_value()) {
      return DamagedDelta(Quoted(spec.name) + " is new, but comes as a box");
    }
    if (entry.index->mode != EntryMode::kWhole) {
      if (entry.is_new) return DamagedDelta(Quoted(spec.name) + " is new, but coded as a change");
      WW_RETURN_IF_ERROR(PrepareTiles(entry));
    } else if (entry.payload.size() != entry.map->unit_count() * static_cast<std::uint64_t>(entry.map->unit_bytes())) {
      return DamagedDelta("the data of " + Quoted(spec.name) + " has the wrong size");
    }
    return entry;
  }

  static Status PrepareTiles(DecodeEntry& entry) {
    const int log2 = entry.index->tile_log2;
    const std::uint64_t tiles = (entry.map->unit_count() + (std::uint64_t{1} << log2) - 1) >> log2;
    if (entry.index->tile_bytes.size() != tiles) return DamagedDelta("an entry has the wrong number of tiles");
    if (entry.index->changed > entry.map->unit_count()) return DamagedDelta("an entry has more changes than units");
    std::uint64_t offset = 0;
    for (const std::uint32_t size : entry.index->tile_bytes) {
      entry.tile_offsets.push_back(offset);
      offset += size;
    }
    return Ok();
  }

  // Boxes of one tensor must not overlap; each new tensor must be there.
  Status CheckBoxes() const {
    for (std::size_t begin = 0; begin < plan_.entries.size();) {
      std::size_t end = begin + 1;
      while (end < plan_.entries.size() && plan_.entries[end].index->tensor == plan_.entries[begin].index->tensor)
        ++end;
      const auto name = [&] { return Quoted(plan_.SpecOf(plan_.entries[begin]).name); };
      if (end - begin > kMaxBoxesPerTensor) {
        return Error(ErrorCode::kLimit, "the delta has " + std::to_string(end - begin) + " boxes of " + name() +
                                            ", above the limit of " + std::to_string(kMaxBoxesPerTensor));
      }
      std::vector<const Box*> boxes;
      for (std::size_t i = begin; i < end && end - begin > 1; ++i) {
        if (plan_.entries[i].map->is_whole_tensor()) return DamagedDelta(name() + " is there twice");
        boxes.push_back(&*plan_.entries[i].index->box);
      }
      if (AnyOverlap(boxes)) return DamagedDelta("boxes of " + name() + " overlap");
      begin = end;
    }
    std::vector<bool> delivered(plan_.after->size(), false);
    for (const DecodeEntry& entry : plan_.entries) delivered[entry.index->tensor] = true;
    for (std::size_t i = 0; i < plan_.after->size(); ++i) {
      if (delivered[i] || OriginOf(i, *plan_.after, base_.layout()).has_value()) continue;
      const std::string name = Quoted(plan_.after->tensors()[i].name);
      if (promised_.has_value() || parts_.size() > 1) return DamagedDelta("new tensor " + name + " has no data");
      // Another part may have it. There is nothing wrong with this one, but a state without a tensor is none.
      return Error(ErrorCode::kUnsupported, "this is a part of a delta that leaves the data of new tensor " + name +
                                                " to another part, and cannot be applied alone");
    }
    return Ok();
  }

  // Digests of whole tensors are known. Those of boxes are computed, unless the boxes make up the tensor: then only
  // their sum need be right.
  Status CheckDigestsBefore() {
    std::map<std::size_t, std::pair<Digest, std::uint64_t>> sums;
    for (const DecodeEntry& entry : plan_.entries) {
      auto& [digest, units] = sums[entry.index->tensor];
      digest += entry.index->before;
      units += entry.map->unit_count();
    }
    for (const DecodeEntry& entry : plan_.entries) {
      const auto name = [&] { return Quoted(plan_.SpecOf(entry).name); };
      if (entry.is_new) {
        if (entry.index->before != Digest{}) return DamagedDelta(name() + " is new, but has a digest before");
        continue;
      }
      const auto& [digest, units] = sums[entry.index->tensor];
      const std::uint64_t all = base_.layout().unit_count(entry.origin);
      const bool fits =
          units == all ? digest == base_.digests()[entry.origin] : BoxDigest(entry) == entry.index->before;
      if (!fits) return MadeForAnotherBase("tensor " + name() + " of the base has not the bits the delta applies to");
    }
    return Ok();
  }

  Digest BoxDigest(const DecodeEntry& entry) {
    Digest digest;
    std::vector<std::uint8_t> scratch;
    const auto width = static_cast<std::uint64_t>(entry.map->unit_bytes());
    // In ranges: seen through staged changes, each is a copy.
    for (std::uint64_t first = 0; first < entry.map->unit_count(); first += kDigestRangeUnits) {
      const std::uint64_t size = std::min(kDigestRangeUnits, entry.map->unit_count() - first);
      entry.map->ForEachStretch(first, size, [&](std::uint64_t, std::uint64_t unit, std::uint64_t count) {
        digest += DigestOfRange(base_.Units(entry.origin, unit, count, scratch), unit * width, kernels_);
      });
    }
    return digest;
  }

  const std::span<const DeltaFile> parts_;
  const std::optional<StateDigests>& promised_;
  const StateView& base_;
  const Kernels& kernels_;
  DecodePlan plan_;
};

}  // namespace

Result<DecodePlan> PlanDecoding(std::span<const DeltaFile> parts, const std::optional<StateDigests>& promised,
                                const StateView& base, const Kernels& kernels) {
  return Planner(parts, promised, base, kernels).Plan();
}

Error DamagedDelta(const std::string& what) { return {ErrorCode::kCorrupt, "the delta is damaged: " + what}; }

Error MadeForAnotherBase(const std::string& what) {
  return {ErrorCode::kMismatch, what + "; the delta was made for another base, and nothing was changed"};
}

}  // namespace weightwire
