// Decoding: from a delta file and the state it applies to, to a staged change.
//
// Nothing is written and nothing is believed: the base is checked against the digests before, every tile must end as a
// tile must, counts must agree, and the digests after, computed from the change itself, must be the promised ones. Only
// then is there a StagedChange.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "base/threads.h"
#include "codec/decode/staged_change.h"
#include "codec/decode/state_view.h"
#include "codec/format/delta_file.h"
#include "codec/kernels/kernels.h"

namespace weightwire {

// Memory beyond the inputs: the change itself, and per thread a few tiles.
//
// Errors: kMismatch when the base is not the state the delta was made for (nothing is wrong with the file); kCorrupt
// when the file breaks its promises; kLimit when it asks for more than its own numbers allow.
Result<std::shared_ptr<const StagedChange>> StageDelta(const DeltaFile& file, const StateView& base,
                                                       const Kernels& kernels, ThreadPool& pool);

// The same for a delta in several parts, written by different ranks: all of them at once. None names state digests;
// what the whole promises comes from elsewhere, if anything does.
Result<std::shared_ptr<const StagedChange>> StageParts(std::span<const DeltaFile> parts,
                                                       const std::optional<StateDigests>& promised,
                                                       const StateView& base, const Kernels& kernels, ThreadPool& pool);

// The layout a delta applies to, seen from a checkpoint that may know other ties, or none: the checkpoint's tensors
// with the delta's aliases. Which name of a tie is kept is the delta's to say, and ties that it does not know do not
// matter. kMismatch when that is not the layout the delta names.
Result<Layout> LayoutForDelta(const DeltaFile& file, const Layout& checkpoint);

}  // namespace weightwire
