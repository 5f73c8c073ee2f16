// Where the bits of a base copy lie: in host memory, or in a file of the state directory.
//
// Nothing here vouches for the bits: whoever opens a file digests it in full before trusting it, so nothing is synced
// and a crash in the middle of an update needs no mark of its own.
//
// Thread safety: one thread at a time writes; bytes() may be read by others when nobody does.
#pragma once

#include <cstdint>
#include <memory>
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

// Makes storage. Bits of a new one are unspecified.
class BaseMaker {
 public:
  BaseMaker() = default;
  BaseMaker(const BaseMaker&) = delete;
  BaseMaker& operator=(const BaseMaker&) = delete;
  virtual ~BaseMaker() = default;

  virtual Result<std::unique_ptr<BaseStorage>> Make(std::shared_ptr<const Layout> layout) = 0;
  // What an earlier process has left, if it can be read at all; its layout knows no aliases.
  virtual Result<std::unique_ptr<BaseStorage>> Open() = 0;
};

class MemoryBaseMaker final : public BaseMaker {
 public:
  Result<std::unique_ptr<BaseStorage>> Make(std::shared_ptr<const Layout> layout) override;
  Result<std::unique_ptr<BaseStorage>> Open() override;
};

// base.safetensors in a directory, which must exist. A new one replaces it once it is complete.
class FileBaseMaker final : public BaseMaker {
 public:
  // `files` must outlive everything it makes.
  FileBaseMaker(FileSystem& files, FileSystem::Path directory) : files_(files), directory_(std::move(directory)) {}

  Result<std::unique_ptr<BaseStorage>> Make(std::shared_ptr<const Layout> layout) override;
  Result<std::unique_ptr<BaseStorage>> Open() override;

 private:
  FileSystem& files_;
  const FileSystem::Path directory_;
};

}  // namespace weightwire
