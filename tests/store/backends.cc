#include "store/backends.h"

#include "store/file_store.h"
#include "store/memory_store.h"
#include "testing/temporary_directory.h"

namespace weightwire::testing {
namespace {

class MemoryPlace final : public Place {
 public:
  std::shared_ptr<Store> Open() override { return store_; }

 private:
  SystemClock clock_;
  std::shared_ptr<Store> store_ = std::make_shared<MemoryStore>(&clock_);
};

class FilePlace final : public Place {
 public:
  std::shared_ptr<Store> Open() override { return std::make_shared<FileStore>(directory_ / "run", "file:///run"); }

 private:
  TemporaryDirectory directory_;
};

}  // namespace

std::vector<Backend> AllBackends() {
  return {
      {"memory", [] { return std::make_unique<MemoryPlace>(); }},
      {"file", [] { return std::make_unique<FilePlace>(); }},
  };
}

}  // namespace weightwire::testing
