// Writing a journal (journal.h) of a staged change.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/filesystem.h"
#include "base/result.h"
#include "base/threads.h"
#include "codec/decode/staged_change.h"
#include "codec/kernels/kernels.h"
#include "follow/in_place/tensor_locations.h"
#include "tensor/checkpoint.h"

namespace weightwire {

struct JournalRequest {
  const StagedChange* change = nullptr;
  std::string note;
  std::span<const CheckpointFile> files;
  std::span<const TensorLocation> locations;
  // The bytes that the tensors have in the files now, by the layout. A tensor that is new in the change is compared
  // with them, because it may have been removed and added again.
  std::span<const std::span<const std::uint8_t>> tensors;
  // Fail with kMismatch if they are not the old bits of the change.
  bool check_tensors = false;
};

// Creates the journal of a change at `path`, in place of a file that has the name. After an error there is no such
// file.
//
// The journal is not durable yet. To commit the update, the caller syncs the file, renames it to the journal's name and
// syncs the directory. Only then may the first byte of the weights change.
Result<std::unique_ptr<NewFile>> WriteJournal(FileSystem& files, const FileSystem::Path& path,
                                              const JournalRequest& request, const Kernels& kernels, ThreadPool& pool);

}  // namespace weightwire
