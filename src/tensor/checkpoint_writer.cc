#include "tensor/checkpoint_writer.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file.h"
#include "tensor/carried_files.h"
#include "tensor/shard_index.h"

namespace weightwire {
namespace {

namespace fs = std::filesystem;

// A file to be written: its tensors under the names they get, with where each one's data comes from.
struct PlannedFile {
  std::string name;
  Metadata metadata;
  std::vector<TensorSpec> specs;
  std::vector<std::size_t> sources;  // indices in the layout, one per spec

  void Add(const Layout& layout, std::size_t index, std::string tensor_name) {
    TensorSpec spec = layout.tensors()[index];
    spec.name = std::move(tensor_name);
    specs.push_back(std::move(spec));
    sources.push_back(index);
  }
};

using Plan = std::vector<PlannedFile>;

Plan PlanLike(const Checkpoint& like, const Layout& layout) {
  struct Written {
    std::size_t file;
    std::string name;
  };
  Plan plan;
  std::map<std::size_t, Written> first_written;  // by index in the layout
  std::set<std::string> covered;                 // names that are written, or recorded as an alias of one that is
  for (const CheckpointFile& file : like.files()) {
    PlannedFile planned{.name = file.name, .metadata = file.metadata, .specs = {}, .sources = {}};
    for (const std::string& name : file.tensors) {
      const auto index = layout.Resolve(name);
      if (!index) continue;
      planned.Add(layout, *index, name);
      first_written.emplace(*index, Written{plan.size(), name});
      covered.insert(name);
    }
    plan.push_back(std::move(planned));
  }

  // Recorded aliases stay where they still hold.
  for (PlannedFile& file : plan) {
    std::erase_if(file.metadata, [&](const auto& entry) {
      const auto& [alias, kept] = entry;
      const auto recorded = like.file_layout().aliases().find(alias);
      if (recorded == like.file_layout().aliases().end() || recorded->second != kept) return false;
      const bool holds = covered.contains(kept) && layout.Resolve(alias) == layout.Resolve(kept);
      if (holds) covered.insert(alias);
      return !holds;
    });
  }

  for (std::size_t i = 0; i < layout.size(); ++i) {
    if (first_written.contains(i)) continue;
    const std::string& name = layout.tensors()[i].name;
    plan.back().Add(layout, i, name);
    first_written.emplace(i, Written{plan.size() - 1, name});
    covered.insert(name);
  }
  const auto record = [&](const std::string& name, std::size_t index) {
    if (covered.contains(name)) return;
    const Written& written = first_written.at(index);
    plan[written.file].metadata[name] = written.name;
  };
  for (std::size_t i = 0; i < layout.size(); ++i) record(layout.tensors()[i].name, i);
  for (const auto& [alias, kept] : layout.aliases()) record(alias, *layout.Find(kept));
  return plan;
}

Plan PlanFresh(const Layout& layout, const CheckpointOptions& options) {
  std::vector<std::vector<TensorSpec>> shards(1);
  std::uint64_t shard_bytes = 0;
  for (std::size_t i = 0; i < layout.size(); ++i) {
    if (!shards.back().empty() && shard_bytes + layout.byte_size(i) > options.max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += layout.byte_size(i);
    shards.back().push_back(layout.tensors()[i]);
  }
  Plan plan;
  std::vector<std::size_t> file_of(layout.size());
  for (std::size_t s = 0; s < shards.size(); ++s) {
    PlannedFile file{
        .name = shards.size() == 1 ? kSingleFileName
                                   : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size()),
        .metadata = options.metadata,
        .specs = {},
        .sources = {},
    };
    SortForFile(shards[s]);
    for (TensorSpec& spec : shards[s]) {
      const std::size_t index = *layout.Find(spec.name);
      file_of[index] = s;
      file.Add(layout, index, std::move(spec.name));
    }
    plan.push_back(std::move(file));
  }
  for (const auto& [alias, kept] : layout.aliases()) plan[file_of[*layout.Find(kept)]].metadata[alias] = kept;
  return plan;
}

Status WriteFile(const PlannedFile& file, const Layout& layout, const fs::path& path, const TensorSource& data) {
  WW_TRY(SafetensorsWriter writer, SafetensorsWriter::Create(path, file.specs, file.metadata));
  const TensorSink sink = [&](std::span<const std::uint8_t> bytes) { return writer.Append(bytes); };
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < file.specs.size(); ++i) {
    WW_RETURN_IF_ERROR(data(file.sources[i], sink));
    expected += layout.byte_size(file.sources[i]);
    // A source that gives too little of one tensor and too much of the next would shift everything between.
    WW_CHECK(writer.position() == expected);
  }
  return writer.Finish();
}

Status WriteText(const fs::path& path, std::string_view text) {
  WW_TRY(const File file, File::Create(path));
  WW_RETURN_IF_ERROR(file.WriteAt(0, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}));
  return file.Sync();
}

Status WriteIndex(const Plan& plan, const fs::path& path) {
  WeightMap weight_map;
  std::uint64_t total_bytes = 0;
  for (const PlannedFile& file : plan) {
    for (const TensorSpec& spec : file.specs) {
      weight_map.emplace(spec.name, file.name);
      total_bytes += CheckedByteSize(spec).value();
    }
  }
  return WriteText(path, ShardIndexText(weight_map, total_bytes));
}

// "out/" and "out" mean the same directory, but only the second has "out" for its last part.
fs::path WithoutTrailingSlash(const fs::path& path) {
  return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

// Something under a temporary name beside the output, removed unless it gets the output's name.
class StagedOutput {
 public:
  explicit StagedOutput(fs::path output) : output_(std::move(output)), temporary_(TemporarySibling(output_)) {}
  StagedOutput(const StagedOutput&) = delete;
  StagedOutput& operator=(const StagedOutput&) = delete;
  ~StagedOutput() {
    std::error_code ignored;
    if (pending_) fs::remove_all(temporary_, ignored);
  }

  [[nodiscard]] const fs::path& path() const { return temporary_; }

  // Early, so that hours of writing do not end in a refusal; Commit decides.
  [[nodiscard]] Status CheckNameIsFree() const {
    std::error_code ignored;
    if (fs::symlink_status(output_, ignored).type() == fs::file_type::not_found) return Ok();
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} already exists; remove it or choose another name", output_.string()));
  }

  [[nodiscard]] Status CreateDirectory() const {
    std::error_code error;
    if (fs::create_directory(temporary_, error)) return Ok();
    return Error(ErrorCode::kIo, fmt::format("cannot create {}: {}", output_.string(), error.message()));
  }

  Status Commit() {
    WW_RETURN_IF_ERROR(Rename(temporary_, output_, Existing::kRefuse));
    pending_ = false;
    return Ok();
  }

 private:
  fs::path output_;
  fs::path temporary_;
  bool pending_ = true;
};

}  // namespace

TensorSource DataOf(const Checkpoint& checkpoint) {
  return [&checkpoint](std::size_t index, const TensorSink& sink) { return sink(checkpoint.bytes(index)); };
}

Status WriteCheckpointLike(const Checkpoint& like, const Layout& layout, const fs::path& output,
                           const TensorSource& data) {
  const Plan plan = PlanLike(like, layout);
  StagedOutput staged(WithoutTrailingSlash(output));
  WW_RETURN_IF_ERROR(staged.CheckNameIsFree());
  if (like.directory().empty()) {
    const Status written = WriteFile(plan.front(), layout, staged.path(), data);
    if (!written.ok()) return written.error().In("cannot write " + output.string());
    return staged.Commit();
  }
  WW_RETURN_IF_ERROR(staged.CreateDirectory());
  WW_RETURN_IF_ERROR(CopyCarriedFiles(like.directory(), staged.path()));
  for (const PlannedFile& file : plan) WW_RETURN_IF_ERROR(WriteFile(file, layout, staged.path() / file.name, data));
  if (like.has_index()) {
    // The same tensors in the same shards: the index still holds, with whatever else it says.
    const bool unchanged = like.layout() == layout;
    WW_RETURN_IF_ERROR(unchanged ? CopyFile(like.directory() / kIndexFileName, staged.path() / kIndexFileName)
                                 : WriteIndex(plan, staged.path() / kIndexFileName));
  }
  WW_RETURN_IF_ERROR(SyncDirectory(staged.path()));
  return staged.Commit();
}

Status WriteCheckpoint(const Layout& layout, const fs::path& output, const CheckpointOptions& options,
                       const TensorSource& data) {
  const Plan plan = PlanFresh(layout, options);
  StagedOutput staged(WithoutTrailingSlash(output));
  WW_RETURN_IF_ERROR(staged.CheckNameIsFree());
  WW_RETURN_IF_ERROR(staged.CreateDirectory());
  for (const PlannedFile& file : plan) WW_RETURN_IF_ERROR(WriteFile(file, layout, staged.path() / file.name, data));
  if (plan.size() > 1) WW_RETURN_IF_ERROR(WriteIndex(plan, staged.path() / kIndexFileName));
  WW_RETURN_IF_ERROR(SyncDirectory(staged.path()));
  return staged.Commit();
}

}  // namespace weightwire
