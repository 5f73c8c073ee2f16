// What one process writes of an anchor: all of its files (anchor_writer.h), or a rank's piece of it (piece_writer.h).
#pragma once

#include "base/result.h"

namespace weightwire {

// A step function. Thread safety: one thread at a time.
class AnchorShare {
 public:
  AnchorShare() = default;
  AnchorShare(const AnchorShare&) = delete;
  AnchorShare& operator=(const AnchorShare&) = delete;
  virtual ~AnchorShare() = default;

  // Sends the next bytes, and returns true once the share is complete. After a retryable error, the next call sends the
  // current file again from its start. kMismatch: the source does not have the version's bits, and never will.
  virtual Result<bool> Step() = 0;
};

}  // namespace weightwire
