#include "cli/digest.h"

#include <fmt/format.h>

#include "cli/format_numbers.h"
#include "cli/json_output.h"
#include "cli/load.h"
#include "cli/text_table.h"
#include "codec/digest/state.h"

namespace weightwire {
namespace {

void ReportJson(const Layout& layout, const std::vector<Digest>& digests, const DigestOptions& options) {
  JsonOutput json;
  json["state"] = ToHex(StateDigest(layout, digests));
  json["layout"] = ToHex(layout.hash());
  json["tensors"] = layout.size();
  json["model_bytes"] = layout.total_bytes();
  if (!layout.aliases().empty()) json["aliases"] = layout.aliases();
  if (options.tensors) {
    json["per_tensor"] = JsonOutput::array();
    for (std::size_t i = 0; i < layout.size(); ++i) {
      const TensorSpec& spec = layout.tensors()[i];
      json["per_tensor"].push_back(JsonOutput{
          {"name", spec.name}, {"dtype", NameOf(spec.dtype)}, {"shape", spec.shape}, {"digest", digests[i].ToHex()}});
    }
  }
  PrintJson(json);
}

void ReportText(const Layout& layout, const std::vector<Digest>& digests, const DigestOptions& options) {
  fmt::print("state    {}\nlayout   {}\ntensors  {}, {}\n", ToHex(StateDigest(layout, digests)), ToHex(layout.hash()),
             WithCommas(layout.size()), HumanBytes(layout.total_bytes()));
  for (const auto& [alias, kept] : layout.aliases()) fmt::print("tied     {} is {}\n", alias, kept);
  if (!options.tensors) return;
  TextTable table("llll");
  for (std::size_t i = 0; i < layout.size(); ++i) {
    const TensorSpec& spec = layout.tensors()[i];
    table.AddRow({digests[i].ToHex(), std::string(NameOf(spec.dtype)), fmt::format("[{}]", fmt::join(spec.shape, ", ")),
                  spec.name});
  }
  fmt::print("\n{}", table.Render());
}

}  // namespace

Status RunDigest(const DigestOptions& options) {
  WW_TRY(const Machine machine, Machine::Make(options.threads));
  WW_TRY(const Checkpoint checkpoint, OpenCheckpoint(options.checkpoint));
  const std::vector<Digest> digests = DigestInFull(checkpoint, "digesting " + options.checkpoint.string(), machine);
  if (options.json) {
    ReportJson(checkpoint.layout(), digests, options);
  } else {
    ReportText(checkpoint.layout(), digests, options);
  }
  return Ok();
}

}  // namespace weightwire
