// Kernels::digest_shorts. Included by kernels_simd.cc inside each target's namespace; no include guard on purpose.
//
// Places and differences are made by whole vectors. Then blocks are summed one after another. A change's two keys lie
// beside each other, so a vector takes as many changes as it has pairs of lanes.

using SignedLongs = hn::Vec<hn::ScalableTag<std::int64_t>>;
constexpr std::size_t kPairs = hn::MaxLanes(hn::ScalableTag<std::uint64_t>()) / 2;

// The keys of kPairs words, both of each.
HWY_INLINE auto KeyPairs(const DigestKeys& keys, const std::uint32_t* words) {
  const hn::Full64<std::uint32_t> two;
  const auto pair = [&](std::size_t k) HWY_ATTR { return hn::LoadU(two, keys.pair[words[k]].data()); };
#if HWY_MAX_BYTES >= 64
  const hn::Full128<std::uint32_t> four;
  const hn::Full256<std::uint32_t> eight;
  return hn::PromoteTo(kLongs,
                       hn::Combine(eight, hn::Combine(four, pair(3), pair(2)), hn::Combine(four, pair(1), pair(0))));
#elif HWY_MAX_BYTES >= 32
  return hn::PromoteTo(kLongs, hn::Combine(hn::Full128<std::uint32_t>(), pair(1), pair(0)));
#else
  return hn::PromoteTo(kLongs, pair(0));
#endif
}

// The sums of even and of odd lanes.
HWY_INLINE void StorePairSums(SignedLongs sums, std::array<std::int64_t, 2>& out) {
  const hn::Full128<std::int64_t> two;
#if HWY_MAX_BYTES >= 64
  const hn::Full256<std::int64_t> four;
  const auto half = hn::Add(hn::LowerHalf(four, sums), hn::UpperHalf(four, sums));
  hn::StoreU(hn::Add(hn::LowerHalf(two, half), hn::UpperHalf(two, half)), two, out.data());
#elif HWY_MAX_BYTES >= 32
  hn::StoreU(hn::Add(hn::LowerHalf(two, sums), hn::UpperHalf(two, sums)), two, out.data());
#else
  hn::StoreU(sums, two, out.data());
#endif
}

std::size_t DigestShorts(std::uint32_t first_unit, const std::uint32_t* positions, std::size_t count,
                         const std::uint8_t* old_units, const std::uint8_t* new_units, const DigestKeys& keys,
                         ChangedBlock* blocks) {
  constexpr std::size_t kCount = hn::MaxLanes(hn::ScalableTag<std::uint32_t>());
  const hn::RebindToSigned<decltype(kWords)> ints;
  const hn::ScalableTag<std::int64_t> long_ints;
  const hn::Rebind<std::int32_t, decltype(long_ints)> half_ints;
  const hn::Rebind<std::uint16_t, decltype(kWords)> shorts;
  const hn::Repartition<std::uint8_t, decltype(shorts)> short_bytes;
  // What is behind the last change is read, but does not count.
  HWY_ALIGN std::uint32_t units[kDigestBatch + kCount];
  HWY_ALIGN std::uint32_t words[kDigestBatch + kCount];                 // in their blocks
  HWY_ALIGN std::int32_t differences[2 * (kDigestBatch + kCount)];      // twice each, for both keys
  HWY_ALIGN std::int32_t odd_differences[2 * (kDigestBatch + kCount)];  // the same, or 0 for even units
  const std::uint32_t first = first_unit - positions[0];
  std::size_t k = 0;
  for (; k + kCount <= count; k += kCount) {
    const auto widen = [&](const std::uint8_t* from) HWY_ATTR {
      return hn::PromoteTo(ints, hn::BitCast(shorts, hn::LoadU(short_bytes, from + 2 * k)));
    };
    const auto unit = hn::Add(hn::LoadU(kWords, positions + k), hn::Set(kWords, first));
    const auto difference = hn::Sub(widen(new_units), widen(old_units));
    const auto is_odd = hn::BitCast(ints, hn::Sub(hn::Zero(kWords), hn::And(unit, hn::Set(kWords, 1))));
    const auto odd_difference = hn::And(difference, is_odd);
    hn::Store(unit, kWords, units + k);
    hn::Store(hn::ShiftRight<1>(hn::And(unit, hn::Set(kWords, 2 * kDigestBlockWords - 1))), kWords, words + k);
    hn::StoreInterleaved2(difference, difference, ints, differences + 2 * k);
    hn::StoreInterleaved2(odd_difference, odd_difference, ints, odd_differences + 2 * k);
  }
  for (; k < count; ++k) {
    units[k] = positions[k] + first;
    words[k] = units[k] % (2 * kDigestBlockWords) / 2;
    differences[2 * k] = differences[2 * k + 1] =
        std::int32_t{LoadUnit<std::uint16_t>(new_units, k)} - std::int32_t{LoadUnit<std::uint16_t>(old_units, k)};
    odd_differences[2 * k] = odd_differences[2 * k + 1] = units[k] % 2 == 0 ? 0 : differences[2 * k];
  }
  // Behind the last unit there is one of another block.
  hn::StoreU(hn::Set(kWords, units[count - 1] + 2 * kDigestBlockWords), kWords, units + count);
  hn::StoreU(hn::Zero(kWords), kWords, words + count);
  for (std::size_t pad = 0; pad < 2; ++pad) {
    hn::StoreU(hn::Zero(ints), ints, differences + 2 * count + pad * kCount);
    hn::StoreU(hn::Zero(ints), ints, odd_differences + 2 * count + pad * kCount);
  }

  ChangedBlock* block = blocks;
  std::size_t begin = 0;
  const auto end_block = [&](std::size_t end) HWY_ATTR {
    auto all = hn::Zero(long_ints);
    auto odd = hn::Zero(long_ints);
    const auto products = [&](std::size_t at, const std::int32_t* of) HWY_ATTR {
      const auto key = hn::BitCast(ints, KeyPairs(keys, words + at));
      return hn::MulEven(key, hn::BitCast(ints, hn::PromoteTo(long_ints, hn::LoadU(half_ints, of + 2 * at))));
    };
    std::size_t at = begin;
    for (; at + kPairs <= end; at += kPairs) {
      all = hn::Add(all, products(at, differences));
      odd = hn::Add(odd, products(at, odd_differences));
    }
    // The others of the last vector belong to the next block.
    const auto mine = hn::FirstN(long_ints, 2 * (end - at));
    all = hn::Add(all, hn::IfThenElseZero(mine, products(at, differences)));
    odd = hn::Add(odd, hn::IfThenElseZero(mine, products(at, odd_differences)));
    block->block = units[begin] / (2 * kDigestBlockWords);
    StorePairSums(all, block->all);
    StorePairSums(odd, block->odd);
    ++block;
    begin = end;
  };
  // A block ends where the next unit is in another one.
  for (k = 0; k < count; k += kCount) {
    const auto is_last = hn::Ne(hn::ShiftRight<kDigestShortsLog2>(hn::Load(kWords, units + k)),
                                hn::ShiftRight<kDigestShortsLog2>(hn::LoadU(kWords, units + k + 1)));
    for (std::uint64_t lasts = MaskBits(kWords, is_last); lasts != 0; lasts &= lasts - 1) {
      if (k + LowestBit(lasts) < count) end_block(k + LowestBit(lasts) + 1);
    }
  }
  return static_cast<std::size_t>(block - blocks);
}
