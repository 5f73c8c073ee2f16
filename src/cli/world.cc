#include "cli/world.h"

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

World RealWorld(FileSystem& files) {
  const auto tools = std::make_shared<StoreTools>();
  World world;
  world.files = &files;
  world.open_store = [tools](const std::string& location) {
    OpenOptions open;
    open.clock = &tools->clock;
    WrapOptions wrap;
    wrap.clock = &tools->clock;
    wrap.sleeper = &tools->sleeper;
    wrap.random = &tools->random;
    // Longer waits are the commands' own, which say what they wait for.
    wrap.retry.deadline = std::chrono::seconds(30);
    return OpenStore(location, open, wrap);
  };
  world.is_public = [tools](const std::string& location, std::string_view key) {
    OpenOptions open;
    open.clock = &tools->clock;
    return IsPublic(location, open, key);
  };
  return world;
}

}  // namespace weightwire
