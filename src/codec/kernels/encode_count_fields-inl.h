// EncodeKernels::count_fields. Included by encode_kernels_simd.cc inside each target's namespace; no include guard on
// purpose.
//
// The exponents of weights are few. So instead of adding one to a number in memory for every unit, the units of a block
// are compared with each field between the least and the largest, a vector of them at a time.

constexpr std::uint32_t kFieldBlock = 1024;
// With more fields than this between the least and the largest, one after the other is as fast.
constexpr std::uint32_t kFewFields = 48;

template <typename Unit>
void CountFieldsOf(const std::uint8_t* units, std::uint32_t count, const ClassRule& rule, FieldCount& counts) {
  const std::uint8_t mask = rule.FieldMask();
  const int shift = rule.shift;
  std::uint32_t i = 0;
  for (std::uint32_t block = 0; count - i >= kClassStep; i += block) {
    block = std::min(kFieldBlock, (count - i) / kClassStep * kClassStep);
    HWY_ALIGN std::array<std::uint8_t, kFieldBlock> fields;
    HWY_ALIGN std::array<std::uint8_t, kClassStep> least;
    HWY_ALIGN std::array<std::uint8_t, kClassStep> most;
    VecU8 lower = hn::Set(kU8, 0xff);
    VecU8 upper = hn::Zero(kU8);
    for (std::uint32_t j = 0; j < block; j += kClassStep) {
      const VecU8 some = Fields<Unit>(units + std::size_t{i + j} * sizeof(Unit), shift, mask);
      lower = hn::Min(lower, some);
      upper = hn::Max(upper, some);
      hn::Store(some, kU8, fields.data() + j);
    }
    hn::Store(lower, kU8, least.data());
    hn::Store(upper, kU8, most.data());
    const std::uint32_t first = *std::min_element(least.begin(), least.end());
    const std::uint32_t last = *std::max_element(most.begin(), most.end());
    if (last - first >= kFewFields) {
      // Several counters in turn: adding to a number that was just written takes long.
      std::array<std::array<std::uint16_t, 256>, 4> counters{};
      for (std::uint32_t j = 0; j < block; ++j) ++counters[j % counters.size()][fields[j]];
      for (const auto& counter : counters) {
        for (std::size_t field = 0; field < counter.size(); ++field) counts[field] += counter[field];
      }
      continue;
    }
    for (std::uint32_t field = first; field <= last; ++field) {
      const VecU8 wanted = hn::Set(kU8, static_cast<std::uint8_t>(field));
      std::size_t found = 0;
      for (std::uint32_t j = 0; j < block; j += kClassStep) {
        found += hn::CountTrue(kU8, hn::Eq(hn::Load(kU8, fields.data() + j), wanted));
      }
      counts[field] += found;
    }
  }
  for (; i < count; ++i) ++counts[static_cast<std::uint32_t>(LoadUnit<Unit>(units, i) >> shift) & mask];
}

void CountFields(const std::uint8_t* units, std::uint32_t count, int unit_bytes, const ClassRule& rule,
                 FieldCount& counts) {
  WithUnit(unit_bytes, [&]<typename Unit>() { CountFieldsOf<Unit>(units, count, rule, counts); });
}
