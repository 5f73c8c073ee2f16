#include "base/real_file_system.h"
#include "cli/command.h"
#include "cli/command_tools.h"

int main(int argc, char** argv) {
  weightwire::KeepFreedMemory();
  weightwire::RealFileSystem files;
  return weightwire::RunWeightwire(argc, argv, weightwire::RealTools(files));
}
