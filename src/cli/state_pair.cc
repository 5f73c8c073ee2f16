#include "cli/state_pair.h"

#include <utility>

namespace weightwire {

std::optional<std::size_t> StatePair::Origin(std::size_t tensor) const {
  return layout_before.FindSame(layout_after.tensors()[tensor]);
}

EncodeRequest RequestFor(const StatePair& pair, std::vector<Digest> digests_before, CodingRequest coding) {
  EncodeRequest request;
  request.layout_before = &pair.layout_before;
  request.layout_after = &pair.layout_after;
  for (std::size_t i = 0; i < pair.layout_after.size(); ++i) {
    EncodeEntry entry;
    entry.tensor = i;
    entry.new_bytes = pair.new_bytes[i];
    const auto origin = pair.Origin(i);
    entry.has_old = origin.has_value();
    if (origin.has_value()) {
      entry.old_bytes = pair.old_bytes[*origin];
      entry.before = digests_before[*origin];
    }
    request.entries.push_back(entry);
  }
  request.digests_before = std::move(digests_before);
  request.coding = coding;
  return request;
}

std::optional<CodingRequest> CodingNamed(std::string_view name) {
  if (name == "auto") return CodingRequest::kSmallest;
  if (name == "conditioned") return CodingRequest::kConditioned;
  if (name == "gaps" || name == "fast") return CodingRequest::kGaps;
  if (name == "dense") return CodingRequest::kDense;
  if (name == "whole") return CodingRequest::kWhole;
  return std::nullopt;
}

}  // namespace weightwire
