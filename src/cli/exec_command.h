// The command of `weightwire follow --exec`, which the shell runs for each version that the mirror gets.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "base/filesystem.h"
#include "base/result.h"
#include "cli/interrupt.h"
#include "follow/targets/target.h"

namespace weightwire {

class ExecCommand {
 public:
  // Where the command finds the weights, and the mirror that it follows; with --swap these differ.
  struct Directories {
    std::filesystem::path weights;
    std::filesystem::path mirror;
  };

  // `files` and `interrupt` must outlive it. REQUIRES: the mirror is open, so that no other process keeps it.
  ExecCommand(std::string command, Directories directories, FileSystem& files, const InterruptGuard& interrupt);

  // Runs the command with WEIGHTWIRE_VERSION, WEIGHTWIRE_STEP and WEIGHTWIRE_MIRROR in its environment, waits for its
  // end, and remembers its success beside the mirror's state. Calls `meanwhile` about every ten seconds. A signal to
  // this process is passed on to the command. kIo if the command ends with another status than 0.
  Status Run(const Held& held, const std::function<void()>& meanwhile);

  // Returns true if the command has succeeded for that version, also in an earlier process: the next start runs it
  // again if it failed, or if a crash came before it. False if that is unknown, because another run is harmless.
  [[nodiscard]] bool HasSucceeded(const Held& held) const;

 private:
  const std::string command_;
  const Directories directories_;
  FileSystem& files_;
  const InterruptGuard& interrupt_;
};

}  // namespace weightwire
