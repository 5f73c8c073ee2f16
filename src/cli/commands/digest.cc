// weightwire digest CHECKPOINT: the state digest, and what it is made of.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"
#include "cli/checkpoints.h"
#include "cli/commands/commands.h"
#include "cli/global_options.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/text.h"
#include "codec/digest/state.h"
#include "tensor/json.h"

namespace weightwire {
namespace {

struct DigestOptions {
  std::filesystem::path checkpoint;
  bool tensors = false;  // each tensor's digest too
  const GlobalOptions* global = nullptr;
};

void ReportJson(const Layout& layout, const std::vector<Digest>& digests, const DigestOptions& options) {
  JsonOutput json;
  json["digest"] = ToHex(StateDigest(layout, digests));
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
  fmt::print("digest   {}\nlayout   {}\ntensors  {}, {}\n", ToHex(StateDigest(layout, digests)), ToHex(layout.hash()),
             WithCommas(layout.size()), HumanBytes(layout.total_bytes()));
  for (const auto& [alias, kept] : layout.aliases())
    fmt::print("tied     {} is {}\n", Printable(alias), Printable(kept));
  if (!options.tensors) return;
  TextTable table("llll");
  for (std::size_t i = 0; i < layout.size(); ++i) {
    const TensorSpec& spec = layout.tensors()[i];
    table.AddRow({digests[i].ToHex(), std::string(NameOf(spec.dtype)), fmt::format("[{}]", fmt::join(spec.shape, ", ")),
                  spec.name});
  }
  fmt::print("\n{}", table.Render());
}

Status RunDigest(const DigestOptions& options) {
  WW_TRY(const Compute compute, Compute::Make(options.global->threads));
  WW_TRY(const Checkpoint checkpoint, OpenCheckpoint(options.checkpoint));
  const std::vector<Digest> digests = DigestInFull(checkpoint, "digesting " + options.checkpoint.string(), compute);
  if (options.global->json) {
    ReportJson(checkpoint.layout(), digests, options);
  } else {
    ReportText(checkpoint.layout(), digests, options);
  }
  return Ok();
}

}  // namespace

Command AddDigest(CLI::App& app, const CommandTools& tools) {
  const auto options = std::make_shared<DigestOptions>();
  options->global = tools.options.get();
  CLI::App& sub = *app.add_subcommand("digest", "show the digest of a checkpoint");
  AddPath(sub, "CHECKPOINT", options->checkpoint, "the checkpoint")->required();
  sub.add_flag("--tensors", options->tensors, "show the digest of each tensor too");
  sub.footer(
      "Two checkpoints have the same digest exactly when names, types, shapes and bits of their tensors are the same, "
      "however they are spread over files.\n"
      "\n"
      "Examples:\n"
      "  weightwire digest step-11\n"
      "  weightwire digest model.safetensors --tensors");
  return {&sub, [options] { return RunDigest(*options); }};
}

}  // namespace weightwire
