#include "support/sim_file_system.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/check.h"

namespace weightwire::testing {
namespace {

constexpr int kMaxLinks = 8;

Error NotThere(const FileSystem::Path& path) {
  return {ErrorCode::kNotFound, fmt::format("cannot open {}: there is none", path.string())};
}
Error Refused(std::string_view what, const FileSystem::Path& path) {
  return {ErrorCode::kIo, fmt::format("{}: {}", path.string(), what)};
}

// How much survives: mostly some of everything, sometimes all or nothing.
std::uint64_t DrawSurvival(weightwire::Random& random) {
  constexpr std::array<std::uint64_t, 6> kInEight = {0, 1, 4, 4, 7, 8};
  return kInEight[random.Below(kInEight.size())];
}

}  // namespace

// A file, directory or link: as it is seen, and as it is on the disk.
struct SimDisk::Node {
  explicit Node(FileKind node_kind) : kind(node_kind) {}

  FileKind kind;
  std::vector<std::uint8_t> data;
  std::vector<std::uint8_t> disk_data;
  std::map<std::string, NodePtr> names;
  std::map<std::string, NodePtr> disk_names;
  std::string target;  // of a link
  int maps = 0;        // while there are any, the data stays where it is
  std::map<std::uint64_t, LockMode> locks;
};

// An operation on names that is not on the disk yet.
struct SimDisk::Pending {
  std::uint64_t id = 0;
  std::uint64_t needs = 0;  // cannot be there without that one
  std::vector<Entry> entries;

  [[nodiscard]] bool Touches(const Entry& other) const {
    return std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
      return entry.directory == other.directory && entry.name == other.name;
    });
  }
  [[nodiscard]] bool DependsOn(const Pending& earlier) const {
    return needs == earlier.id ||
           std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) { return earlier.Touches(entry); });
  }
  void Sync() const {
    for (const Entry& entry : entries) {
      if (entry.node == nullptr) {
        entry.directory->disk_names.erase(entry.name);
      } else {
        entry.directory->disk_names[entry.name] = entry.node;
      }
    }
  }
};

SimDisk::SimDisk() : root_(std::make_shared<Node>(FileKind::kDirectory)) {}
SimDisk::~SimDisk() = default;

void SimDisk::Crash(weightwire::Random& random) {
  std::uint64_t in_eight = DrawSurvival(random);
  std::vector<const Pending*> lost;
  for (const Pending& operation : pending_) {
    const bool possible =
        std::none_of(lost.begin(), lost.end(), [&](const Pending* earlier) { return operation.DependsOn(*earlier); });
    if (possible && random.Below(8) < in_eight) {
      operation.Sync();
    } else {
      lost.push_back(&operation);
    }
  }
  in_eight = DrawSurvival(random);
  std::map<const Node*, NodePtr> reborn;
  root_ = Reborn(*root_, random, in_eight, reborn);
  pending_.clear();
  ++boots_;
}

// New nodes, so that maps which dead processes still hold change nothing.
SimDisk::NodePtr SimDisk::Reborn(const Node& old, weightwire::Random& random, std::uint64_t in_eight,
                                 std::map<const Node*, NodePtr>& reborn) const {
  // A file may have two names.
  if (const auto found = reborn.find(&old); found != reborn.end()) return found->second;
  auto node = std::make_shared<Node>(old.kind);
  reborn.emplace(&old, node);
  node->target = old.target;
  if (old.kind == FileKind::kFile) node->data = node->disk_data = Remaining(old, random, in_eight);
  for (const auto& [name, child] : old.disk_names) {
    node->names[name] = node->disk_names[name] = Reborn(*child, random, in_eight, reborn);
  }
  return node;
}

std::vector<std::uint8_t> SimDisk::Remaining(const Node& file, weightwire::Random& random, std::uint64_t in_eight) {
  std::vector<std::uint8_t> seen = file.data;
  std::vector<std::uint8_t> left = file.disk_data;
  if (seen.size() != left.size() && random.Below(8) < in_eight) left.resize(seen.size());
  seen.resize(left.size());
  for (std::size_t begin = 0; begin < left.size(); begin += kSectorBytes) {
    const std::size_t end = std::min(begin + kSectorBytes, left.size());
    if (std::equal(seen.begin() + static_cast<std::ptrdiff_t>(begin), seen.begin() + static_cast<std::ptrdiff_t>(end),
                   left.begin() + static_cast<std::ptrdiff_t>(begin))) {
      continue;
    }
    if (random.Below(8) >= in_eight) continue;
    const std::size_t written = in_eight < 8 && random.Below(8) == 0 ? begin + random.Below(end - begin) : end;
    std::copy(seen.begin() + static_cast<std::ptrdiff_t>(begin), seen.begin() + static_cast<std::ptrdiff_t>(written),
              left.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  return left;
}

void SimDisk::WriteBack(weightwire::Random& random) {
  const std::uint64_t in_eight = DrawSurvival(random);
  const std::function<void(Node&)> visit = [&](Node& node) {
    if (node.kind == FileKind::kFile && node.data != node.disk_data) node.disk_data = Remaining(node, random, in_eight);
    for (const auto& [name, child] : node.names) visit(*child);
  };
  visit(*root_);
}

std::map<std::string, std::string> SimDisk::Contents() const {
  std::map<std::string, std::string> contents;
  const std::function<void(const Node&, const std::string&)> visit = [&](const Node& node, const std::string& path) {
    if (node.kind == FileKind::kFile) contents[path] = {node.data.begin(), node.data.end()};
    if (node.kind == FileKind::kLink) contents[path] = "-> " + node.target;
    for (const auto& [name, child] : node.names) visit(*child, path.empty() ? name : fmt::format("{}/{}", path, name));
  };
  visit(*root_, "");
  return contents;
}

// --- what a process holds ---

class SimFileSystem::Map_ final : public FileMap {
 public:
  explicit Map_(SimDisk::NodePtr node) : node_(std::move(node)) { ++node_->maps; }
  ~Map_() override { --node_->maps; }
  [[nodiscard]] std::span<const std::uint8_t> bytes() const override { return node_->data; }

 private:
  SimDisk::NodePtr node_;
};

class SimFileSystem::UpdateMap_ final : public UpdateMap {
 public:
  UpdateMap_(SimFileSystem& files, SimDisk::NodePtr node, Path path)
      : files_(files), node_(std::move(node)), path_(std::move(path)) {
    ++node_->maps;
  }
  ~UpdateMap_() override { --node_->maps; }

  [[nodiscard]] std::uint64_t size_bytes() const override { return node_->data.size(); }
  Result<std::span<std::uint8_t>> ForWriting(std::uint64_t offset, std::uint64_t size) override {
    WW_CHECK(offset <= node_->data.size() && size <= node_->data.size() - offset);
    WW_RETURN_IF_ERROR(files_.Ask("write map", path_));
    return std::span(node_->data).subspan(offset, size);
  }
  Status Sync() override {
    WW_RETURN_IF_ERROR(files_.Ask("sync map", path_));
    node_->disk_data = node_->data;
    return Ok();
  }

 private:
  SimFileSystem& files_;
  SimDisk::NodePtr node_;
  Path path_;
};

class SimFileSystem::NewFile_ final : public NewFile {
 public:
  NewFile_(SimFileSystem& files, SimDisk::NodePtr node, Path path)
      : files_(files), node_(std::move(node)), path_(std::move(path)) {}

  Status Append(std::span<const std::uint8_t> bytes) override {
    WW_RETURN_IF_ERROR(files_.Ask("append", path_));
    Put(end_, bytes);
    end_ += bytes.size();
    return Ok();
  }
  Status WriteAt(std::uint64_t offset, std::span<const std::uint8_t> bytes) override {
    WW_RETURN_IF_ERROR(files_.Ask("write", path_));
    Put(offset, bytes);
    return Ok();
  }
  Status Resize(std::uint64_t size_bytes) override {
    WW_RETURN_IF_ERROR(files_.Ask("resize", path_));
    SetSize(size_bytes);
    return Ok();
  }
  Status Sync() override {
    WW_RETURN_IF_ERROR(files_.Ask("sync", path_));
    node_->disk_data = node_->data;
    return Ok();
  }

 private:
  void SetSize(std::uint64_t size) {
    if (size == node_->data.size()) return;
    WW_CHECK(node_->maps == 0);
    node_->data.resize(size);
  }
  void Put(std::uint64_t offset, std::span<const std::uint8_t> bytes) {
    if (offset + bytes.size() > node_->data.size()) SetSize(offset + bytes.size());
    std::copy(bytes.begin(), bytes.end(), node_->data.begin() + static_cast<std::ptrdiff_t>(offset));
  }

  SimFileSystem& files_;
  SimDisk::NodePtr node_;
  Path path_;
  std::uint64_t end_ = 0;
};

class SimFileSystem::Lock_ final : public FileLock {
 public:
  Lock_(SimDisk::NodePtr node, std::uint64_t id) : node_(std::move(node)), id_(id) {}
  ~Lock_() override { node_->locks.erase(id_); }

 private:
  SimDisk::NodePtr node_;
  std::uint64_t id_;
};

// --- a process ---

SimFileSystem::SimFileSystem(SimDisk& disk, Hook hook) : disk_(disk), hook_(std::move(hook)), boot_(disk.boots_) {}
SimFileSystem::~SimFileSystem() { Kill(); }

void SimFileSystem::Kill() {
  killed_ = true;
  for (const auto& [node, id] : locks_) {
    if (const SimDisk::NodePtr held = node.lock(); held != nullptr) held->locks.erase(id);
  }
  locks_.clear();
}

bool SimFileSystem::dead() const { return killed_ || boot_ != disk_.boots_; }

Status SimFileSystem::Alive() const {
  if (dead()) return Error(ErrorCode::kIo, "this process is dead");
  return Ok();
}

Status SimFileSystem::Ask(std::string_view effect, const Path& path) {
  WW_RETURN_IF_ERROR(Alive());
  ++effects_;
  const Fate fate = hook_ ? hook_(effect, path) : Fate::kGoOn;
  if (fate == Fate::kDie) Kill();
  WW_RETURN_IF_ERROR(Alive());
  if (fate == Fate::kRefuse) return Refused(fmt::format("the disk refuses to {}", effect), path);
  return Ok();
}

Result<SimFileSystem::PathEntry> SimFileSystem::Find(const Path& path, bool follow, int links) const {
  WW_RETURN_IF_ERROR(Alive());
  if (links > kMaxLinks) return Refused("too many links", path);
  const Path normal = path.lexically_normal().relative_path();
  PathEntry entry{nullptr, "", disk_.root_};
  Path walked;
  for (const Path& part : normal) {
    if (part.empty() || part == ".") continue;
    if (entry.node == nullptr) return NotThere(path);
    if (entry.node->kind == FileKind::kLink) {
      WW_TRY(entry, Find(walked.parent_path() / entry.node->target, true, links + 1));
    }
    if (entry.node == nullptr || entry.node->kind != FileKind::kDirectory) return NotThere(path);
    entry.directory = entry.node;
    entry.name = part.string();
    const auto found = entry.directory->names.find(entry.name);
    entry.node = found == entry.directory->names.end() ? nullptr : found->second;
    walked /= part;
  }
  if (follow && entry.node != nullptr && entry.node->kind == FileKind::kLink) {
    return Find(walked.parent_path() / entry.node->target, true, links + 1);
  }
  return entry;
}

Result<SimFileSystem::PathEntry> SimFileSystem::FindExisting(const Path& path, bool follow) const {
  WW_TRY(PathEntry entry, Find(path, follow));
  if (entry.node == nullptr) return NotThere(path);
  return entry;
}

Result<SimDisk::NodePtr> SimFileSystem::FindFile(const Path& path, bool follow) const {
  WW_TRY(const PathEntry entry, FindExisting(path, follow));
  if (entry.node->kind != FileKind::kFile) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("{} is not a regular file", path.string()));
  }
  return entry.node;
}

std::uint64_t SimFileSystem::Change(std::vector<SimDisk::Entry> entries, std::uint64_t needs) {
  for (const SimDisk::Entry& entry : entries) {
    if (entry.node == nullptr) {
      entry.directory->names.erase(entry.name);
    } else {
      entry.directory->names[entry.name] = entry.node;
    }
  }
  disk_.pending_.push_back({disk_.next_pending_, needs, std::move(entries)});
  return disk_.next_pending_++;
}

Result<SimDisk::NodePtr> SimFileSystem::Add(std::string_view effect, const Path& path, FileKind kind) {
  WW_TRY(const PathEntry entry, Find(path, false));
  if (entry.node != nullptr) {
    return Error(ErrorCode::kInvalidArgument, fmt::format("{} already exists", path.string()));
  }
  WW_RETURN_IF_ERROR(Ask(effect, path));
  auto node = std::make_shared<SimDisk::Node>(kind);
  Change({{entry.directory, entry.name, node}});
  return node;
}

Result<std::optional<FileInfo>> SimFileSystem::Stat(const Path& path) {
  WW_RETURN_IF_ERROR(Alive());
  const auto entry = Find(path, false);
  if (!entry.ok() || entry.value().node == nullptr) return std::optional<FileInfo>();
  const SimDisk::Node& node = *entry.value().node;
  return std::optional(FileInfo{node.kind, node.kind == FileKind::kFile ? node.data.size() : 0});
}

Result<std::vector<std::uint8_t>> SimFileSystem::Read(const Path& path, std::uint64_t max_bytes) {
  WW_TRY(const SimDisk::NodePtr node, FindFile(path, true));
  if (node->data.size() > max_bytes) {
    return Error(ErrorCode::kLimit, fmt::format("{} has more than {} bytes", path.string(), max_bytes));
  }
  return node->data;
}

Result<std::vector<std::string>> SimFileSystem::List(const Path& directory) {
  WW_TRY(const PathEntry entry, FindExisting(directory, true));
  if (entry.node->kind != FileKind::kDirectory) return Refused("it is not a directory", directory);
  std::vector<std::string> names;
  for (const auto& [name, node] : entry.node->names) names.push_back(name);
  return names;
}

Result<std::unique_ptr<FileMap>> SimFileSystem::Map(const Path& path) {
  WW_TRY(SimDisk::NodePtr node, FindFile(path, true));
  return std::unique_ptr<FileMap>(std::make_unique<Map_>(std::move(node)));
}

Result<std::string> SimFileSystem::ReadLink(const Path& path) {
  WW_TRY(const PathEntry entry, FindExisting(path, false));
  if (entry.node->kind != FileKind::kLink) return Refused("it is not a link", path);
  return entry.node->target;
}

std::string SimFileSystem::BootId() { return fmt::format("boot-{}", boot_); }

Result<std::unique_ptr<UpdateMap>> SimFileSystem::MapForUpdate(const Path& path) {
  WW_TRY(SimDisk::NodePtr node, FindFile(path, false));
  WW_RETURN_IF_ERROR(Ask("map", path));
  return std::unique_ptr<UpdateMap>(std::make_unique<UpdateMap_>(*this, std::move(node), path));
}

Result<std::unique_ptr<NewFile>> SimFileSystem::Create(const Path& path) {
  WW_TRY(SimDisk::NodePtr node, Add("create", path, FileKind::kFile));
  return std::unique_ptr<NewFile>(std::make_unique<NewFile_>(*this, std::move(node), path));
}

Result<std::unique_ptr<NewFile>> SimFileSystem::Reopen(const Path& path) {
  WW_TRY(SimDisk::NodePtr node, FindFile(path, false));
  WW_RETURN_IF_ERROR(Ask("reopen", path));
  return std::unique_ptr<NewFile>(std::make_unique<NewFile_>(*this, std::move(node), path));
}

Result<std::unique_ptr<NewFile>> SimFileSystem::Clone(const Path& from, const Path& to) {
  WW_TRY(const SimDisk::NodePtr source, FindFile(from, true));
  WW_TRY(SimDisk::NodePtr node, Add("clone", to, FileKind::kFile));
  node->data = source->data;
  return std::unique_ptr<NewFile>(std::make_unique<NewFile_>(*this, std::move(node), to));
}

Status SimFileSystem::MakeLink(std::string_view target, const Path& path) {
  WW_TRY(const SimDisk::NodePtr node, Add("link", path, FileKind::kLink));
  node->target = std::string(target);
  return Ok();
}

Status SimFileSystem::Rename(const Path& from, const Path& to) {
  WW_TRY(const PathEntry source, FindExisting(from, false));
  WW_TRY(const PathEntry target, Find(to, false));
  if (target.directory == nullptr || source.directory == nullptr) return Refused("it cannot be renamed", from);
  if (target.node != nullptr && target.node->kind == FileKind::kDirectory) return Refused("it is a directory", to);
  WW_RETURN_IF_ERROR(Ask("rename", to));
  if (source.directory == target.directory && source.name == target.name) return Ok();
  const SimDisk::Entry gone{source.directory, source.name, nullptr};
  const SimDisk::Entry there{target.directory, target.name, source.node};
  if (source.directory == target.directory) {
    Change({there, gone});
  } else {
    Change({gone}, Change({there}));
  }
  return Ok();
}

Status SimFileSystem::Remove(const Path& path) {
  WW_TRY(const PathEntry entry, FindExisting(path, false));
  if (entry.node->kind == FileKind::kDirectory) return Refused("it is a directory", path);
  WW_RETURN_IF_ERROR(Ask("remove", path));
  Change({{entry.directory, entry.name, nullptr}});
  return Ok();
}

Status SimFileSystem::MakeDirectory(const Path& path) {
  WW_TRY(const SimDisk::NodePtr node, Add("make directory", path, FileKind::kDirectory));
  return Ok();
}

Status SimFileSystem::RemoveDirectory(const Path& path) {
  WW_TRY(const PathEntry entry, FindExisting(path, false));
  if (entry.node->kind != FileKind::kDirectory || !entry.node->names.empty() || entry.directory == nullptr) {
    return Refused("it is not an empty directory", path);
  }
  WW_RETURN_IF_ERROR(Ask("remove directory", path));
  Change({{entry.directory, entry.name, nullptr}});
  return Ok();
}

Status SimFileSystem::SyncDirectory(const Path& directory) {
  WW_TRY(const PathEntry entry, FindExisting(directory, true));
  WW_RETURN_IF_ERROR(Ask("sync directory", directory));
  std::vector<SimDisk::Pending>& pending = disk_.pending_;
  // What is in this directory, and what that depends on, back to the oldest.
  std::vector<bool> synced(pending.size());
  for (std::size_t k = pending.size(); k-- > 0;) {
    synced[k] = synced[k] || std::any_of(pending[k].entries.begin(), pending[k].entries.end(),
                                         [&](const SimDisk::Entry& one) { return one.directory == entry.node; });
    for (std::size_t earlier = 0; synced[k] && earlier < k; ++earlier) {
      if (pending[k].DependsOn(pending[earlier])) synced[earlier] = true;
    }
  }
  std::vector<SimDisk::Pending> rest;
  for (std::size_t k = 0; k < pending.size(); ++k) {
    if (synced[k]) {
      pending[k].Sync();
    } else {
      rest.push_back(std::move(pending[k]));
    }
  }
  pending = std::move(rest);
  return Ok();
}

Result<std::unique_ptr<FileLock>> SimFileSystem::Lock(const Path& path, LockMode mode) {
  WW_TRY(PathEntry entry, Find(path, false));
  if (entry.node == nullptr && mode == LockMode::kShared) return NotThere(path);
  WW_RETURN_IF_ERROR(Ask("lock", path));
  if (entry.node == nullptr) {
    entry.node = std::make_shared<SimDisk::Node>(FileKind::kFile);
    Change({{entry.directory, entry.name, entry.node}});
  }
  for (const auto& [id, held] : entry.node->locks) {
    if (mode == LockMode::kExclusive || held == LockMode::kExclusive) {
      return Error(ErrorCode::kUnavailable, fmt::format("{} is locked by another process", path.string()));
    }
  }
  const std::uint64_t id = disk_.next_lock_++;
  entry.node->locks.emplace(id, mode);
  locks_.emplace_back(entry.node, id);
  return std::unique_ptr<FileLock>(std::make_unique<Lock_>(entry.node, id));
}

}  // namespace weightwire::testing
