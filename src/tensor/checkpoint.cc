#include "tensor/checkpoint.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/bytes.h"
#include "base/real_file_system.h"
#include "tensor/json.h"
#include "tensor/shard_index.h"

namespace weightwire {
namespace {

Error Mismatch(std::string message) { return {ErrorCode::kMismatch, std::move(message)}; }

bool SameBits(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  if (a.size() != b.size()) return false;
  return a.data() == b.data() || a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0;
}

CheckpointFile Describe(std::string name, const SafetensorsView& view, std::span<const std::uint8_t> bytes) {
  CheckpointFile file{
      .name = std::move(name), .metadata = view.metadata(), .tensors = {}, .size_bytes = bytes.size(), .offsets = {}};
  for (const TensorView& tensor : view.tensors()) {
    file.tensors.push_back(tensor.spec.name);
    file.offsets.push_back(static_cast<std::uint64_t>(tensor.bytes.data() - bytes.data()));
  }
  return file;
}

// The aliases recorded in the files' metadata.
Result<Aliases> RecordedAliases(const std::vector<CheckpointFile>& files) {
  std::set<std::string_view> tensors;
  for (const CheckpointFile& file : files) tensors.insert(file.tensors.begin(), file.tensors.end());
  Aliases aliases;
  for (const CheckpointFile& file : files) {
    for (const auto& [key, value] : file.metadata) {
      if (key == "format" || tensors.contains(key) || !tensors.contains(value)) continue;
      const auto [at, is_new] = aliases.emplace(key, value);
      if (!is_new && at->second != value) {
        return Error(ErrorCode::kCorrupt, fmt::format("the metadata ties {} to {} in one shard and to {} in another",
                                                      Quoted(key), Quoted(at->second), Quoted(value)));
      }
    }
  }
  return aliases;
}

// Every tensor where the index says, none missing, none extra.
Status CheckShards(const WeightMap& weight_map, const std::vector<CheckpointFile>& shards) {
  std::unordered_set<std::string_view> found;
  for (const CheckpointFile& shard : shards) {
    for (const std::string& tensor : shard.tensors) {
      const auto entry = weight_map.find(tensor);
      if (entry == weight_map.end()) {
        return Error(ErrorCode::kCorrupt, fmt::format("{} holds tensor {}, which {} does not name", shard.name,
                                                      Quoted(tensor), kIndexFileName));
      }
      if (entry->second != shard.name) {
        return Error(ErrorCode::kCorrupt, fmt::format("{} holds tensor {}, but {} says it is in {}", shard.name,
                                                      Quoted(tensor), kIndexFileName, Quoted(entry->second)));
      }
      found.insert(tensor);
    }
  }
  for (const auto& [tensor, file] : weight_map) {
    if (!found.contains(tensor)) {
      return Error(ErrorCode::kCorrupt, fmt::format("{} says that tensor {} is in {}, but it is not", kIndexFileName,
                                                    Quoted(tensor), Quoted(file)));
    }
  }
  return Ok();
}

// The file, or nothing when there is none; a link that leads nowhere is none.
Result<std::unique_ptr<FileMap>> MapIfThere(FileSystem& files, const std::filesystem::path& path) {
  auto map = files.Map(path);
  if (map.ok() || map.error().code() != ErrorCode::kNotFound) return map;
  return std::unique_ptr<FileMap>();
}

}  // namespace

Result<Checkpoint> Checkpoint::Open(const std::filesystem::path& path) {
  RealFileSystem files;
  return Open(files, path);
}

Result<Checkpoint> Checkpoint::Open(FileSystem& files, const std::filesystem::path& path) {
  WW_TRY(const bool is_directory, IsDirectory(files, path));
  return is_directory ? OpenDirectory(files, path) : OpenFile(files, path);
}

Result<Checkpoint> Checkpoint::OpenFile(FileSystem& files, const std::filesystem::path& path) {
  WW_TRY(std::unique_ptr<FileMap> map, files.Map(path));
  const auto view = SafetensorsView::Parse(map->bytes());
  if (!view.ok()) return view.error().In(path.string());
  auto storage = std::make_shared<Storage>();
  storage->files.push_back(Describe(path.filename().string(), view.value(), map->bytes()));
  storage->maps.push_back(std::move(map));
  auto aliases = RecordedAliases(storage->files);
  if (!aliases.ok()) return aliases.error().In(path.string());
  auto checkpoint = Assemble(std::move(storage), view.value().tensors(), std::move(aliases).value());
  if (!checkpoint.ok()) return checkpoint.error().In(path.string());
  return checkpoint;
}

Result<Checkpoint> Checkpoint::OpenDirectory(FileSystem& files, const std::filesystem::path& directory) {
  auto storage = std::make_shared<Storage>();
  storage->directory = directory;
  WeightMap weight_map;
  std::map<std::string, std::unique_ptr<FileMap>> maps;
  WW_TRY(std::unique_ptr<FileMap> single, MapIfThere(files, directory / kSingleFileName));
  WW_TRY(const std::unique_ptr<FileMap> index, MapIfThere(files, directory / kIndexFileName));
  if (single != nullptr) {
    maps.emplace(kSingleFileName, std::move(single));
  } else if (index == nullptr) {
    WW_TRY(std::unique_ptr<FileMap> adapter, MapIfThere(files, directory / kAdapterFileName));
    if (adapter == nullptr) {
      return Error(ErrorCode::kNotFound,
                   fmt::format("{} is not a checkpoint: it holds neither {} nor {} nor {}", directory.string(),
                               kSingleFileName, kIndexFileName, kAdapterFileName));
    }
    maps.emplace(kAdapterFileName, std::move(adapter));
  } else {
    storage->has_index = true;
    auto parsed = ParseShardIndex(TextOf(index->bytes()));
    if (!parsed.ok()) return parsed.error().In((directory / kIndexFileName).string());
    weight_map = std::move(parsed).value();
    for (const auto& [tensor, file] : weight_map) {
      if (maps.contains(file)) continue;
      WW_TRY(std::unique_ptr<FileMap> map, files.Map(directory / file));
      maps.emplace(file, std::move(map));
    }
  }

  std::vector<TensorView> tensors;
  for (auto& [name, map] : maps) {
    const auto view = SafetensorsView::Parse(map->bytes());
    if (!view.ok()) return view.error().In((directory / name).string());
    storage->files.push_back(Describe(name, view.value(), map->bytes()));
    storage->maps.push_back(std::move(map));
    tensors.insert(tensors.end(), view.value().tensors().begin(), view.value().tensors().end());
  }
  if (storage->has_index) {
    const Status agree = CheckShards(weight_map, storage->files);
    if (!agree.ok()) return agree.error().In(directory.string());
  }
  auto aliases = RecordedAliases(storage->files);
  if (!aliases.ok()) return aliases.error().In(directory.string());
  auto checkpoint = Assemble(std::move(storage), tensors, std::move(aliases).value());
  if (!checkpoint.ok()) return checkpoint.error().In(directory.string());
  return checkpoint;
}

Result<Checkpoint> Checkpoint::Assemble(std::shared_ptr<Storage> storage, const std::vector<TensorView>& tensors,
                                        Aliases aliases) {
  std::vector<TensorSpec> specs;
  std::unordered_map<std::string_view, std::span<const std::uint8_t>> bytes;
  for (const TensorView& tensor : tensors) {
    specs.push_back(tensor.spec);
    bytes.emplace(tensor.spec.name, tensor.bytes);
  }
  Checkpoint checkpoint;
  WW_TRY(checkpoint.layout_, Layout::Make(std::move(specs), std::move(aliases)));
  storage->layout = checkpoint.layout_;
  for (const TensorSpec& spec : checkpoint.layout_.tensors()) checkpoint.bytes_.push_back(bytes.at(spec.name));
  checkpoint.storage_ = std::move(storage);
  return checkpoint;
}

Result<Checkpoint> Checkpoint::ViewAs(const Layout& layout) const {
  Checkpoint view;
  view.storage_ = storage_;
  view.layout_ = layout;
  for (const TensorSpec& wanted : layout.tensors()) {
    const auto index = layout_.Resolve(wanted.name);
    if (!index) return Mismatch(fmt::format("the checkpoint has no tensor {}", Quoted(wanted.name)));
    const TensorSpec& held = layout_.tensors()[*index];
    if (held.dtype != wanted.dtype || held.shape != wanted.shape) {
      return Mismatch(fmt::format("tensor {} is {} in the checkpoint, but should be {}", Quoted(wanted.name),
                                  weightwire::Describe(held), weightwire::Describe(wanted)));
    }
    view.bytes_.push_back(bytes_[*index]);
  }
  // Every tensor this checkpoint has must be one of the layout, and every name lead to the same bits there.
  const auto check_name = [&](const std::string& name, std::size_t index) -> Status {
    const auto there = layout.Resolve(name);
    if (!there) return Mismatch(fmt::format("the checkpoint has tensor {}, which should not be there", Quoted(name)));
    const TensorSpec& held = layout_.tensors()[index];
    const TensorSpec& wanted = layout.tensors()[*there];
    if (held.dtype != wanted.dtype || held.shape != wanted.shape || !SameBits(bytes_[index], view.bytes_[*there])) {
      return Mismatch(fmt::format("{} and {} should be one tied tensor, but they differ in the checkpoint",
                                  Quoted(name), Quoted(wanted.name)));
    }
    return Ok();
  };
  for (std::size_t i = 0; i < layout_.size(); ++i) WW_RETURN_IF_ERROR(check_name(layout_.tensors()[i].name, i));
  for (const auto& [alias, kept] : layout_.aliases()) {
    // A further name that nobody else knows takes nothing from anybody.
    if (layout.Resolve(alias).has_value()) WW_RETURN_IF_ERROR(check_name(alias, *layout_.Find(kept)));
  }
  return view;
}

}  // namespace weightwire
