#include "cli/command.h"

int main(int argc, char** argv) { return weightwire::RunCommand(argc, argv); }
