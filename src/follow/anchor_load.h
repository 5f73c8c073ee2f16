// Loads one anchor into a target, one portion per step, and checks every object's hash (spec/PROTOCOL.md, "Anchors").
//
// The target shows nothing of the load before Commit. The caller decides what happens when an object is missing or
// damaged: load the portion again, skip the object, or drop the whole load.
//
// Thread safety: one thread at a time. Uses `pool` for hashing only, within LoadPortion.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/sha256.h"
#include "base/threads.h"
#include "follow/targets/target.h"
#include "log/anchor.h"
#include "log/run.h"
#include "tensor/layout.h"

namespace weightwire {

// Where the bytes of an anchor's objects go in the files of its directory (spec/PROTOCOL.md, "Anchors"). A file that is
// an object goes there as it is; the rows of a piece, which a rank wrote of its shards, each go to their place. So
// nobody who loads an anchor knows whether one rank wrote it or many.
//
// Immutable; safe to share between threads.
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

// The result of one portion.
struct LoadedPortion {
  std::uint64_t bytes = 0;         // fetched and written to the target
  bool completes_object = false;   // it was the last portion of an object, and the object's hash is correct
  std::optional<Error> lost = {};  // kNotFound or kCorrupt: the object is missing, or its bytes are damaged
};

class AnchorLoad {
 public:
  // Begins a load into `target`. `record` and `layout` are those of the anchor's version. `target` and `pool` must
  // outlive the load.
  static Result<std::unique_ptr<AnchorLoad>> Begin(const Run& run, KnownAnchor anchor, KnownRecord record,
                                                   std::shared_ptr<const Layout> layout, Target& target,
                                                   ThreadPool& pool);

  // Fetches the next portion, at most 32 MiB, and writes it to the target. After an error nothing has changed. A
  // portion that cannot be read will be fetched again by the next call; an object with a wrong hash, from its first
  // portion. REQUIRES: !IsComplete().
  Result<LoadedPortion> LoadPortion();
  // Continues with the next object. REQUIRES: !IsComplete().
  void SkipObject();
  // Returns true once all objects were loaded or skipped.
  [[nodiscard]] bool IsComplete() const;

  // Verifies what was loaded, without changing the target. kCorrupt if its state is not the one in the record.
  // REQUIRES: IsComplete(), no object was skipped.
  Status Prepare() { return load_->Prepare(HeldOf(record_), *layout_); }
  // The bits loaded. REQUIRES: Prepare succeeded.
  [[nodiscard]] Result<StateView> View() { return load_->View(); }
  // As TargetLoad::Commit. REQUIRES: Prepare succeeded.
  Status Commit(const std::shared_ptr<const StagedChange>& change, const Held& after) {
    return load_->Commit(change, after);
  }
  // Prepares the load and makes the target hold its version.
  Status Commit() {
    WW_RETURN_IF_ERROR(Prepare());
    return Commit(nullptr, HeldOf(record_));
  }

  [[nodiscard]] const AnchorName& name() const { return anchor_.manifest.name; }
  [[nodiscard]] const KnownRecord& record() const { return record_; }
  // The key of the object that is being loaded. REQUIRES: !IsComplete().
  [[nodiscard]] std::string ObjectKey() const;

 private:
  AnchorLoad(Run run, KnownAnchor anchor, KnownRecord record, std::shared_ptr<const Layout> layout, ThreadPool& pool);
  void AddChunkHashes(std::span<const std::uint8_t> portion);

  const Run run_;
  const KnownAnchor anchor_;
  const KnownRecord record_;
  const std::shared_ptr<const Layout> layout_;
  const AnchorPlaces places_;
  ThreadPool& pool_;
  std::unique_ptr<TargetLoad> load_;

  std::size_t object_ = 0;                  // index in the manifest's files
  std::uint64_t offset_ = 0;                // bytes of the object that are loaded
  std::vector<Sha256Digest> chunk_hashes_;  // of these bytes
};

}  // namespace weightwire
