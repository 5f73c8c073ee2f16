// Extra files of a checkpoint directory: those next to its weights, such as configuration and tokenizer. They are
// copied unchanged.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"

namespace weightwire {

// Copies every regular file below `from` to the same relative path below `to`, which must exist, and makes the copies
// durable. Links to files are followed (a Hugging Face cache is made of them). Left out are `own`, the names of the
// checkpoint's own files; our .weightwire*; and what is returned, sorted, as paths from `from`: other weights that lie
// beside the checkpoint's own (*.safetensors and their *.safetensors.index.json; those in sub-directories are copied),
// .git, links to directories or to nothing, sockets and the like.
Result<std::vector<std::string>> CopyExtraFiles(const std::filesystem::path& from, const std::set<std::string>& own,
                                                const std::filesystem::path& to);

}  // namespace weightwire
