// The choice of tables and modes: for each entry the cheapest way to code it, by its sample (spec/FORMAT.md leaves this
// to the encoder). Integers only, so the same samples give the same choice everywhere.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codec/encode/sample.h"
#include "codec/format/format.h"
#include "codec/format/tables.h"
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
  int tile_log2 = kMinTileLog2;
};

// The ways in which units of a type may be put into classes, best guess first: one for floats, whose exponent is known;
// several for integers, which may hold anything.
std::span<const ClassRule> CandidateRules(DType dtype);

// An entry as far as the choice is concerned.
struct SampledEntry {
  ClassRule rule;  // the candidate it was sampled with
  Sample sample;
};

// About how many bits the entry takes with tables of its own: for choosing between candidate rules.
std::uint64_t EstimateBits(const SampledEntry& entry);

// The coding of an entry in gaps mode, which needs no more than a count.
Coding GapsCoding(const ChangeCount& counted);

// Appends the sets it needs to `sets`, at most `max_sets`, and returns a coding for each entry. If it wants more sets,
// the last entries share one instead of having their own; if there is none to share, they go without, whatever the
// request is.
// REQUIRES: request is not kGaps.
std::vector<Coding> ChooseCodings(std::span<const SampledEntry> entries, CodingRequest request, std::size_t max_sets,
                                  std::vector<TableSet>& sets);

}  // namespace weightwire
