// Where the bits of a base copy lie: in host memory, or in a file of the state directory.
//
// Nothing here vouches for the bits: whoever opens a file digests it in full before trusting it, so nothing is synced
// and a crash in the middle of an update needs no mark of its own.
//
// Thread safety: one thread at a time writes; bytes() may be read by others when nobody does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/filesystem.h"
#include "base/result.h"
#include "tensor/layout.h"

namespace weightwire {

class BaseStorage {
 public:
  BaseStorage() = default;
  BaseStorage(const BaseStorage&) = delete;
  BaseStorage& operator=(const BaseStorage&) = delete;
  virtual ~BaseStorage() = default;

  [[nodiscard]] virtual const std::shared_ptr<const Layout>& layout() const = 0;
  [[nodiscard]] virtual std::span<const std::uint8_t> bytes(std::size_t tensor) const = 0;

  // The same bytes, to be written to now: one pointer for each tensor.
  virtual Result<std::vector<std::uint8_t*>> ForWriting() = 0;

  // Storage for another layout. A tensor that has the same name, type and shape in both keeps its bits; others begin
  // with any. The two may share memory: this one is to be dropped soon, and not to be written to any more.
  virtual Result<std::unique_ptr<BaseStorage>> Reshaped(std::shared_ptr<const Layout> after) = 0;
};

// Where storage is made: in a directory, which must exist, as base.safetensors; without one, in memory. `files` must
// outlive what is made there.
struct BaseLocation {
  FileSystem* files = nullptr;
  std::optional<FileSystem::Path> directory;
};

// Bits of a new one are unspecified. In a directory it replaces the one before once it is complete.
Result<std::unique_ptr<BaseStorage>> MakeStorage(const BaseLocation& location, std::shared_ptr<const Layout> layout);
// What an earlier process has left, if it can be read at all; its layout knows no aliases.
Result<std::unique_ptr<BaseStorage>> OpenStorage(const BaseLocation& location);

}  // namespace weightwire
