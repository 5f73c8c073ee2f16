// What is true in a world: every state that was ever given to a publisher, and which of them each version is.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/threads.h"
#include "codec/kernels/kernels.h"
#include "follow/targets/target.h"
#include "log/record.h"
#include "sim/sim_bucket.h"
#include "sim/world.h"
#include "tensor/layout.h"

namespace weightwire::sim {

// A model's weights, by the layout.
struct Weights {
  std::shared_ptr<const Layout> layout;
  std::vector<std::vector<std::uint8_t>> tensors;

  [[nodiscard]] std::vector<std::span<const std::uint8_t>> views() const { return {tensors.begin(), tensors.end()}; }
};

class Oracle {
 public:
  // Watches the bucket for records.
  Oracle(World& world, Bucket& bucket);

  [[nodiscard]] const Kernels& kernels() const { return *kernels_; }
  [[nodiscard]] ThreadPool& pool() { return pool_; }

  // The first weights of every history.
  [[nodiscard]] Weights FirstWeights();
  // A step of training: a few weights change, or none, or (seldom) a tensor comes or goes.
  void Train(Weights& weights);

  // To be said before a publisher is given them. Their state digest.
  Sha256Digest MayBePublished(const Weights& weights);

  // Called when a version has come to be.
  std::function<void(const Record& record)> on_version;

  [[nodiscard]] std::size_t version_count() const { return versions_.size(); }
  [[nodiscard]] const Record& record(Version version) const { return versions_[version].known.record; }
  [[nodiscard]] const Weights& weights(Version version) const { return *versions_[version].weights; }
  // Whether there is that version, with a record of exactly these bytes.
  [[nodiscard]] bool HasRecord(Version version, std::string_view record_json) const;
  // Any state that was ever given to a publisher.
  [[nodiscard]] std::shared_ptr<const Weights> SomeWeights();

  // The weights of the committed version that this names; none if there is no such one.
  [[nodiscard]] std::shared_ptr<const Weights> Find(const Held& held) const;

  // That these bits are exactly the version; a violation otherwise.
  void Expect(const std::string& who, Version version, const Layout& layout,
              std::span<const std::span<const std::uint8_t>> tensors);

 private:
  struct VersionTruth {
    KnownRecord known;
    std::shared_ptr<const Weights> weights;
  };

  void OnRecord(std::string_view key, std::span<const std::uint8_t> bytes);
  // That everything a record names is there.
  void CheckComplete(const Record& record);
  // That its delta leads from the version before to it. REQUIRES: CheckComplete has found nothing.
  Status CheckDelta(const Record& record);
  // That everything an anchor's manifest names is there, and has the bits of the state it says.
  void OnManifest(std::string_view key, std::span<const std::uint8_t> bytes);

  World& world_;
  Bucket& bucket_;
  const Kernels* kernels_;
  ThreadPool pool_;
  std::map<Sha256Digest, std::shared_ptr<const Weights>> made_;
  std::vector<VersionTruth> versions_;
};

}  // namespace weightwire::sim
