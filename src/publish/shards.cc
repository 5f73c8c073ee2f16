#include "publish/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "codec/format/format.h"

namespace weightwire {
namespace {

constexpr std::uint64_t kDigestPieceUnits = std::uint64_t{1} << 20;

// Whole numbers, each followed by a space.
class NumberReader {
 public:
  explicit NumberReader(std::string_view text) : text_(text) {}

  [[nodiscard]] bool AtEnd() const { return text_.empty(); }
  Result<std::uint64_t> Next() {
    std::uint64_t number = 0;
    const auto [stop, error] = std::from_chars(text_.data(), text_.data() + text_.size(), number);
    const auto size = static_cast<std::size_t>(stop - text_.data());
    if (error != std::errc() || size == text_.size() || text_[size] != ' ') {
      return Error(ErrorCode::kCorrupt, "a rank's list of its shards cannot be read");
    }
    text_.remove_prefix(size + 1);
    return number;
  }

 private:
  std::string_view text_;
};

}  // namespace

Result<std::shared_ptr<const Shards>> Shards::Make(std::shared_ptr<const Layout> whole, std::vector<Shard> list) {
  std::shared_ptr<Shards> shards(new Shards());
  std::ranges::sort(list, {}, &Shard::tensor);
  std::vector<TensorSpec> own;
  for (std::size_t i = 0; i < list.size(); ++i) {
    Shard& shard = list[i];
    WW_CHECK(shard.tensor < whole->size());
    TensorSpec spec = whole->tensors()[shard.tensor];
    if (i > 0 && list[i - 1].tensor == shard.tensor) {
      return Error(ErrorCode::kInvalidArgument, fmt::format("a rank holds two boxes of '{}'", spec.name));
    }
    if (shard.box.has_value()) {
      auto map = BoxMap::Of(spec, *shard.box);
      if (!map.ok()) return Error(ErrorCode::kInvalidArgument, map.error().message());
      shards->maps_.push_back(std::move(map).value());
      if (shard.box->extent == spec.shape) {
        shard.box.reset();
      } else {
        spec.shape = shard.box->extent;
      }
    } else {
      shards->maps_.emplace_back(spec);
    }
    own.push_back(std::move(spec));
  }
  WW_TRY(Layout layout, Layout::Make(std::move(own), {}));
  shards->own_ = std::make_shared<const Layout>(std::move(layout));
  shards->whole_ = std::move(whole);
  shards->shards_ = std::move(list);
  return std::shared_ptr<const Shards>(std::move(shards));
}

std::vector<Digest> DigestShards(const Shards& shards, std::span<const std::span<const std::uint8_t>> bytes,
                                 const Kernels& kernels, ThreadPool& pool) {
  struct Piece {
    std::size_t shard;
    std::uint64_t first;
    std::uint64_t count;
  };
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::uint64_t units = shards.map(i).unit_count();
    for (std::uint64_t first = 0; first < units; first += kDigestPieceUnits) {
      pieces.push_back({i, first, std::min(kDigestPieceUnits, units - first)});
    }
  }
  std::vector<Digest> parts(pieces.size());
  pool.ParallelFor(pieces.size(), [&](std::size_t i, std::size_t) {
    const Piece& piece = pieces[i];
    const BoxMap& map = shards.map(piece.shard);
    const auto width = static_cast<std::uint64_t>(map.unit_bytes());
    const auto all = bytes[piece.shard];
    map.ForEachStretch(piece.first, piece.count, [&](std::uint64_t at, std::uint64_t unit, std::uint64_t count) {
      parts[i] += DigestOfRange(all.subspan(at * width, count * width), unit * width, kernels);
    });
  });
  std::vector<Digest> digests(shards.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) digests[pieces[i].shard] += parts[i];
  return digests;
}

void CopyShard(const BoxMap& map, std::span<const std::uint8_t> tensor, std::span<std::uint8_t> out) {
  const auto width = static_cast<std::uint64_t>(map.unit_bytes());
  map.ForEachStretch(0, map.unit_count(), [&](std::uint64_t at, std::uint64_t unit, std::uint64_t count) {
    const auto from = tensor.subspan(unit * width, count * width);
    std::ranges::copy(from, out.begin() + static_cast<std::ptrdiff_t>(at * width));
  });
}

std::string ToText(const Shards& shards) {
  std::string text;
  for (const Shard& shard : shards.all()) {
    text += fmt::format("{} {} ", shard.tensor, shard.box.has_value() ? shard.box->start.size() : 0);
    if (!shard.box.has_value()) continue;
    for (const std::uint64_t number : shard.box->start) text += fmt::format("{} ", number);
    for (const std::uint64_t number : shard.box->extent) text += fmt::format("{} ", number);
  }
  return text;
}

Result<std::shared_ptr<const Shards>> ParseShards(std::string_view text, std::shared_ptr<const Layout> whole) {
  std::vector<Shard> shards;
  NumberReader reader(text);
  while (!reader.AtEnd()) {
    Shard shard;
    WW_TRY(shard.tensor, reader.Next());
    WW_TRY(const std::uint64_t dimensions, reader.Next());
    if (shard.tensor >= whole->size() || dimensions > kMaxRank) {
      return Error(ErrorCode::kCorrupt, "a rank's list of its shards does not fit the layout");
    }
    if (dimensions > 0) shard.box.emplace();
    for (std::uint64_t i = 0; i < 2 * dimensions; ++i) {
      WW_TRY(const std::uint64_t number, reader.Next());
      (i < dimensions ? shard.box->start : shard.box->extent).push_back(number);
    }
    shards.push_back(std::move(shard));
  }
  return Shards::Make(std::move(whole), std::move(shards));
}

Status CheckCover(const Layout& whole, std::span<const std::shared_ptr<const Shards>> ranks) {
  std::vector<std::vector<Box>> boxes(whole.size());
  std::vector<std::uint64_t> units(whole.size());
  for (const auto& rank : ranks) {
    for (std::size_t i = 0; i < rank->size(); ++i) {
      const Shard& shard = rank->all()[i];
      const TensorSpec& spec = whole.tensors()[shard.tensor];
      const std::vector<std::uint64_t> origin(spec.shape.size(), 0);
      boxes[shard.tensor].push_back(shard.box.value_or(Box{origin, spec.shape}));
      units[shard.tensor] += rank->map(i).unit_count();
    }
  }
  for (std::size_t t = 0; t < whole.size(); ++t) {
    if (whole.unit_count(t) == 0) continue;
    if (boxes[t].size() > kMaxBoxesPerTensor) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("the ranks hold '{}' in {} boxes, and a delta has at most {} of one tensor; let fewer "
                               "ranks hold larger boxes of it",
                               whole.tensors()[t].name, boxes[t].size(), kMaxBoxesPerTensor));
    }
    // Boxes that have no element in common and as many elements together as the tensor are all of it.
    std::vector<const Box*> all;
    for (const Box& box : boxes[t]) all.push_back(&box);
    if (units[t] == whole.unit_count(t) && !AnyOverlap(all)) continue;
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("the ranks' shards of '{}' do not cover it exactly once", whole.tensors()[t].name));
  }
  return Ok();
}

}  // namespace weightwire
