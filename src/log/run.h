// A run in a store: opening one, making one, and reading what its versions consist of.
//
// Everything that is read is checked before it is returned: limits, types, that it belongs to this run and lies where
// it says (spec/PROTOCOL.md, "Duties of a reader"). What needs two objects to be compared, such as a record and its
// parent, is the caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "log/anchor.h"
#include "log/lease.h"
#include "log/mark.h"
#include "log/record.h"
#include "log/run_manifest.h"
#include "store/store.h"
#include "tensor/layout.h"

namespace weightwire {

// An anchor that is complete, with the SHA-256 of its manifest's bytes.
struct KnownAnchor {
  AnchorManifest manifest;
  Sha256Digest hash{};

  [[nodiscard]] AnchorRef Ref() const { return {manifest.name, manifest.TotalBytes(), hash}; }
};

// A lease as it lies in the store.
struct KnownLease {
  Lease lease;
  WallTime last_modified;
};

// A mark as it lies in the store.
struct KnownMark {
  Mark mark;
  WallTime last_modified;
};

// All leases that may be active, as of one moment.
struct ActiveLeases {
  std::vector<KnownLease> leases;
  // Objects among the leases that cannot be read, and are young enough to be active.
  std::vector<ObjectInfo> damaged;
  WallTime store_now;  // of just before
};

// Immutable, and cheap to copy. The store must outlive it. Thread safety: that of the store.
class Run {
 public:
  // kNotFound if there is no run; kUnsupported if reading it takes features that are not known here.
  static Result<Run> Open(Store& store);

  // Makes a run, or opens it if there is one. `single_writer` is recorded.
  static Result<Run> Create(Store& store, bool single_writer, Random& random);

  [[nodiscard]] Store& store() const { return *store_; }
  [[nodiscard]] const RunManifest& manifest() const { return manifest_; }
  // The id that every object of the run carries.
  [[nodiscard]] const Id& id() const { return manifest_.run; }

  // Whether this weightwire may write to it: kUnsupported, naming the feature that it lacks.
  [[nodiscard]] Status CheckMayWrite() const;

  // The record of a version; nothing if the version does not exist (yet).
  [[nodiscard]] Result<std::optional<KnownRecord>> ReadRecord(Version version) const;

  // The newest version; nothing if the run has none. Costs two requests and about two more each time the distance from
  // `known`, a version known to exist, doubles.
  [[nodiscard]] Result<std::optional<KnownRecord>> FindNewest(std::optional<Version> known) const;
  // The same, only by whether records exist: for runs with damaged records.
  [[nodiscard]] Result<std::optional<Version>> FindNewestNumber() const;

  // The bytes of a part, `threads` requests at a time. kCorrupt if they are not those that the record names. A large
  // part is asked for its size before memory is taken, which a request more costs little.
  [[nodiscard]] Result<std::vector<std::uint8_t>> ReadPart(const PartRef& part, std::size_t threads) const;

  [[nodiscard]] Result<Layout> ReadLayout(const Sha256Digest& hash) const;
  // Stores it unless it is there.
  [[nodiscard]] Status PutLayout(const Layout& layout) const;

  // kNotFound if the anchor is not complete, or gone.
  [[nodiscard]] Result<KnownAnchor> ReadAnchor(const AnchorName& name) const;
  // Complete anchors of versions from `from` on, as far as their keys tell: newest last.
  [[nodiscard]] Result<std::vector<AnchorName>> ListAnchors(Version from) const;

  // Reads the leases that gc must respect. Costs one request for every lease that may be active, however many followers
  // came and went.
  [[nodiscard]] Result<ActiveLeases> ReadActiveLeases() const;
  // Leases that can be read, dead ones too, for people; others are passed over, and `damaged` counts them.
  [[nodiscard]] Result<std::vector<KnownLease>> ReadLeases(std::uint64_t* damaged) const;
  [[nodiscard]] Status PutLease(const Lease& lease) const;
  [[nodiscard]] Status RemoveLease(const Id& follower) const;

  // All marks. One that cannot be read is an error: it may name anything.
  // Those `known` from before are not fetched again: a mark never changes.
  [[nodiscard]] Result<std::vector<Mark>> ReadMarks(std::span<const Mark> known = {}) const;
  [[nodiscard]] Result<std::vector<KnownMark>> ReadMarksWithTimes(std::span<const Mark> known = {}) const;

 private:
  // The last version that exists, asking `exists` a few times. REQUIRES: `first` exists; versions are contiguous.
  [[nodiscard]] Result<Version> FindLast(Version first, const std::function<Result<bool>(Version)>& exists) const;
  [[nodiscard]] Result<Lease> ReadLease(const std::string& key) const;
  // Nothing if it is gone.
  [[nodiscard]] Result<std::optional<Mark>> ReadMark(const std::string& key) const;

  Run(Store& store, RunManifest manifest) : store_(&store), manifest_(std::move(manifest)) {}

  Store* store_;
  RunManifest manifest_;
};

// Whether a record names that anchor with another hash: its anchor.json is not the one that the record's writer saw.
[[nodiscard]] bool Contradicts(const Record& record, const KnownAnchor& anchor);

// Whether the anchor is of the version's state, by its record. Readers take no other.
[[nodiscard]] bool HasStateOf(const Record& record, const KnownAnchor& anchor);

// Checks that `next` is the version after `before` and was made from it; kCorrupt otherwise. Compares the parent's hash
// and the sum of `delta_bytes`. A version with a delta must have the chain of `before`, one with an empty delta also
// its state and layout.
Status CheckFollows(const KnownRecord& before, const KnownRecord& next);

}  // namespace weightwire
