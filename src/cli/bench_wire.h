// weightwire bench wire: what a version costs a trainer, a bucket and a mirror on this machine, each beside its floor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/filesystem.h"
#include "base/result.h"

namespace weightwire {

inline constexpr std::size_t kLeastWireRounds = 3;

struct BenchWireOptions {
  // Where states, bucket and mirror lie while it runs; the system's directory for temporary files if none.
  std::optional<std::filesystem::path> directory;
  // An s3:// URL, to measure transfers against curl; they are left out if none.
  std::optional<std::string> store;
  std::uint64_t model_megabytes = 1200;
  std::uint64_t part_mebibytes = 256;
  std::uint64_t late_versions = 100;
  std::size_t repeat = 7;
  std::size_t threads = 0;
  bool json = false;
};

Status RunBenchWire(const BenchWireOptions& options, FileSystem& files);

}  // namespace weightwire
