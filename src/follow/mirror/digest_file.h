// The digests of a state's tensors, kept beside the weights so that a restart need not read them.
//
// "WWDGST01", varint count, 16 bytes each. The state digest is computed from them and the layout, so they check
// themselves: whatever is in the file either gives the state it is asked for, or is of no use.
#pragma once

#include <optional>
#include <vector>

#include "base/filesystem.h"
#include "base/result.h"
#include "base/sha256.h"
#include "codec/digest/digest.h"
#include "tensor/layout.h"

namespace weightwire {

// Returns once they are on the disk.
Status WriteDigests(FileSystem& files, const FileSystem::Path& path, const std::vector<Digest>& digests);

// The digests of that state, or nothing when the file is not there or does not give it.
[[nodiscard]] std::optional<std::vector<Digest>> ReadDigests(FileSystem& files, const FileSystem::Path& path,
                                                             const Layout& layout, const Sha256Digest& state);

}  // namespace weightwire
