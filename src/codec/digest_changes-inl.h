// Kernels::digest_shorts. Included by kernels_simd.cc inside each target's namespace; no include guard on purpose.
//
// Places and differences are made by whole vectors. A change's two keys lie beside each other, so that both products
// are one multiplication. There are no branches on where blocks end: sums run on over all changes, each is kept, and
// what a block adds is the difference of two of them, which is exact although they wrap.

std::size_t DigestShorts(std::uint32_t first_unit, const std::uint32_t* positions, std::size_t count,
                         const std::uint8_t* old_units, const std::uint8_t* new_units, const DigestKeys& keys,
                         ChangedBlock* blocks) {
  constexpr std::size_t kCount = hn::MaxLanes(hn::ScalableTag<std::uint32_t>());
  const hn::RebindToSigned<decltype(kWords)> ints;
  const hn::Rebind<std::uint16_t, decltype(kWords)> shorts;
  const hn::Repartition<std::uint8_t, decltype(shorts)> short_bytes;
  HWY_ALIGN std::uint32_t units[kDigestBatch + kCount];
  HWY_ALIGN std::int32_t differences[kDigestBatch];
  HWY_ALIGN std::int32_t odd_differences[kDigestBatch];
  const std::uint32_t first = first_unit - positions[0];
  std::size_t k = 0;
  for (; k + kCount <= count; k += kCount) {
    const auto widen = [&](const std::uint8_t* from) HWY_ATTR {
      return hn::PromoteTo(ints, hn::BitCast(shorts, hn::LoadU(short_bytes, from + 2 * k)));
    };
    const auto unit = hn::Add(hn::LoadU(kWords, positions + k), hn::Set(kWords, first));
    const auto difference = hn::Sub(widen(new_units), widen(old_units));
    const auto is_odd = hn::BitCast(ints, hn::Sub(hn::Zero(kWords), hn::And(unit, hn::Set(kWords, 1))));
    hn::Store(unit, kWords, units + k);
    hn::Store(difference, ints, differences + k);
    hn::Store(hn::And(difference, is_odd), ints, odd_differences + k);
  }
  for (; k < count; ++k) {
    units[k] = positions[k] + first;
    differences[k] =
        std::int32_t{LoadUnit<std::uint16_t>(new_units, k)} - std::int32_t{LoadUnit<std::uint16_t>(old_units, k)};
    odd_differences[k] = units[k] % 2 == 0 ? 0 : differences[k];
  }

  const hn::Full128<std::int32_t> four;
  const hn::Full128<std::int64_t> two;
  HWY_ALIGN std::int64_t sums[kDigestBatch + 1][4];  // of both lanes, then of both lanes' odd units
  auto all = hn::Zero(two);
  auto odd = hn::Zero(two);
  for (k = 0; k < count; ++k) {
    hn::Store(all, two, sums[k]);
    hn::Store(odd, two, sums[k] + 2);
    const std::uint32_t word = units[k] % (2 * kDigestBlockWords) / 2;
    const auto key = hn::BitCast(four, hn::PromoteTo(hn::Full128<std::uint64_t>(),
                                                     hn::LoadU(hn::Full64<std::uint32_t>(), keys.pair[word].data())));
    all = hn::Add(all, hn::MulEven(key, hn::Set(four, differences[k])));
    odd = hn::Add(odd, hn::MulEven(key, hn::Set(four, odd_differences[k])));
  }
  hn::Store(all, two, sums[count]);
  hn::Store(odd, two, sums[count] + 2);

  ChangedBlock* block = blocks;
  std::size_t begin = 0;
  const auto end_block = [&](std::size_t end) {
    const auto between = [&](std::size_t part) {
      return static_cast<std::int64_t>(static_cast<std::uint64_t>(sums[end][part]) -
                                       static_cast<std::uint64_t>(sums[begin][part]));
    };
    *block++ = {units[begin] / (2 * kDigestBlockWords), {between(0), between(1)}, {between(2), between(3)}};
    begin = end;
  };
  // A block ends where the next unit is in another one. Behind the last unit there is one of another block.
  for (k = 0; k < kCount; ++k) units[count + k] = units[count - 1] + 2 * kDigestBlockWords;
  for (k = 0; k < count; k += kCount) {
    const auto is_last = hn::Ne(hn::ShiftRight<kDigestShortsLog2>(hn::Load(kWords, units + k)),
                                hn::ShiftRight<kDigestShortsLog2>(hn::LoadU(kWords, units + k + 1)));
    for (std::uint64_t lasts = MaskBits(kWords, is_last); lasts != 0; lasts &= lasts - 1) {
      if (k + LowestBit(lasts) < count) end_block(k + LowestBit(lasts) + 1);
    }
  }
  return static_cast<std::size_t>(block - blocks);
}
