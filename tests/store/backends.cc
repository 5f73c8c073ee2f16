#include "store/backends.h"

#include <cstdlib>

#include "base/random.h"
#include "store/backends/file_store.h"
#include "store/backends/s3_store.h"
#include "store/fake_s3.h"
#include "store/open.h"
#include "support/memory_store.h"
#include "support/temporary_directory.h"

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

// All wrappers around a store in memory.
class WrappedPlace final : public Place {
 public:
  WrappedPlace() {
    WrapOptions options;
    options.clock = &clock_;
    options.sleeper = &sleeper_;
    options.random = &random_;
    options.limits = {.bytes_per_second = std::uint64_t{1} << 40, .requests_at_once = 3};
    store_ = WrapStore(std::make_unique<MemoryStore>(&clock_), options);
  }
  std::shared_ptr<Store> Open() override { return store_; }

 private:
  SystemClock clock_;
  SystemSleeper sleeper_;
  SystemRandom random_;
  std::shared_ptr<Store> store_;
};

class FakeS3Place final : public Place {
 public:
  explicit FakeS3Place(FakeS3::Kind kind) : s3_(kind) {}
  std::shared_ptr<Store> Open() override { return s3_.Open(); }

 private:
  FakeS3 s3_;
};

// A prefix of its own in the bucket of the Ceph RGW that with_rgw started.
class RgwPlace final : public Place {
 public:
  enum class Lists { kFlat, kByFolder };

  explicit RgwPlace(Lists lists) {
    options_.service.endpoint = RgwEndpoint();
    options_.service.lists_by_folder = lists == Lists::kByFolder;
    options_.bucket = "weightwire-test";
    options_.prefix = "runs/" + SystemRandom().Hex128();
    options_.name = "s3://weightwire-test/" + options_.prefix;
    options_.credentials = std::make_shared<FixedCredentials>(RgwCredentials());
    EXPECT_TRUE(S3Store(options_, &FakeS3::clock()).CreateBucket().ok());
  }
  std::shared_ptr<Store> Open() override { return std::make_shared<S3Store>(options_, &FakeS3::clock()); }

 private:
  S3Options options_;
};

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string RgwEndpoint() { return Variable("WEIGHTWIRE_TEST_S3_ENDPOINT"); }

Credentials RgwCredentials() {
  return {Variable("WEIGHTWIRE_TEST_S3_ACCESS_KEY"), Secret(Variable("WEIGHTWIRE_TEST_S3_SECRET_KEY")), Secret(), {}};
}

std::vector<Backend> AllBackends() {
  std::vector<Backend> backends = {
      {"memory", [] { return std::make_unique<MemoryPlace>(); }},
      {"file", [] { return std::make_unique<FilePlace>(); }},
      {"wrapped", [] { return std::make_unique<WrappedPlace>(); }},
      {"s3", [] { return std::make_unique<FakeS3Place>(FakeS3::Kind::kPlain); }},
      {"hf", [] { return std::make_unique<FakeS3Place>(FakeS3::Kind::kHuggingFace); }},
  };
  if (!RgwEndpoint().empty()) {
    backends.push_back({"rgw", [] { return std::make_unique<RgwPlace>(RgwPlace::Lists::kFlat); }});
    backends.push_back({"rgw_by_folder", [] { return std::make_unique<RgwPlace>(RgwPlace::Lists::kByFolder); }});
  }
  return backends;
}

}  // namespace weightwire::testing
