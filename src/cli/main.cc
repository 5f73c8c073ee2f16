#include <malloc.h>

#include "base/real_file_system.h"
#include "cli/command.h"
#include "cli/world.h"

int main(int argc, char** argv) {
  // Staged changes are large, come and go, and would each be fetched from the system anew, page by page: freed memory
  // is kept for the next one instead. Few fault-ins, and no more memory than at the peak.
  constexpr int kKeepBytes = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kKeepBytes);
  mallopt(M_TRIM_THRESHOLD, kKeepBytes);
  weightwire::RealFileSystem files;
  return weightwire::RunCommand(argc, argv, weightwire::RealWorld(files));
}
