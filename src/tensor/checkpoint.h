// A checkpoint: a model's tensors with their data, from one safetensors file or from a Hugging Face directory. Files
// are mapped, not read, so a checkpoint may be larger than memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/filesystem.h"
#include "base/result.h"
#include "tensor/layout.h"
#include "tensor/safetensors.h"

namespace weightwire {

// One safetensors file of a checkpoint, as far as it matters for writing one like it.
struct CheckpointFile {
  std::string name;  // within the directory
  Metadata metadata;
  std::vector<std::string> tensors;  // in the order of the data
  // Of the file itself: its size, and where the data of each tensor begins.
  std::uint64_t size_bytes = 0;
  std::vector<std::uint64_t> offsets;
};

// Immutable, and cheap to copy: copies share the data. Safe to share between threads.
//
// The files must stay as long as they are meanwhile (see FileMap).
class Checkpoint {
 public:
  // `path` is a safetensors file, or a directory with model.safetensors, with model.safetensors.index.json and the
  // shards that it names, or with adapter_model.safetensors (PEFT). The first of these wins, as in transformers. The
  // index must agree with the shards: each tensor in the shard it says, none missing, none that it does not name.
  //
  // Tied weights: safetensors' save_model keeps one name and records the others in the file's metadata. A metadata key
  // that is no tensor of the checkpoint and whose value is one becomes an alias of the layout. Equal data is no tie.
  static Result<Checkpoint> Open(const std::filesystem::path& path);
  // The same on another file system than this machine's, which must outlive the checkpoint.
  static Result<Checkpoint> Open(FileSystem& files, const std::filesystem::path& path);

  [[nodiscard]] const Layout& layout() const { return layout_; }

  // Data of the tensor with that index in the layout; any alignment. Valid as long as this or a copy of it lives.
  // REQUIRES: index < layout().size().
  [[nodiscard]] std::span<const std::uint8_t> bytes(std::size_t index) const { return bytes_[index]; }

  // The same data seen through another layout: which of two tied names is kept may differ, and this checkpoint may hold
  // both names where `layout` has an alias, provided that their bits are equal. Recorded aliases that `layout` does not
  // know do not matter. Any other difference is kMismatch, and the error names the tensors.
  [[nodiscard]] Result<Checkpoint> ViewAs(const Layout& layout) const;

  // The files behind it, in order of their names. A view keeps those of what it is a view of.
  [[nodiscard]] const std::vector<CheckpointFile>& files() const { return storage_->files; }

  // The directory it was opened from; empty when it was one file.
  [[nodiscard]] const std::filesystem::path& directory() const { return storage_->directory; }

  // Whether the files are shards, listed in an index file.
  [[nodiscard]] bool has_index() const { return storage_->has_index; }

  // The layout as the files have it, which layout() is a view of.
  [[nodiscard]] const Layout& file_layout() const { return storage_->layout; }

 private:
  struct Storage {
    std::vector<std::unique_ptr<FileMap>> maps;
    std::vector<CheckpointFile> files;
    std::filesystem::path directory;
    bool has_index = false;
    Layout layout;
  };

  Checkpoint() = default;
  static Result<Checkpoint> OpenFile(FileSystem& files, const std::filesystem::path& path);
  static Result<Checkpoint> OpenDirectory(FileSystem& files, const std::filesystem::path& directory);
  static Result<Checkpoint> Assemble(std::shared_ptr<Storage> storage, const std::vector<TensorView>& tensors,
                                     Aliases aliases);

  std::shared_ptr<const Storage> storage_;
  Layout layout_;
  std::vector<std::span<const std::uint8_t>> bytes_;
};

inline constexpr const char* kSingleFileName = "model.safetensors";
inline constexpr const char* kAdapterFileName = "adapter_model.safetensors";  // PEFT's
inline constexpr const char* kIndexFileName = "model.safetensors.index.json";

}  // namespace weightwire
