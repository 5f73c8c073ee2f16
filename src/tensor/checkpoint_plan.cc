#include "tensor/checkpoint_plan.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <utility>

#include "tensor/shard_index.h"

namespace weightwire {
namespace {

void Add(PlannedFile& file, const Layout& layout, std::size_t index, std::string tensor_name) {
  TensorSpec spec = layout.tensors()[index];
  spec.name = std::move(tensor_name);
  file.specs.push_back(std::move(spec));
  file.sources.push_back(index);
}

}  // namespace

CheckpointPlan PlanLike(const Checkpoint& like, const Layout& layout) {
  struct Written {
    std::size_t file;
    std::string name;
  };
  CheckpointPlan plan;
  std::map<std::size_t, int> held;  // by index in the layout: under how many names
  for (const CheckpointFile& file : like.files()) {
    for (const std::string& name : file.tensors) {
      if (const auto index = layout.Resolve(name); index.has_value()) ++held[*index];
    }
  }
  std::map<std::size_t, Written> first_written;  // by index in the layout
  std::set<std::string> covered;                 // names that are written, or recorded as an alias of one that is
  for (const CheckpointFile& file : like.files()) {
    PlannedFile planned{.name = file.name, .metadata = file.metadata, .specs = {}, .sources = {}};
    for (const std::string& name : file.tensors) {
      const auto index = layout.Resolve(name);
      if (!index) continue;
      // A tensor is written under all names that it has there. If that is one, it is the name that the layout keeps.
      const std::string& written = held[*index] == 1 ? layout.tensors()[*index].name : name;
      Add(planned, layout, *index, written);
      first_written.emplace(*index, Written{plan.size(), written});
      covered.insert(written);
    }
    plan.push_back(std::move(planned));
  }
  // An index of no shards is a checkpoint, too.
  if (plan.empty() && layout.size() > 0) {
    plan.push_back({.name = kSingleFileName, .metadata = CheckpointOptions().metadata, .specs = {}, .sources = {}});
  }

  // Recorded aliases stay where they still hold, and where neither layout knows them.
  for (PlannedFile& file : plan) {
    std::erase_if(file.metadata, [&](const auto& entry) {
      const auto& [alias, kept] = entry;
      const auto recorded = like.file_layout().aliases().find(alias);
      if (recorded == like.file_layout().aliases().end() || recorded->second != kept) return false;
      const bool unknown = !like.layout().Resolve(alias).has_value() && !layout.Resolve(alias).has_value();
      const bool holds = covered.contains(kept) && (unknown || layout.Resolve(alias) == layout.Resolve(kept));
      if (holds) covered.insert(alias);
      return !holds;
    });
  }

  for (std::size_t i = 0; i < layout.size(); ++i) {
    if (first_written.contains(i)) continue;
    const std::string& name = layout.tensors()[i].name;
    Add(plan.back(), layout, i, name);
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

CheckpointPlan PlanFresh(const Layout& layout, const CheckpointOptions& options) {
  std::vector<std::vector<TensorSpec>> shards(1);
  std::uint64_t shard_bytes = 0;
  for (std::size_t i = 0; i < layout.size(); ++i) {
    if (!options.adapter && !shards.back().empty() && shard_bytes + layout.byte_size(i) > options.max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += layout.byte_size(i);
    shards.back().push_back(layout.tensors()[i]);
  }
  CheckpointPlan plan;
  std::vector<std::size_t> file_of(layout.size());
  for (std::size_t s = 0; s < shards.size(); ++s) {
    PlannedFile file{
        .name = options.adapter      ? kAdapterFileName
                : shards.size() == 1 ? kSingleFileName
                                     : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size()),
        .metadata = options.metadata,
        .specs = {},
        .sources = {},
    };
    SortForFile(shards[s]);
    for (TensorSpec& spec : shards[s]) {
      const std::size_t index = *layout.Find(spec.name);
      file_of[index] = s;
      Add(file, layout, index, std::move(spec.name));
    }
    plan.push_back(std::move(file));
  }
  for (const auto& [alias, kept] : layout.aliases()) plan[file_of[*layout.Find(kept)]].metadata[alias] = kept;
  return plan;
}

std::string IndexText(const CheckpointPlan& plan) {
  WeightMap weight_map;
  std::uint64_t total_bytes = 0;
  for (const PlannedFile& file : plan) {
    for (const TensorSpec& spec : file.specs) {
      weight_map.emplace(spec.name, file.name);
      total_bytes += CheckedByteSize(spec).value();
    }
  }
  return ShardIndexText(weight_map, total_bytes);
}

}  // namespace weightwire
