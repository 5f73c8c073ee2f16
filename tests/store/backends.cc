#include "store/backends.h"

#include "store/memory_store.h"

namespace weightwire::testing {
namespace {

class MemoryPlace final : public Place {
 public:
  std::shared_ptr<Store> Open() override { return store_; }

 private:
  SystemClock clock_;
  std::shared_ptr<Store> store_ = std::make_shared<MemoryStore>(&clock_);
};

}  // namespace

std::vector<Backend> AllBackends() {
  return {
      {"memory", [] { return std::make_unique<MemoryPlace>(); }},
  };
}

}  // namespace weightwire::testing
