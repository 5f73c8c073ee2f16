// Kernels::digest_u16. Included by kernels_simd.cc inside each target's namespace; no include guard on purpose.
//
// Positions and differences are made by whole vectors. Then blocks are summed one after another. A change's two keys
// lie beside each other, 32 bits each: a vector has the keys of as many changes as it has lanes of 64 bits.

using VecI64 = hn::Vec<hn::ScalableTag<std::int64_t>>;

// Both keys of each of kLanesU64 words.
HWY_INLINE VecU64 KeyPairs(const DigestKeys& keys, const std::uint32_t* words) {
  const hn::Full64<std::uint64_t> one;
  const hn::Full128<std::uint64_t> two;
  const auto pair = [&](std::size_t k) HWY_ATTR {
    return hn::BitCast(one, hn::LoadU(hn::Full64<std::uint32_t>(), keys.pair[words[k]].data()));
  };
  const auto pairs = [&](std::size_t k) HWY_ATTR { return hn::Combine(two, pair(k + 1), pair(k)); };
#if HWY_MAX_BYTES >= 64
  const hn::Full256<std::uint64_t> four;
  return hn::Combine(kU64, hn::Combine(four, pairs(6), pairs(4)), hn::Combine(four, pairs(2), pairs(0)));
#elif HWY_MAX_BYTES >= 32
  return hn::Combine(kU64, pairs(2), pairs(0));
#else
  return pairs(0);
#endif
}

// The sums of all lanes of both.
HWY_INLINE void StoreSums(VecI64 first, VecI64 second, std::array<std::int64_t, 2>& out) {
  const hn::ScalableTag<std::int64_t> ints;
  const hn::Full128<std::int64_t> two;
  const auto sums = hn::Add(hn::InterleaveLower(ints, first, second), hn::InterleaveUpper(ints, first, second));
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

std::size_t DigestU16(std::uint32_t first_unit, const std::uint32_t* positions, std::size_t count,
                      const std::uint8_t* old_units, const std::uint8_t* new_units, const DigestKeys& keys,
                      ChangedBlock* blocks) {
  constexpr std::size_t kCount = hn::MaxLanes(hn::ScalableTag<std::uint32_t>());
  const hn::RebindToSigned<decltype(kU32)> ints;
  const hn::ScalableTag<std::int64_t> long_ints;
  const hn::Rebind<std::uint16_t, decltype(kU32)> u16;
  const hn::Repartition<std::uint8_t, decltype(u16)> u16_bytes;
  constexpr std::size_t kEndReach = 64;
  // What is behind the last change is read, but does not count.
  HWY_ALIGN std::uint32_t units[kDigestBatch + kEndReach];
  HWY_ALIGN std::uint32_t words[kDigestBatch + kCount];             // in their blocks
  HWY_ALIGN std::int32_t differences[2 * (kDigestBatch + kCount)];  // each followed by -1 for odd units, 0 for even
  const std::uint32_t first = first_unit - positions[0];
  std::size_t k = 0;
  for (; k + kCount <= count; k += kCount) {
    const auto widen = [&](const std::uint8_t* from) HWY_ATTR {
      return hn::PromoteTo(ints, hn::BitCast(u16, hn::LoadU(u16_bytes, from + 2 * k)));
    };
    const auto unit = hn::Add(hn::LoadU(kU32, positions + k), hn::Set(kU32, first));
    const auto difference = hn::Sub(widen(new_units), widen(old_units));
    const auto is_odd = hn::BitCast(ints, hn::Sub(hn::Zero(kU32), hn::And(unit, hn::Set(kU32, 1))));
    hn::Store(unit, kU32, units + k);
    hn::Store(hn::ShiftRight<1>(hn::And(unit, hn::Set(kU32, 2 * kDigestBlockWords - 1))), kU32, words + k);
    hn::StoreInterleaved2(difference, is_odd, ints, differences + 2 * k);
  }
  for (; k < count; ++k) {
    units[k] = positions[k] + first;
    words[k] = units[k] % (2 * kDigestBlockWords) / 2;
    differences[2 * k] =
        std::int32_t{LoadUnit<std::uint16_t>(new_units, k)} - std::int32_t{LoadUnit<std::uint16_t>(old_units, k)};
    differences[2 * k + 1] = units[k] % 2 == 0 ? 0 : -1;
  }
  // Behind the last unit there are some of no block.
  for (std::size_t pad = 0; pad < kEndReach; pad += kCount) {
    hn::StoreU(hn::Set(kU32, 0xffffffff), kU32, units + count + pad);
  }
  hn::StoreU(hn::Zero(kU32), kU32, words + count);
  for (std::size_t pad = 0; pad < 2; ++pad) {
    hn::StoreU(hn::Zero(ints), ints, differences + 2 * count + pad * kCount);
  }

  // The changes of a block, of which there are many, in steps of two vectors, and its end by a look at a few vectors:
  // so how many there are hardly ever decides a branch.
  ChangedBlock* block = blocks;
  for (std::size_t begin = 0; begin < count;) {
    const std::uint32_t number = units[begin] / (2 * kDigestBlockWords);
    const auto next_block = hn::Set(kU32, (number + 1) * (2 * kDigestBlockWords));
    std::size_t end = begin;
    for (std::size_t in_block = kEndReach; in_block == kEndReach;) {
      in_block = 0;
      for (std::size_t j = 0; j < kEndReach; j += kCount) {
        in_block += hn::CountTrue(kU32, hn::Lt(hn::LoadU(kU32, units + end + j), next_block));
      }
      end += in_block;
    }
    auto all0 = hn::Zero(long_ints);
    auto all1 = hn::Zero(long_ints);
    auto odd0 = hn::Zero(long_ints);
    auto odd1 = hn::Zero(long_ints);
    // Of `left` changes, those that a vector has; what is behind them belongs to the next block.
    const auto add = [&](std::size_t at, std::size_t left) HWY_ATTR {
      const auto difference = hn::IfThenElseZero(hn::FirstN(long_ints, left),
                                                 hn::BitCast(long_ints, hn::LoadU(ints, differences + 2 * at)));
      const VecU64 key = KeyPairs(keys, words + at);
      const auto factor = hn::BitCast(ints, difference);
      const auto product0 = hn::MulEven(hn::BitCast(ints, key), factor);
      const auto product1 = hn::MulEven(hn::BitCast(ints, hn::ShiftRight<32>(key)), factor);
      const auto is_odd = hn::Lt(difference, hn::Zero(long_ints));
      all0 = hn::Add(all0, product0);
      all1 = hn::Add(all1, product1);
      odd0 = hn::Add(odd0, hn::IfThenElseZero(is_odd, product0));
      odd1 = hn::Add(odd1, hn::IfThenElseZero(is_odd, product1));
    };
    for (std::size_t at = begin; at < end; at += 2 * kLanesU64) {
      const std::size_t left = end - at;
      add(at, left);
      add(at + kLanesU64, std::max(left, kLanesU64) - kLanesU64);
    }
    block->block = number;
    StoreSums(all0, all1, block->all);
    StoreSums(odd0, odd1, block->odd);
    ++block;
    begin = end;
  }
  return static_cast<std::size_t>(block - blocks);
}
