// The common symbols of a table set, in the form in which lanes look them up. Included by kernels_simd.cc inside each
// target's namespace; no include guard on purpose.

// Symbols that are looked up on vectors; the others are rare.
constexpr std::uint32_t kLaneSymbols = 12;

struct SymbolTables {
  HWY_ALIGN std::array<std::uint32_t, 16> magnitude;  // the least
  HWY_ALIGN std::array<std::uint32_t, 16> extra_bits;
};
constexpr SymbolTables MakeSymbolTables() {
  SymbolTables tables{};
  for (int symbol = 0; symbol < static_cast<int>(kLaneSymbols); ++symbol) {
    const auto at = static_cast<std::size_t>(symbol);
    tables.magnitude[at] = static_cast<std::uint32_t>(MagnitudeOf(symbol, 0));
    tables.extra_bits[at] = static_cast<std::uint32_t>(BucketExtraBits(symbol));
  }
  return tables;
}
constexpr SymbolTables kSymbolTables = MakeSymbolTables();

// Where the symbols of each class end, in units of 2^16, less 2^15: symbols 2k and 2k + 1 in the halves of a number.
struct LaneSymbolEnds {
  HWY_ALIGN std::array<std::array<std::uint32_t, kClassCount>, kLaneSymbols / 2> last;
  std::uint32_t easy_classes;  // a bit for each class that has symbols, the first among them

  void Set(const ExpandedTables& tables) {
    easy_classes = 0;
    last = {};
    for (std::size_t c = 0; c < kClassCount; ++c) {
      if (tables.events[c * tables.stride].possible) easy_classes |= 1u << c;
      // A symbol that is not possible ends with the one before.
      std::uint32_t end = 0;
      for (std::size_t s = 0; s < kLaneSymbols; ++s) {
        const SymbolEvent& symbol = tables.events[c * tables.stride + s];
        if (symbol.possible) end = (symbol.event.start + symbol.event.width - 1) >> 16;
        last[s / 2][c] |= (end ^ 0x8000) << (16 * (s % 2));
      }
    }
  }
};
