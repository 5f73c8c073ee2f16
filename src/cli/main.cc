#include "base/real_file_system.h"
#include "cli/command.h"
#include "cli/world.h"

int main(int argc, char** argv) {
  weightwire::KeepFreedMemory();
  weightwire::RealFileSystem files;
  return weightwire::RunWeightwire(argc, argv, weightwire::RealWorld(files));
}
