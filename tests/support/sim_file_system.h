// A disk in memory that forgets like a real one, and processes that use it and die.
//
// SimDisk holds, of every file and directory, what a reader sees now and what is on the disk. Crash() is a power
// failure: of everything that was not synced each piece survives or not, as base/filesystem.h allows. The pieces are
// sectors of files, some torn in the middle; sizes of files; and operations on names, each whole, those on one name in
// order. Nothing depends on anything but the calls and the random numbers.
//
// SimFileSystem is one process that uses a disk. Before every effect a hook decides how it goes on. A process that died
// does nothing any more: each of its calls fails. Its locks are free. What it wrote is still there, until Crash().
//
// Thread safety: none; one thread uses a disk and its processes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/filesystem.h"
#include "base/random.h"

namespace weightwire::testing {

class SimFileSystem;

class SimDisk {
 public:
  static constexpr std::size_t kSectorBytes = 64;

  SimDisk();
  ~SimDisk();
  SimDisk(const SimDisk&) = delete;
  SimDisk& operator=(const SimDisk&) = delete;

  // The power fails and comes back. All processes are dead.
  void Crash(weightwire::Random& random);
  // Some sectors that are not on the disk yet get there, as an operating system may write them back at any time.
  void WriteBack(weightwire::Random& random);

  // All files with what a reader sees now, by their paths without a leading "/"; links as "-> target".
  [[nodiscard]] std::map<std::string, std::string> Contents() const;

 private:
  friend class SimFileSystem;
  struct Node;
  struct Pending;
  using NodePtr = std::shared_ptr<Node>;
  struct Entry {
    NodePtr directory;
    std::string name;
    NodePtr node;  // none: the name goes
  };

  NodePtr Reborn(const Node& old, weightwire::Random& random, std::uint64_t in_eight,
                 std::map<const Node*, NodePtr>& reborn) const;
  static std::vector<std::uint8_t> Remaining(const Node& file, weightwire::Random& random, std::uint64_t in_eight);

  NodePtr root_;
  std::vector<Pending> pending_;
  std::uint64_t next_pending_ = 1;
  std::uint64_t next_lock_ = 1;
  std::uint64_t boots_ = 0;
};

class SimFileSystem final : public FileSystem {
 public:
  // What comes of an effect: it happens; the process dies before it; the operating system refuses, and the process
  // lives on.
  enum class Fate : std::uint8_t { kGoOn, kDie, kRefuse };
  // `effect` is one of: create, reopen, clone, append, write, resize, sync, map, write map, sync map, link, rename,
  // remove, make directory, remove directory, sync directory, lock.
  using Hook = std::function<Fate(std::string_view effect, const Path& path)>;

  explicit SimFileSystem(SimDisk& disk, Hook hook = {});
  ~SimFileSystem() override;

  // Dies now.
  void Kill();
  [[nodiscard]] bool dead() const;
  // Effects asked for so far.
  [[nodiscard]] std::uint64_t effects() const { return effects_; }

  Result<std::optional<FileInfo>> Stat(const Path& path) override;
  Result<std::vector<std::uint8_t>> Read(const Path& path, std::uint64_t max_bytes) override;
  Result<std::vector<std::string>> List(const Path& directory) override;
  Result<std::unique_ptr<FileMap>> Map(const Path& path) override;
  Result<std::string> ReadLink(const Path& path) override;
  std::string BootId() override;

  Result<std::unique_ptr<UpdateMap>> MapForUpdate(const Path& path) override;
  Result<std::unique_ptr<NewFile>> Create(const Path& path) override;
  Result<std::unique_ptr<NewFile>> Reopen(const Path& path) override;
  Result<std::unique_ptr<NewFile>> Clone(const Path& from, const Path& to) override;
  Status MakeLink(std::string_view target, const Path& path) override;
  Status Rename(const Path& from, const Path& to) override;
  Status Remove(const Path& path) override;
  Status MakeDirectory(const Path& path) override;
  Status RemoveDirectory(const Path& path) override;
  Status SyncDirectory(const Path& directory) override;
  Result<std::unique_ptr<FileLock>> Lock(const Path& path, LockMode mode) override;

 private:
  class Map_;
  class UpdateMap_;
  class NewFile_;
  class Lock_;
  // Where a name is, and what it names, if anything.
  struct PathEntry {
    SimDisk::NodePtr directory;
    std::string name;
    SimDisk::NodePtr node;
  };

  [[nodiscard]] Status Alive() const;
  Status Ask(std::string_view effect, const Path& path);
  Result<PathEntry> Find(const Path& path, bool follow, int links = 0) const;
  Result<PathEntry> FindExisting(const Path& path, bool follow) const;
  Result<SimDisk::NodePtr> FindFile(const Path& path, bool follow) const;
  // Makes names mean something else; in one step.
  std::uint64_t Change(std::vector<SimDisk::Entry> entries, std::uint64_t needs = 0);
  Result<SimDisk::NodePtr> Add(std::string_view effect, const Path& path, FileKind kind);

  SimDisk& disk_;
  Hook hook_;
  std::uint64_t boot_;
  bool killed_ = false;
  std::uint64_t effects_ = 0;
  std::vector<std::pair<std::weak_ptr<SimDisk::Node>, std::uint64_t>> locks_;
};

}  // namespace weightwire::testing
