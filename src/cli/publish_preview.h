// What `weightwire publish` would send: for --dry-run, which writes nothing, neither to the bucket nor to the state
// directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/result.h"
#include "cli/compute.h"
#include "log/run.h"
#include "publish/anchor_policy.h"
#include "tensor/checkpoint.h"

namespace weightwire {

struct PublishPreview {
  bool already_published = false;  // the checkpoint is the newest version, with the same step
  Version version = 0;
  std::uint64_t step = 0;
  std::uint64_t pending_versions = 0;         // unsent versions in the state directory, which are sent first
  std::optional<std::uint64_t> delta_bytes;   // none: it is sent as an anchor, or is published already
  std::optional<std::uint64_t> anchor_bytes;  // the tensors' bytes; without the files beside them
  std::uint64_t changed = 0;                  // elements (bytes of packed types)
  bool anchor_due = false;                    // an anchor follows a version that is sent as a delta
};

struct PreviewRequest {
  const Checkpoint* checkpoint = nullptr;
  std::filesystem::path name;         // of the checkpoint, for progress
  std::optional<std::uint64_t> step;  // that the user gave
  std::filesystem::path state_directory;
  AnchorPolicy anchors;
  bool allow_new_model = false;
};

// Compares with the newest version in the bucket, which is read from the state directory or, if it is not there,
// downloaded into memory. kMismatch as publish (publish/same_model.h).
Result<PublishPreview> PreviewPublish(const Run& run, const PreviewRequest& request, const Compute& compute);

// Of a run that does not exist yet.
[[nodiscard]] PublishPreview PreviewFirst(const Checkpoint& checkpoint, std::optional<std::uint64_t> step);

// The step of the next version if the user gave none: that of the newest version, if the state is the same, else one
// more. kInvalidArgument if no step comes after it.
Result<std::uint64_t> NextStep(const Record& newest, bool same_state);

}  // namespace weightwire
