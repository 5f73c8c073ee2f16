#include "sim/anchor_bits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensor/safetensors.h"

namespace weightwire::sim {

std::optional<std::string> WrongInAnchor(const Bucket& bucket, const AnchorManifest& manifest, const Weights& weights) {
  std::vector<std::vector<std::uint8_t>> files;
  for (const AssembledFile& file : manifest.assembled) files.emplace_back(file.size_bytes);
  for (const AnchorFile& object : manifest.files) {
    const auto& bytes = bucket.objects().find(AnchorFolder(manifest.name) + object.name)->second.bytes;
    if (object.places.empty()) {
      if (object.name.ends_with(".safetensors")) files.push_back(bytes);
      continue;
    }
    auto next = bytes.begin();
    for (const Place& place : object.places) {
      for (std::uint64_t row = 0; row < place.rows; ++row) {
        const std::uint64_t at = place.at + row * place.stride;
        const auto left = static_cast<std::uint64_t>(bytes.end() - next);
        if (place.file >= files.size() || at + place.row_bytes > files[place.file].size() || place.row_bytes > left) {
          return fmt::format("{} does not fit", object.name);
        }
        std::copy_n(next, place.row_bytes, files[place.file].begin() + static_cast<std::ptrdiff_t>(at));
        next += static_cast<std::ptrdiff_t>(place.row_bytes);
      }
    }
    if (next != bytes.end()) return fmt::format("{} has bytes without a place", object.name);
  }
  std::size_t tensors = 0;
  for (const auto& file : files) {
    const auto view = SafetensorsView::Parse(file);
    if (!view.ok()) return view.error().message();
    for (const TensorView& tensor : view.value().tensors()) {
      const auto at = weights.layout->Find(tensor.spec.name);
      if (!at.has_value() || !std::ranges::equal(tensor.bytes, weights.tensors[*at])) {
        return fmt::format("'{}' has other bits", tensor.spec.name);
      }
      ++tensors;
    }
  }
  return tensors == weights.tensors.size() ? std::nullopt : std::optional<std::string>("tensors are missing");
}

}  // namespace weightwire::sim
