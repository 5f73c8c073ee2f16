// A server that follows a run into a mirror on its disk, and a program on the same machine that reads the mirror.
//
// The disk is honest, so a mirror must come back from every crash as a version it held or was moving to: damage, other
// bits or an older version than it was known to hold are violations. So is anything but a version's exact bits in the
// hands of a reader who was told that the reading was good.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "follow/follower.h"
#include "follow/mirror/mirror.h"
#include "follow/mirror/reader.h"
#include "sim/follower_store.h"
#include "sim/oracle.h"
#include "sim/planted.h"
#include "sim/sim_bucket.h"
#include "sim/world.h"
#include "support/sim_file_system.h"

namespace weightwire::sim {

class MirrorFollower final : public Machine {
 public:
  MirrorFollower(World& world, Bucket& bucket, Oracle& oracle, std::string name, FollowerOptions options,
                 const Planted& planted);
  ~MirrorFollower() override;

  std::vector<Process*> processes() override;
  void OnDeath(bool power_failed) override;
  void OnStart() override;

  [[nodiscard]] std::optional<Version> held() const;

 private:
  class Keeper;
  class Reader;

  [[nodiscard]] std::unique_ptr<weightwire::testing::SimFileSystem> NewProcess();
  void Follow();
  void Open();
  void TakeBack();
  // Limits it to a version, or pins it to one, which may be an earlier one than it holds.
  void Limit();
  void Unlimit();
  // The process that follows ends; the machine stays.
  void EndFollowing();
  void CheckMirror();
  void Read();
  // That the files, as anybody sees them now, are that version.
  void ExpectFiles(FileSystem& files, const std::string& who, const Held& held);

  Bucket& bucket_;
  Oracle& oracle_;
  FollowerOptions options_;
  const Planted planted_;
  SeededRandom random_;
  Id id_;
  weightwire::testing::SimDisk disk_;
  std::unique_ptr<Process> keeper_;
  std::unique_ptr<Process> reader_;

  // The process that follows.
  std::unique_ptr<weightwire::testing::SimFileSystem> files_;
  std::unique_ptr<FileSystem> faulty_files_;  // around files_
  std::unique_ptr<FollowerStore> store_;
  std::unique_ptr<Mirror> mirror_;
  std::unique_ptr<Follower> follower_;
  // The process that reads.
  std::unique_ptr<weightwire::testing::SimFileSystem> reader_files_;
  std::optional<SharedRead> reading_;

  // No version below this one may be held any more; it outlives the machine's deaths.
  std::optional<Version> floor_;
  // Limited or pinned: nor any above this one, unless it is in doubt.
  std::optional<Version> ceiling_;
  bool is_limited_ = false;
  bool in_doubt_ = false;  // its disk has failed since it last came to rest
};

}  // namespace weightwire::sim
