// What all files with vectors share. Included by them inside each target's namespace; no include guard on purpose.

namespace hn = hwy::HWY_NAMESPACE;

[[maybe_unused]] const hn::ScalableTag<std::uint8_t> kU8;
[[maybe_unused]] const hn::ScalableTag<std::uint32_t> kU32;
[[maybe_unused]] const hn::ScalableTag<std::uint64_t> kU64;

using VecU32 = hn::Vec<hn::ScalableTag<std::uint32_t>>;

// The mask's bits as an integer of exactly its size: through a larger one the compiler goes through memory.
template <typename Tag, typename Mask>
HWY_INLINE std::uint64_t MaskBits(Tag tag, Mask mask) {
  constexpr std::size_t kCount = hn::MaxLanes(Tag());
  using Bits = std::conditional_t<
      (kCount <= 8), std::uint8_t,
      std::conditional_t<kCount == 16, std::uint16_t, std::conditional_t<kCount == 32, std::uint32_t, std::uint64_t>>>;
  Bits bits = 0;
  hn::StoreMaskBits(tag, mask, reinterpret_cast<std::uint8_t*>(&bits));
  // g++ 12 may widen a mask while it is in a mask register, and then spills 32 bits of it and reloads 64. So it leaves
  // that register first.
  asm("" : "+r"(bits));  // NOLINT(hicpp-no-assembler)
  return bits;
}

// std::countr_zero asks first whether there is a bit, and the compiler makes a branch of it. Here any answer will do
// then.
HWY_INLINE std::uint32_t LowestBit(std::uint64_t mask) {
#if WW_AVX512 || HWY_TARGET == HWY_AVX2
  return static_cast<std::uint32_t>(_tzcnt_u64(mask));  // 64 if there is none
#else
  return static_cast<std::uint32_t>(__builtin_ctzll(mask | (std::uint64_t{1} << 63)));
#endif
}

// Appends i + the position of each bit of the mask.
HWY_INLINE std::uint16_t* AppendPositions(std::uint64_t mask, std::uint32_t i, std::uint16_t* out) {
  std::uint16_t* const end = out + std::popcount(mask);
  // Four are written whether they are there or not: few blocks have more, and a branch on the number would be
  // mispredicted about once a block. The room allows for it.
  for (int k = 0; k < 4; ++k) {
    *out++ = static_cast<std::uint16_t>(i + LowestBit(mask));
    mask &= mask - 1;
  }
  while (mask != 0) [[unlikely]] {
      *out++ = static_cast<std::uint16_t>(i + LowestBit(mask));
      mask &= mask - 1;
    }
  return end;
}

// Running sums over the lanes of a vector: within blocks of four lanes by shifts, then each block's last to the blocks
// after it.
HWY_INLINE VecU32 RunningSums(VecU32 v) {
  v = hn::Add(v, hn::ShiftLeftLanes<1>(kU32, v));
  v = hn::Add(v, hn::ShiftLeftLanes<2>(kU32, v));
#if HWY_MAX_BYTES >= 32
  constexpr std::uint32_t kCount = hn::MaxLanes(hn::ScalableTag<std::uint32_t>());
  const auto lane = hn::Iota(kU32, 0);
  for (std::uint32_t width = 4; width < kCount; width *= 2) {
    // Lanes of every second group of `width` get the last lane of the group before.
    const auto group = hn::And(lane, hn::Set(kU32, ~(2 * width - 1)));
    const auto last = hn::Add(group, hn::Set(kU32, width - 1));
    const auto second = hn::Ne(hn::And(lane, hn::Set(kU32, width)), hn::Zero(kU32));
    v = hn::Add(v, hn::IfThenElseZero(second, hn::TableLookupLanes(v, hn::IndicesFromVec(kU32, last))));
  }
#endif
  return v;
}
