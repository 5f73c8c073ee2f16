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

class MemoryBucket final : public TestBucket {
 public:
  std::shared_ptr<Store> Open() override { return store_; }

 private:
  SystemClock clock_;
  std::shared_ptr<Store> store_ = std::make_shared<MemoryStore>(&clock_);
};

class FileBucket final : public TestBucket {
 public:
  std::shared_ptr<Store> Open() override { return std::make_shared<FileStore>(directory_ / "run", "file:///run"); }

 private:
  TemporaryDirectory directory_;
};

// All wrappers around a store in memory.
class WrappedBucket final : public TestBucket {
 public:
  WrappedBucket() {
    OpenOptions options;
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

class FakeS3Bucket final : public TestBucket {
 public:
  explicit FakeS3Bucket(FakeS3::Kind kind) : s3_(kind) {}
  std::shared_ptr<Store> Open() override { return s3_.Open(); }

 private:
  FakeS3 s3_;
};

// A prefix of its own in the bucket of the Ceph RGW that with_rgw started.
class RgwBucket final : public TestBucket {
 public:
  enum class Lists { kFlat, kByFolder };

  explicit RgwBucket(Lists lists) {
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

std::string RgwEndpoint() { return Variable("WW_TEST_S3_ENDPOINT"); }

Credentials RgwCredentials() {
  return {Variable("WW_TEST_S3_ACCESS_KEY"), Secret(Variable("WW_TEST_S3_SECRET_KEY")), Secret(), {}};
}

std::vector<Backend> AllBackends() {
  std::vector<Backend> backends = {
      {"memory", [] { return std::make_unique<MemoryBucket>(); }},
      {"file", [] { return std::make_unique<FileBucket>(); }},
      {"wrapped", [] { return std::make_unique<WrappedBucket>(); }},
      {"s3", [] { return std::make_unique<FakeS3Bucket>(FakeS3::Kind::kPlain); }},
      {"hf", [] { return std::make_unique<FakeS3Bucket>(FakeS3::Kind::kHuggingFace); }},
  };
  if (!RgwEndpoint().empty()) {
    backends.push_back({"rgw", [] { return std::make_unique<RgwBucket>(RgwBucket::Lists::kFlat); }});
    backends.push_back({"rgw_by_folder", [] { return std::make_unique<RgwBucket>(RgwBucket::Lists::kByFolder); }});
  }
  return backends;
}

}  // namespace weightwire::testing
