#include "cli/command_tools.h"

#include <chrono>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "cli/interrupt.h"
#include "store/open.h"

namespace weightwire {
namespace {

// What a store needs for as long as it is open.
struct StoreTools {
  SystemClock clock;
  InterruptSleeper sleeper;
  SystemRandom random;
};

}  // namespace

CommandTools RealTools(FileSystem& files) {
  const auto store_tools = std::make_shared<StoreTools>();
  CommandTools tools;
  tools.files = &files;
  tools.open_store = [store_tools](const std::string& location) {
    OpenOptions open;
    open.clock = &store_tools->clock;
    WrapOptions wrap;
    wrap.clock = &store_tools->clock;
    wrap.sleeper = &store_tools->sleeper;
    wrap.random = &store_tools->random;
    return OpenStore(location, open, wrap);
  };
  tools.is_public = [store_tools](const std::string& location, std::string_view key) {
    OpenOptions open;
    open.clock = &store_tools->clock;
    return IsPublic(location, open, key);
  };
  return tools;
}

}  // namespace weightwire
