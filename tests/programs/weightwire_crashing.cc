// The command in a world where the process is killed: before the effect on the disk or the store whose number (from 1)
// the variable DIE_BEFORE_EFFECT holds. Everything before that effect has happened, nothing after it; so a test that
// tries all numbers kills the command at every point there is. DIE_BEFORE_REQUEST and DIE_AFTER_REQUEST count only the
// effects on the store.
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "base/real_file_system.h"
#include "cli/command.h"
#include "store/open.h"
#include "store/wrappers/forwarding_store.h"

namespace weightwire {
namespace {

long NumberOf(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
}

// Counts effects, by any thread.
class Fate {
 public:
  void Effect() { Count(effects_, before_effect_); }

  // An effect on the store, and what comes of it.
  template <typename Request>
  auto OnStore(const Request& request) {
    Effect();
    const long number = Count(requests_, before_request_);
    auto outcome = request();
    if (number == after_request_) Die();
    return outcome;
  }

 private:
  static void Die() { ::kill(::getpid(), SIGKILL); }
  static long Count(std::atomic<long>& count, long deadly) {
    const long number = ++count;
    if (number == deadly) Die();
    return number;
  }

  const long before_effect_ = NumberOf("DIE_BEFORE_EFFECT");
  const long before_request_ = NumberOf("DIE_BEFORE_REQUEST");
  const long after_request_ = NumberOf("DIE_AFTER_REQUEST");
  std::atomic<long> effects_{0};
  std::atomic<long> requests_{0};
};

class DyingStore final : public ForwardingStore {
 public:
  DyingStore(std::unique_ptr<Store> inner, Fate& fate) : ForwardingStore(std::move(inner)), fate_(fate) {}

 private:
  Status Around(StoreRequest& request, const Send& send) override {
    return IsWrite(request.operation) ? fate_.OnStore(send) : send();
  }

  Fate& fate_;
};

class DyingFile final : public NewFile {
 public:
  DyingFile(std::unique_ptr<NewFile> inner, Fate& fate) : inner_(std::move(inner)), fate_(fate) {}
  Status Append(std::span<const std::uint8_t> bytes) override {
    fate_.Effect();
    return inner_->Append(bytes);
  }
  Status WriteAt(std::uint64_t offset, std::span<const std::uint8_t> bytes) override {
    fate_.Effect();
    return inner_->WriteAt(offset, bytes);
  }
  Status Resize(std::uint64_t size_bytes) override {
    fate_.Effect();
    return inner_->Resize(size_bytes);
  }
  Status Sync() override {
    fate_.Effect();
    return inner_->Sync();
  }

 private:
  const std::unique_ptr<NewFile> inner_;
  Fate& fate_;
};

class DyingUpdate final : public UpdateMap {
 public:
  DyingUpdate(std::unique_ptr<UpdateMap> inner, Fate& fate) : inner_(std::move(inner)), fate_(fate) {}
  [[nodiscard]] std::uint64_t size_bytes() const override { return inner_->size_bytes(); }
  Result<std::span<std::uint8_t>> ForWriting(std::uint64_t offset, std::uint64_t size) override {
    fate_.Effect();
    return inner_->ForWriting(offset, size);
  }
  Status Sync() override {
    fate_.Effect();
    return inner_->Sync();
  }

 private:
  const std::unique_ptr<UpdateMap> inner_;
  Fate& fate_;
};

class DyingFileSystem final : public FileSystem {
 public:
  explicit DyingFileSystem(Fate& fate) : fate_(fate) {}

  Result<std::optional<FileInfo>> Stat(const Path& path) override { return inner_.Stat(path); }
  Result<std::vector<std::uint8_t>> Read(const Path& path, std::uint64_t max_bytes) override {
    return inner_.Read(path, max_bytes);
  }
  Result<std::vector<std::string>> List(const Path& directory) override { return inner_.List(directory); }
  Result<std::unique_ptr<FileMap>> Map(const Path& path) override { return inner_.Map(path); }
  Result<std::string> ReadLink(const Path& path) override { return inner_.ReadLink(path); }
  std::string BootId() override { return inner_.BootId(); }
  Result<std::unique_ptr<FileLock>> Lock(const Path& path, LockMode mode) override { return inner_.Lock(path, mode); }

  Result<std::unique_ptr<UpdateMap>> MapForUpdate(const Path& path) override {
    WW_TRY(auto map, inner_.MapForUpdate(path));
    return std::unique_ptr<UpdateMap>(std::make_unique<DyingUpdate>(std::move(map), fate_));
  }
  Result<std::unique_ptr<NewFile>> Create(const Path& path) override {
    fate_.Effect();
    WW_TRY(auto file, inner_.Create(path));
    return std::unique_ptr<NewFile>(std::make_unique<DyingFile>(std::move(file), fate_));
  }
  Result<std::unique_ptr<NewFile>> Reopen(const Path& path) override {
    fate_.Effect();
    WW_TRY(auto file, inner_.Reopen(path));
    return std::unique_ptr<NewFile>(std::make_unique<DyingFile>(std::move(file), fate_));
  }
  Result<std::unique_ptr<NewFile>> Clone(const Path& from, const Path& to) override {
    fate_.Effect();
    WW_TRY(auto file, inner_.Clone(from, to));
    return std::unique_ptr<NewFile>(std::make_unique<DyingFile>(std::move(file), fate_));
  }
  Status MakeLink(std::string_view target, const Path& path) override {
    fate_.Effect();
    return inner_.MakeLink(target, path);
  }
  Status Rename(const Path& from, const Path& to) override {
    fate_.Effect();
    return inner_.Rename(from, to);
  }
  Status Remove(const Path& path) override {
    fate_.Effect();
    return inner_.Remove(path);
  }
  Status MakeDirectory(const Path& path) override {
    fate_.Effect();
    return inner_.MakeDirectory(path);
  }
  Status RemoveDirectory(const Path& path) override {
    fate_.Effect();
    return inner_.RemoveDirectory(path);
  }
  Status SyncDirectory(const Path& directory) override {
    fate_.Effect();
    return inner_.SyncDirectory(directory);
  }

 private:
  RealFileSystem inner_;
  Fate& fate_;
};

}  // namespace
}  // namespace weightwire

int main(int argc, char** argv) {
  weightwire::Fate fate;
  weightwire::DyingFileSystem files(fate);
  weightwire::SystemClock clock;
  weightwire::SystemSleeper sleeper;
  weightwire::SystemRandom random;
  weightwire::CommandTools tools;
  tools.files = &files;
  tools.open_store = [&](const std::string& location,
                         weightwire::StoreRetries retries) -> weightwire::Result<std::unique_ptr<weightwire::Store>> {
    weightwire::OpenOptions open;
    open.clock = &clock;
    WW_TRY(auto backend, weightwire::OpenBackend(location, open));
    open.sleeper = &sleeper;
    open.random = &random;
    weightwire::SetStoreOptions(*tools.options, retries, open);
    return weightwire::WrapStore(std::make_unique<weightwire::DyingStore>(std::move(backend), fate), open);
  };
  return weightwire::RunWeightwire(argc, argv, tools);
}
