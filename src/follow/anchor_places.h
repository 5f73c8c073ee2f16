// Where the bytes of an anchor's objects go in the files of its directory (spec/PROTOCOL.md, "Anchors"). A file that is
// an object goes there as it is; the rows of a piece, which a rank wrote of its shards, each go to their place. So
// nobody who loads an anchor knows whether one rank wrote it or many.
//
// Immutable; safe to share between threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "follow/targets/target.h"
#include "log/anchor.h"

namespace weightwire {

class AnchorPlaces {
 public:
  explicit AnchorPlaces(const AnchorManifest& manifest);

  // The files of the directory, for Target::BeginLoad. One put together from pieces has no hash of its own.
  [[nodiscard]] const std::vector<AnchorFile>& files() const { return files_; }

  // Bytes of an object, by its index in the manifest's files. REQUIRES: within the object.
  Status Write(TargetLoad& load, std::size_t object, std::uint64_t offset, std::span<const std::uint8_t> bytes) const;

 private:
  struct Object {
    std::size_t file = 0;               // in files_, if it is one
    std::vector<Place> places;          // otherwise; `file` counts in files_
    std::vector<std::uint64_t> starts;  // where in the object the bytes of each place begin
  };

  std::vector<AnchorFile> files_;
  std::vector<Object> objects_;
};

}  // namespace weightwire
