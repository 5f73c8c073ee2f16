#include "base/surface.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

namespace weightwire {
namespace {

std::atomic<Surface> surface_of_process{Surface::kCommand};

std::string ArgumentName(std::string_view name) {
  std::string argument(name);
  std::ranges::replace(argument, '-', '_');
  return argument;
}

}  // namespace

void SetSurface(Surface surface) { surface_of_process = surface; }
Surface CurrentSurface() { return surface_of_process; }

std::string FlagText(std::string_view name) {
  return CurrentSurface() == Surface::kCommand ? fmt::format("--{}", name) : fmt::format("{}=True", ArgumentName(name));
}

std::string OptionText(std::string_view name, std::string_view value) {
  return CurrentSurface() == Surface::kCommand ? fmt::format("--{} {}", name, value)
                                               : fmt::format("{}={}", ArgumentName(name), value);
}

}  // namespace weightwire
