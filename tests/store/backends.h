// The back ends that the conformance suite (conformance_test.cc) runs over.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "store/credentials/credentials.h"
#include "store/store.h"

namespace weightwire::testing {

// Where objects are stored. Several stores may be opened on it, as several processes would; they see the same objects.
class TestBucket {
 public:
  TestBucket() = default;
  TestBucket(const TestBucket&) = delete;
  TestBucket& operator=(const TestBucket&) = delete;
  virtual ~TestBucket() = default;
  virtual std::shared_ptr<Store> Open() = 0;
};

struct Backend {
  std::string name;
  // A new, empty bucket, removed with the object.
  std::function<std::unique_ptr<TestBucket>()> make_bucket;
};

inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

// All that can run here: Ceph RGW only within with_rgw.
std::vector<Backend> AllBackends();

// Of the RGW that with_rgw started; empty without.
std::string RgwEndpoint();
Credentials RgwCredentials();

}  // namespace weightwire::testing
