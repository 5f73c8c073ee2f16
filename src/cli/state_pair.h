// Two states of a model, and the request to encode what leads from one to the other.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "codec/digest/digest.h"
#include "codec/encode/encoder.h"
#include "codec/encode/mode_choice.h"
#include "tensor/layout.h"

namespace weightwire {

// Both belong to the caller and must outlive it. Bytes by the layouts.
struct StatePair {
  const Layout& layout_before;
  const Layout& layout_after;
  std::vector<std::span<const std::uint8_t>> old_bytes;
  std::vector<std::span<const std::uint8_t>> new_bytes;

  // The tensor of the layout before with the same name, type and shape as this one of the layout after.
  [[nodiscard]] std::optional<std::size_t> Origin(std::size_t tensor) const;
};

// An entry for every tensor of the layout after, in order.
[[nodiscard]] EncodeRequest RequestFor(const StatePair& pair, std::vector<Digest> digests_before, CodingRequest coding);

// "auto", "conditioned", "gaps", "fast" (the same), "dense", "whole"; nothing for another name.
[[nodiscard]] std::optional<CodingRequest> CodingNamed(std::string_view name);

}  // namespace weightwire
