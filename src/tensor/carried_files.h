// What lies beside the weights in a checkpoint directory (configuration, tokenizer) and is carried along unchanged.
#pragma once

#include <filesystem>

#include "base/result.h"

namespace weightwire {

// Copies every regular file below `from` to the same place below `to`, which must exist, and makes the copies durable.
// Links to files are followed (a Hugging Face cache is made of them); links to directories, sockets and the like are
// passed over. Left out: weights (*.safetensors and their *.safetensors.index.json), .git, and our own .weightwire*.
Status CopyCarriedFiles(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace weightwire
