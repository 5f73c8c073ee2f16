#include "publish/piece_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace weightwire {
Result<AssembledPlan> PlanAssembled(const Layout& whole, const CheckpointOptions& options) {
  AssembledPlan assembled;
  assembled.plan = PlanFresh(whole, options);
  assembled.tensors.resize(whole.size());
  for (std::size_t i = 0; i < assembled.plan.size(); ++i) {
    const PlannedFile& file = assembled.plan[i];
    WW_TRY(std::vector<std::uint8_t> header, file.Header());
    std::uint64_t at = header.size();
    for (const std::size_t tensor : file.sources) {
      assembled.tensors[tensor] = {i, at};
      at += whole.byte_size(tensor);
    }
    assembled.files.push_back({file.name, at});
    assembled.headers.push_back(std::move(header));
  }
  return assembled;
}

std::string PieceName(std::uint64_t rank) { return fmt::format("pieces/{:05}", rank); }

namespace {

void AddPlaces(const BoxMap& map, const AssembledPlan::Start& tensor, std::vector<Place>& places) {
  const std::size_t first = places.size();
  const auto width = static_cast<std::uint64_t>(map.unit_bytes());
  const std::uint64_t row_bytes = map.stretch_units() * width;
  for (std::uint64_t stretch = 0; stretch < map.stretch_count(); ++stretch) {
    const std::uint64_t at = tensor.at + map.StretchStart(stretch) * width;
    if (places.size() > first) {
      // Rows that lie equally far apart are one place.
      Place& last = places.back();
      const std::uint64_t stride = at - (last.at + (last.rows - 1) * last.stride);
      if (last.rows == 1 || stride == last.stride) {
        last.stride = stride;
        ++last.rows;
        continue;
      }
    }
    places.push_back({tensor.file, at, row_bytes, 1, row_bytes});
  }
}

}  // namespace

std::vector<Place> PiecePlaces(std::uint64_t rank, const Shards& shards, const AssembledPlan& plan) {
  std::vector<Place> places;
  for (std::size_t i = 0; i < plan.headers.size() && rank == 0; ++i) {
    places.push_back({i, 0, plan.headers[i].size(), 1, plan.headers[i].size()});
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    AddPlaces(shards.map(i), plan.tensors[shards.all()[i].tensor], places);
  }
  return places;
}

PieceWriter::PieceWriter(Run run, AnchorName anchor, std::uint64_t rank, std::shared_ptr<const Shards> shards,
                         std::shared_ptr<AnchorSource> source, CheckpointOptions options, const Kernels& kernels)
    : run_(std::move(run)),
      anchor_(anchor),
      rank_(rank),
      shards_(std::move(shards)),
      source_(std::move(source)),
      options_(std::move(options)),
      kernels_(kernels) {}

Result<bool> PieceWriter::Step() {
  if (complete_) return true;
  auto step = TryStep();
  if (step.ok()) return step;
  // What was sent is given up: the store may not know the upload any more.
  sender_.reset();
  return step.error().In(fmt::format("cannot write a piece of an anchor of version {}", anchor_.version));
}

Result<bool> PieceWriter::TryStep() {
  if (!sender_.has_value()) {
    WW_RETURN_IF_ERROR(Begin());
    if (sender_->size_bytes() == 0) return complete_ = true;
  }
  WW_TRY(complete_, sender_->Step([this](std::span<std::uint8_t> out) {
    return bytes_->Fill(*source_, out,
                        [this](std::size_t shard, std::uint64_t at, std::span<const std::uint8_t> bytes) {
                          AddDigest(shard, at, bytes);
                        });
  }));
  if (complete_) piece_ = SentPiece{sender_->size_bytes(), sender_->Hash()};
  return complete_;
}

Status PieceWriter::Begin() {
  WW_TRY(const AssembledPlan plan, PlanAssembled(*shards_->whole(), options_));
  std::vector<std::uint8_t> headers;
  for (const auto& header : plan.headers) {
    if (rank_ == 0) headers.insert(headers.end(), header.begin(), header.end());
  }
  sender_.emplace(run_.store(), AnchorFolder(anchor_) + PieceName(rank_),
                  headers.size() + shards_->own()->total_bytes());
  std::vector<std::size_t> all(shards_->size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  bytes_.emplace(std::move(headers), std::move(all));
  digests_.assign(shards_->size(), {});
  return sender_->Begin();
}

// Digests bytes of a shard, row by row.
void PieceWriter::AddDigest(std::size_t shard, std::uint64_t at, std::span<const std::uint8_t> bytes) {
  const BoxMap& map = shards_->map(shard);
  const auto width = static_cast<std::uint64_t>(map.unit_bytes());
  const std::uint64_t row_bytes = map.stretch_units() * width;
  while (!bytes.empty()) {
    const std::uint64_t column = at % row_bytes;
    const std::uint64_t size = std::min<std::uint64_t>(row_bytes - column, bytes.size());
    digests_[shard] += DigestOfRange(bytes.first(size), map.StretchStart(at / row_bytes) * width + column, kernels_);
    at += size;
    bytes = bytes.subspan(size);
  }
}

}  // namespace weightwire
