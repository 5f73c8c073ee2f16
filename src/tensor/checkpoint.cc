#include "tensor/checkpoint.h"

#include <fmt/format.h>

#include <cstring>
#include <set>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tensor/json.h"
#include "tensor/shard_index.h"

namespace weightwire {
namespace {

Error Mismatch(std::string message) { return {ErrorCode::kMismatch, std::move(message)}; }

bool SameBits(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  if (a.size() != b.size()) return false;
  return a.data() == b.data() || a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0;
}

CheckpointFile Describe(std::string name, const SafetensorsView& view) {
  CheckpointFile file{.name = std::move(name), .metadata = view.metadata(), .tensors = {}};
  for (const TensorView& tensor : view.tensors()) file.tensors.push_back(tensor.spec.name);
  return file;
}

// The aliases recorded in the files' metadata.
Result<Aliases> RecordedAliases(const std::vector<CheckpointFile>& files) {
  std::set<std::string_view> tensors;
  for (const CheckpointFile& file : files) tensors.insert(file.tensors.begin(), file.tensors.end());
  Aliases aliases;
  for (const CheckpointFile& file : files) {
    for (const auto& [key, value] : file.metadata) {
      if (tensors.contains(key) || !tensors.contains(value)) continue;
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

bool IsFile(const std::filesystem::path& path) {
  std::error_code ignored;  // what cannot be looked at cannot be opened either, and that error will say why
  return std::filesystem::is_regular_file(path, ignored);
}

}  // namespace

Result<Checkpoint> Checkpoint::Open(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored) ? OpenDirectory(path) : OpenFile(path);
}

Result<Checkpoint> Checkpoint::OpenFile(const std::filesystem::path& path) {
  WW_TRY(MappedFile map, MappedFile::Open(path));
  const auto view = SafetensorsView::Parse(map.bytes());
  if (!view.ok()) return view.error().In(path.string());
  auto storage = std::make_shared<Storage>();
  storage->files.push_back(Describe(path.filename().string(), view.value()));
  storage->maps.push_back(std::move(map));
  auto aliases = RecordedAliases(storage->files);
  if (!aliases.ok()) return aliases.error().In(path.string());
  auto checkpoint = Assemble(std::move(storage), view.value().tensors(), std::move(aliases).value());
  if (!checkpoint.ok()) return checkpoint.error().In(path.string());
  return checkpoint;
}

Result<Checkpoint> Checkpoint::OpenDirectory(const std::filesystem::path& directory) {
  auto storage = std::make_shared<Storage>();
  storage->directory = directory;
  WeightMap weight_map;
  std::set<std::string> names;
  if (IsFile(directory / kSingleFileName)) {
    names.insert(kSingleFileName);
  } else if (IsFile(directory / kIndexFileName)) {
    storage->has_index = true;
    WW_TRY(const MappedFile index, MappedFile::Open(directory / kIndexFileName));
    auto parsed = ParseShardIndex({reinterpret_cast<const char*>(index.bytes().data()), index.bytes().size()});
    if (!parsed.ok()) return parsed.error().In(index.path().string());
    weight_map = std::move(parsed).value();
    for (const auto& [tensor, file] : weight_map) names.insert(file);
  } else {
    return Error(ErrorCode::kNotFound, fmt::format("{} is not a checkpoint: it holds neither {} nor {}",
                                                   directory.string(), kSingleFileName, kIndexFileName));
  }

  std::vector<TensorView> tensors;
  for (const std::string& name : names) {
    WW_TRY(MappedFile map, MappedFile::Open(directory / name));
    const auto view = SafetensorsView::Parse(map.bytes());
    if (!view.ok()) return view.error().In(map.path().string());
    storage->files.push_back(Describe(name, view.value()));
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

Result<Checkpoint> Checkpoint::FromMemory(std::vector<OwnedTensor> tensors, Aliases aliases) {
  auto storage = std::make_shared<Storage>();
  storage->owned = std::move(tensors);
  std::vector<TensorView> views;
  std::vector<TensorSpec> specs;
  for (const OwnedTensor& tensor : storage->owned) {
    WW_TRY(const std::uint64_t size, CheckedByteSize(tensor.spec));
    WW_CHECK(tensor.bytes.size() == size);
    views.push_back({tensor.spec, tensor.bytes});
    specs.push_back(tensor.spec);
  }
  SortForFile(specs);
  CheckpointFile file{.name = kSingleFileName, .metadata = {aliases.begin(), aliases.end()}, .tensors = {}};
  for (TensorSpec& spec : specs) file.tensors.push_back(std::move(spec.name));
  storage->files.push_back(std::move(file));
  return Assemble(std::move(storage), views, std::move(aliases));
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
  // Every name this checkpoint has must be one of the layout, and lead to the same bits there.
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
  for (const auto& [alias, kept] : layout_.aliases()) WW_RETURN_IF_ERROR(check_name(alias, *layout_.Find(kept)));
  return view;
}

}  // namespace weightwire
