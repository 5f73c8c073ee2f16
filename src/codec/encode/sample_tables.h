// The tables that suit a sample, and what they cost: what the choice between tables and modes rests on
// (mode_choice.h). Integers only.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "codec/encode/sample.h"
#include "codec/format/tables.h"

namespace weightwire {

// Costs are in bits, in units of 2^-20.
using Cost = unsigned __int128;
inline constexpr int kCostBits = 20;
inline constexpr Cost kImpossible = std::numeric_limits<std::uint64_t>::max();

// A sample's counts by the classes of a rule. In those for dense tables unchanged units have the symbol 0.
struct Classes {
  bool dense = false;
  std::size_t alphabet = 0;
  std::array<std::uint64_t, kClassCount> units{};
  std::array<std::uint64_t, kClassCount> changed{};
  std::vector<std::uint64_t> symbols;  // class after class

  [[nodiscard]] std::span<const std::uint64_t> symbols_of(std::size_t c) const {
    return std::span(symbols).subspan(c * alphabet, alphabet);
  }
};
Classes InClasses(const Sample& sample, const ClassRule& rule, bool dense);

// The rule with the window of classes that suits the sample.
ClassRule WithWindow(ClassRule rule, const Sample& sample);

// What tables may be like. Those of a kind that is not dense differ in their rates only.
enum class TableKind : std::uint8_t { kConditioned, kUniform, kDense };
inline constexpr std::size_t kTableKinds = 3;

// A set for these counts but for its rates, by the sample they are of; and those.
TableSet SetWithSymbols(const Classes& classes, const ClassRule& rule, const Sample& sample);
void SetRates(const Classes& classes, bool complete, TableKind kind, TableSet& set);
// Both.
TableSet BuildSet(const Sample& sample, ClassRule rule, TableKind kind);

// The scale at which the set's rates cost least, or hardly more.
int BestScale(const Classes& classes, const TableSet& set);

// What the classes' positions cost, and their symbols: kImpossible if one occurs that has no width.
Cost PositionCost(const Classes& classes, const TableSet& set, int scale);
Cost SymbolCost(const Classes& classes, const TableSet& set);
// The same with prices that were worked out before, for a set that many entries are tried with.
std::vector<std::uint64_t> SymbolPricesOf(const TableSet& set);
Cost SymbolCost(const Classes& classes, std::span<const std::uint64_t> prices);
// What costs so much in the sample, scaled up to all of the entry.
Cost OfAll(const Sample& sample, Cost position_cost, Cost symbol_cost);

// What the set takes in the file.
Cost TableCost(const TableSet& set);

// The three costs of a set of the sample's own, BuildSet's, without making it: most entries do without one.
Cost OwnPositionCost(const Classes& classes, bool complete, TableKind kind);
Cost OwnSymbolCost(const Classes& classes, bool complete);
Cost OwnTableCost(const Classes& classes, TableKind kind);
// Tables made from a part fit that part better than the rest: by about half a bit for each of their numbers, and the
// rest worse by as much. Without this, entries would get tables of their own for nothing.
Cost OverfitCost(const Sample& sample, const Classes& classes);

}  // namespace weightwire
