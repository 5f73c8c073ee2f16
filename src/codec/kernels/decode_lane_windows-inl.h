// Windows of time: when the next units of a tile are passed, for one lane of decode_sparse_lanes-inl.h. Included by
// kernels_simd.cc inside each target's namespace; no include guard on purpose.
//
// Rates are summed a window at a time, shortly before the decoder gets there: so the base is read once, a lane's times
// fit the nearest caches, and numbers stay within 31 bits however long the tile. A window is made of cells of blocks of
// units. The times of the ends of blocks are kept for each lane, those of the ends of cells a lane beside the other.

constexpr std::uint32_t kCellBlocks = 16;
static_assert(kCellBlocks % kSumBlocks == 0);
constexpr std::uint32_t kCellUnits = kCellBlocks * kTimeBlock;
constexpr std::uint32_t kWindowCells = 16;
constexpr std::uint32_t kWindowBlocks = kWindowCells * kCellBlocks;
constexpr std::uint32_t kWindowUnits = kWindowCells * kCellUnits;
// What is after the last block of a window is never passed.
constexpr std::uint32_t kNever = 0x7fffffff;
// No wait sees beyond the horizon, so rates need not be larger.
constexpr std::uint32_t kLargestRate = kHorizon + 1;
// A window gets no further cell once it has taken this long: so one more cell, and a wait beyond it, still fit.
constexpr std::uint32_t kFullWindow = 1u << 29;
static_assert(std::uint64_t{kFullWindow} + std::uint64_t{kCellUnits} * kLargestRate + 2 * kHorizon < kNever);

// The rates of an entry in the form that windows are summed with: a rate has three bytes, and a table for each.
struct LaneRates {
  HWY_ALIGN std::array<std::uint32_t, kClassCount> rate;
  HWY_ALIGN std::array<std::array<std::uint8_t, kClassCount>, 3> plane;

  void Set(const ExpandedTables& tables) {
    for (std::size_t c = 0; c < kClassCount; ++c) {
      rate[c] = std::min(tables.rates[c], kLargestRate);
      for (std::size_t p = 0; p < plane.size(); ++p) plane[p][c] = static_cast<std::uint8_t>(rate[c] >> (8 * p));
    }
  }
};

// The times of one lane's window.
struct LaneWindow {
  // ends[k] is when block k has been passed, from the window's beginning on; ends[-1] is its beginning.
  HWY_ALIGN std::array<std::uint32_t, kCellBlocks + kWindowBlocks> times;
  [[nodiscard]] std::uint32_t* ends() { return times.data() + kCellBlocks; }
  [[nodiscard]] const std::uint32_t* ends() const { return times.data() + kCellBlocks; }

  HWY_ALIGN std::array<std::uint8_t, kTimeBlock * 4> last_block;  // the last units of a tile, zeros after them
  const std::uint8_t* units = nullptr;                            // of the window
  std::uint32_t first_unit = 0;                                   // in the tile
  std::uint32_t unit_count = 0;
  std::uint32_t sum = 0;  // of all its rates

  // Nothing in it is ever passed, and what is looked at is there.
  void SetIdle(std::uint32_t* cell_lasts) {
    times.fill(kNever);
    times[kCellBlocks - 1] = 0;
    last_block.fill(0);
    units = last_block.data();
    first_unit = 0;
    unit_count = 0;
    sum = kNever;
    for (std::uint32_t c = 0; c < kWindowCells; ++c) cell_lasts[c * kLanesU32] = kNever;
  }

  // Sums the units of a tile from `first` on, of which there are `left`. cell_lasts is the lane's column. `base` is
  // where they are in memory; `from` may be an overlaid copy. REQUIRES: left != 0; kBf16Path only as for RateSums.
  template <typename Unit, bool kBf16Path>
  HWY_INLINE void Sum(const std::uint8_t* from, const std::uint8_t* base, std::uint32_t first, std::uint32_t left,
                      const LaneRates& rates, const ClassRule& rule, std::uint32_t* cell_lasts) {
    const RateSums<Unit, kBf16Path> rate_sums(rates.plane, rule);
    const RunningSum running_sum;
    units = from;
    first_unit = first;
    times[kCellBlocks - 1] = 0;
    sum = 0;
    std::uint32_t cell = 0;
    VecU32 time = hn::Zero(kU32);
    const auto sum_cell = [&](SumsAhead<Unit, kBf16Path>& sums_ahead) HWY_ATTR {
      for (std::uint32_t b = 0; b < kCellBlocks; b += kSumBlocks) {
        const VecU32 sums = running_sum.Of(sums_ahead.Next());
        hn::Store(hn::Add(sums, time), kU32, ends() + cell * kCellBlocks + b);
        time = hn::Add(time, running_sum.Last(sums));
      }
    };
    const std::uint32_t whole_cells = std::min(kWindowCells, left / kCellUnits);
    if (whole_cells != 0) {
      SumsAhead<Unit, kBf16Path> sums_ahead(rate_sums, from, whole_cells * (kCellBlocks / kSumBlocks));
      for (; cell < whole_cells && sum < kFullWindow; ++cell) {
        // The window after this one: many lanes take turns, and no hardware foresees so many.
        const std::uint8_t* next_window = base + (std::size_t{cell} * kCellUnits + kWindowUnits) * sizeof(Unit);
        for (std::size_t at = 0; at < kCellUnits * sizeof(Unit); at += kLineBytes) {
          __builtin_prefetch(next_window + at, 0, 2);
        }
        sum_cell(sums_ahead);
        sum = hn::GetLane(time);
        cell_lasts[cell * kLanesU32] = sum - 1;
      }
    }
    unit_count = cell * kCellUnits;
    if (cell < kWindowCells && sum < kFullWindow && left - unit_count >= kTimeBlock) {
      // What is left of whole blocks, as a cell with zeros after them.
      const std::uint32_t blocks = (left - unit_count) / kTimeBlock;
      HWY_ALIGN std::array<std::uint8_t, kCellUnits * sizeof(Unit)> copy{};
      std::memcpy(copy.data(), from + std::size_t{unit_count} * sizeof(Unit), blocks * kTimeBlock * sizeof(Unit));
      SumsAhead<Unit, kBf16Path> sums_ahead(rate_sums, copy.data(), kCellBlocks / kSumBlocks);
      sum_cell(sums_ahead);
      std::uint32_t* cell_end = ends() + (cell + 1) * kCellBlocks;
      std::uint32_t* end = ends() + cell * kCellBlocks + blocks;
      sum = end[-1];
      std::fill(end, cell_end, kNever);
      cell_lasts[cell * kLanesU32] = kNever;
      unit_count += blocks * kTimeBlock;
      ++cell;
    } else if (unit_count == 0) {
      // The tile ends within a block, which gets a window of its own.
      last_block.fill(0);
      std::memcpy(last_block.data(), from, left * sizeof(Unit));
      units = last_block.data();
      unit_count = left;
      for (std::uint32_t k = 0; k < left; ++k) {
        const auto field = static_cast<std::uint32_t>(LoadUnit<Unit>(from, k) >> rule.shift) & rule.FieldMask();
        sum += rates.rate[rule.ClassOfField(field)];
      }
      std::fill_n(ends(), kCellBlocks, kNever);
    }
    for (; cell < kWindowCells; ++cell) cell_lasts[cell * kLanesU32] = kNever;
  }

  static constexpr std::size_t kLineBytes = 64;
};
