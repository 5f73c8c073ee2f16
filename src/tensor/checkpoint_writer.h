// Writing a checkpoint like an existing one. The output appears complete under its name or not at all; one
// that is already there is refused. No more than one portion of one tensor is in memory at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "base/result.h"
#include "tensor/checkpoint.h"
#include "tensor/checkpoint_plan.h"
#include "tensor/layout.h"

namespace weightwire {

// Takes the next bytes of a tensor.
using TensorSink = std::function<Status(std::span<const std::uint8_t> bytes)>;

// Gives the sink the whole data of the layout's tensor `index`, in order, in portions of any size. Called from the
// writer's thread, in the order of the files, and once more for every further name under which a tied tensor is
// written. An error ends the writing and is returned.
using TensorSource = std::function<Status(std::size_t index, const TensorSink& sink)>;

// Writes tensors of `layout` to `output` in the form of `like`: one file if that was one, else a directory with the
// same files, each with the same metadata and the same tensors in the same order, and copies of everything else in the
// directory.
//
// Where `layout` differs from `like`: a tensor that is gone is left out; a new one goes to the end of the last file
// (model.safetensors, if there is none). Of a tie those names are written that `like` holds, if it holds several;
// otherwise the one that `layout` keeps. The others are recorded in the metadata. Opening the output therefore gives
// `layout` again, or, where `like` holds several names of a tie or records one that `layout` does not know, a
// checkpoint that ViewAs(layout) accepts.
//
// Returns what in the directory has been left out (extra_files.h).
Result<std::vector<std::string>> WriteCheckpointLike(const Checkpoint& like, const Layout& layout,
                                                     const std::filesystem::path& output, const TensorSource& data);

}  // namespace weightwire
