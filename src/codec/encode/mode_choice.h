// Chooses the mode of each entry (sparse, dense, gaps or whole), its tables and its tile size: the coding that costs
// least, by a sample of the entry. spec/FORMAT.md leaves this choice to the encoder. Integers only, so the same input
// gives the same choice everywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "codec/encode/sample.h"
#include "codec/encode/unit_reader.h"
#include "codec/format/format.h"
#include "codec/format/tables.h"
#include "codec/kernels/kernels.h"
#include "tensor/dtype.h"

namespace weightwire {

// What the caller asks for.
enum class CodingRequest : std::uint8_t {
  kSmallest,     // whatever takes the fewest bytes
  kConditioned,  // positions within the classes of the base
  kGaps,         // bytes, without tables: larger, and applies in O(changed) and fastest
  kUniform,      // as conditioned, with one rate for all classes
  kDense,        // a symbol for every unit
  kWhole,        // the new bits as they are
};

// How one entry is coded.
struct Coding {
  EntryMode mode = EntryMode::kWhole;
  std::size_t table_set = 0;
  int scale = 0;
  int tile_log2 = kMinTileLog2;  // of a whole entry: of the ranges in which it is digested
};
inline constexpr Coding kWholeCoding = {EntryMode::kWhole, 0, 0, kMaxTileLog2};

// An entry in both states, as far as the choice looks at it.
struct EntryToCode {
  DType dtype = DType::kBF16;
  std::uint64_t units = 0;
  bool has_old = true;  // false: a tensor that the old state does not have, which is coded whole
  const std::uint8_t* old_units = nullptr;
  const std::uint8_t* new_units = nullptr;
  const UnitReader* reader = nullptr;  // if set, it makes the new units, and new_units is not used
};

struct ModeRequest {
  CodingRequest coding = CodingRequest::kSmallest;
  std::uint64_t thinning = 1;  // of samples: SampleThinning
  bool may_move = false;       // no sample is complete, because new bits may still change (EncodeRequest)
};

// Samples the entries and chooses a coding for each: nullopt if an entry certainly does not change. Appends the table
// sets that the codings need to `sets`, at most `max_sets`. The errors are those of readers.
Result<std::vector<std::optional<Coding>>> ChooseModes(std::span<const EntryToCode> entries, const ModeRequest& request,
                                                       std::size_t max_sets, std::vector<TableSet>& sets,
                                                       const Kernels& kernels, ThreadPool& pool);

struct SampledEntry {
  ClassRule rule;  // the candidate it was sampled with
  Sample sample;
};

// Chooses codings for sampled entries. Uses at most `max_sets` sets: the last entries then share a set instead of
// having their own, or are coded without tables if there is none to share, whatever the request is. REQUIRES: request
// is not kGaps.
std::vector<Coding> ChooseCodings(std::span<const SampledEntry> entries, CodingRequest request, std::size_t max_sets,
                                  std::vector<TableSet>& sets, ThreadPool& pool);

// Whether an entry takes fewer bytes whole than with the `coded_bytes` of its coding. Only an entry in gaps mode can:
// its mode was chosen by a count, and large steps take more bytes than the units themselves.
[[nodiscard]] bool IsSmallerWhole(const Coding& coding, std::uint64_t coded_bytes, std::uint64_t whole_bytes);

}  // namespace weightwire
