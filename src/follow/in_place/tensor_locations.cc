#include "follow/in_place/tensor_locations.h"

#include <fmt/format.h>

#include "tensor/json.h"

namespace weightwire {

Result<std::vector<TensorLocation>> LocationsIn(std::span<const CheckpointFile> files, const Layout& layout) {
  std::vector<TensorLocation> locations;
  for (std::size_t file = 0; file < files.size(); ++file) {
    for (std::size_t i = 0; i < files[file].tensors.size(); ++i) {
      const std::optional<std::size_t> tensor = layout.Resolve(files[file].tensors[i]);
      if (!tensor.has_value()) {
        return Error(ErrorCode::kMismatch, fmt::format("{} holds tensor {}, which should not be there",
                                                       files[file].name, Quoted(files[file].tensors[i])));
      }
      locations.push_back({file, files[file].offsets[i], *tensor});
    }
  }
  return locations;
}

}  // namespace weightwire
