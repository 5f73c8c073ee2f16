// model.safetensors.index.json: which shard of a Hugging Face directory holds which tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weightwire {

// Tensor name -> file name in the same directory.
using WeightMap = std::map<std::string, std::string>;

// Reads the "weight_map"; everything else in the file is ignored, as other readers do. A file name that could leave the
// directory is an error.
Result<WeightMap> ParseShardIndex(std::string_view json);

// The text of an index file, laid out as transformers writes it. `total_bytes` is the size of all tensors' data.
[[nodiscard]] std::string ShardIndexText(const WeightMap& weight_map, std::uint64_t total_bytes);

}  // namespace weightwire
