// A directory that is removed, with everything in it, at the end.
#pragma once

#include <filesystem>
#include <utility>

#include "base/filesystem.h"

namespace weightwire {

// The path need not exist yet. What cannot be removed stays.
class TemporaryDirectory {
 public:
  TemporaryDirectory(FileSystem& files, std::filesystem::path path) : files_(files), path_(std::move(path)) {}
  ~TemporaryDirectory() { static_cast<void>(RemoveTree(files_, path_)); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  FileSystem& files_;
  std::filesystem::path path_;
};

}  // namespace weightwire
