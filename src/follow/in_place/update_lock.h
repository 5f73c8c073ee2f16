// One update of a checkpoint at a time.
#pragma once

#include <filesystem>

#include "base/result.h"

namespace weightwire {

// Held from before a checkpoint is read until it is updated. Keeps other updates of it, or of the directory that
// contains it, away. It leaves no file behind: it locks the directory and the file themselves. Movable.
class UpdateLock {
 public:
  // An error when another process holds it.
  static Result<UpdateLock> Take(const std::filesystem::path& checkpoint);

  UpdateLock(UpdateLock&& other) noexcept;
  UpdateLock& operator=(UpdateLock&& other) = delete;
  ~UpdateLock();

 private:
  UpdateLock() = default;

  int directory_ = -1;
  int file_ = -1;
};

}  // namespace weightwire
