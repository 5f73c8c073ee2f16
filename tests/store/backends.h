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

// One place for objects. Several stores may be opened on it, as several processes would; they see the same objects.
class Place {
 public:
  Place() = default;
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  virtual ~Place() = default;
  virtual std::shared_ptr<Store> Open() = 0;
};

struct Backend {
  std::string name;
  // A new, empty place, removed with the object.
  std::function<std::unique_ptr<Place>()> make_place;
};

inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

// All that can run here: Ceph RGW only within with_rgw.
std::vector<Backend> AllBackends();

// Of the RGW that with_rgw started; empty without.
std::string RgwEndpoint();
Credentials RgwCredentials();

}  // namespace weightwire::testing
