// The kernels once per instruction set, through highway, and the choice between them.
#include "codec/kernels/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels/kernels_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, as highway demands.
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <type_traits>

#include "base/bytes.h"
#include "codec/format/step_coding.h"
#include "codec/format/units.h"
#include "codec/format/waiting.h"
#include "codec/kernels/kernels.h"

// The baseline without vectors is kernels_scalar.cc.
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace weightwire {
namespace HWY_NAMESPACE {

void DecodeGaps(std::span<GapTile> tiles, int unit_bytes);  // decode_gaps_simd.cc

namespace {

#include "codec/kernels/simd_common-inl.h"
#include "codec/kernels/simd_rates-inl.h"

// --- find_changed ---

template <typename Unit>
std::uint32_t FindChangedUnits(const std::uint8_t* old_units, const std::uint8_t* new_units, std::uint32_t count,
                               std::uint16_t* positions) {
  std::uint16_t* out = positions;
  std::uint32_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const std::size_t at = i * sizeof(Unit);
    out = AppendPositions(ChangedMask<Unit>(old_units + at, new_units + at), i, out);
  }
  for (; i < count; ++i) {
    *out = static_cast<std::uint16_t>(i);
    out += LoadUnit<Unit>(old_units, i) != LoadUnit<Unit>(new_units, i);
  }
  return static_cast<std::uint32_t>(out - positions);
}

std::uint32_t FindChanged(const std::uint8_t* old_units, const std::uint8_t* new_units, std::uint32_t count,
                          int unit_bytes, std::uint16_t* positions) {
  return WithUnit(unit_bytes,
                  [&]<typename Unit>() { return FindChangedUnits<Unit>(old_units, new_units, count, positions); });
}

// --- sum_rates ---

template <typename Unit>
std::uint64_t SumRates(const std::uint8_t* units, std::uint32_t count, const ExpandedTables& tables,
                       std::uint32_t* times) {
  // A rate has three bytes: look each up among the 16 classes, and let the sum-of-eight instruction add them.
  alignas(16) std::array<std::array<std::uint8_t, 16>, 3> planes;
  for (std::size_t plane = 0; plane < 3; ++plane) {
    for (std::size_t c = 0; c < kClassCount; ++c) {
      planes[plane][c] = static_cast<std::uint8_t>(tables.rates[c] >> (8 * plane));
    }
  }
  const auto low = hn::LoadDup128(kU8, planes[0].data());
  const auto middle = hn::LoadDup128(kU8, planes[1].data());
  const auto high = hn::LoadDup128(kU8, planes[2].data());
  const auto lowest = hn::Set(kU8, tables.rule.lowest);
  const auto last_class = hn::Set(kU8, std::uint8_t{kClassCount - 1});
  const int shift = tables.rule.shift;
  const std::uint8_t mask = tables.rule.FieldMask();
  constexpr std::uint32_t kStep = hn::MaxLanes(hn::ScalableTag<std::uint8_t>());
  const auto block_sums = [&](std::uint32_t from) {
    const auto fields = Fields<Unit>(units + std::size_t{from} * sizeof(Unit), shift, mask);
    const auto classes = hn::Min(hn::SaturatedSub(fields, lowest), last_class);
    const auto sum0 = hn::SumsOf8(hn::TableLookupBytes(low, classes));
    const auto sum1 = hn::SumsOf8(hn::TableLookupBytes(middle, classes));
    const auto sum2 = hn::SumsOf8(hn::TableLookupBytes(high, classes));
    return hn::BitCast(kU32, hn::Add(sum0, hn::Add(hn::ShiftLeft<8>(sum1), hn::ShiftLeft<16>(sum2))));
  };

  std::uint64_t sum = 0;
  std::uint32_t i = 0;
  times[0] = 0;
  for (; i + 2 * kStep <= count; i += 2 * kStep) {
    const auto first = block_sums(i);
    const auto second = block_sums(i + kStep);
    const auto sums = hn::ConcatEven(kU32, second, first);  // a block's sum fits 32 bits
    const auto running = hn::Add(RunningSums(sums), hn::Set(kU32, static_cast<std::uint32_t>(sum)));
    hn::StoreU(running, kU32, times + i / kTimeBlock + 1);
    // Sixteen blocks of eight rates below 2^24 sum up to less than 2^32: the last time tells the whole.
    sum += static_cast<std::uint32_t>(times[(i + 2 * kStep) / kTimeBlock] - static_cast<std::uint32_t>(sum));
  }
  for (; i < count; ++i) {
    if (i % kTimeBlock == 0) times[i / kTimeBlock] = static_cast<std::uint32_t>(sum);
    sum += tables.rate_of_field[static_cast<std::uint32_t>(LoadUnit<Unit>(units, i) >> shift) & mask];
  }
  times[(count + kTimeBlock - 1) / kTimeBlock] = static_cast<std::uint32_t>(sum);
  return sum;
}

std::uint64_t SumRatesOfWidth(const std::uint8_t* units, std::uint32_t count, int unit_bytes,
                              const ExpandedTables& tables, std::uint32_t* times) {
  return WithUnit(unit_bytes, [&]<typename Unit>() { return SumRates<Unit>(units, count, tables, times); });
}

// --- digest_words ---

DigestSums DigestWords(const std::uint8_t* data, std::uint32_t first_word, std::uint32_t word_count,
                       const DigestKeys& keys) {
  using VecU64 = hn::Vec<hn::ScalableTag<std::uint64_t>>;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(kU32));
  const auto prime = hn::Set(kU64, kDigestPrime);
  const auto fold = [&](VecU64 sum) { return hn::Add(hn::And(sum, prime), hn::ShiftRight<61>(sum)); };
  const std::uint32_t* keys0 = keys.word[0].data() + first_word;
  const std::uint32_t* keys1 = keys.word[1].data() + first_word;
  VecU64 even0 = hn::Zero(kU64);
  VecU64 odd0 = even0;
  VecU64 even1 = even0;
  VecU64 odd1 = even0;
  std::uint32_t i = 0;
  // A folded sum and seven products of 61 bits fit 64 bits.
  while (i + lanes <= word_count) {
    for (int k = 0; k < 7 && i + lanes <= word_count; ++k, i += lanes) {
      const auto words = LoadUnits<std::uint32_t>(data + 4 * std::size_t{i});
      const auto key0 = hn::LoadU(kU32, keys0 + i);
      const auto key1 = hn::LoadU(kU32, keys1 + i);
      const auto odd = [&](auto v) { return hn::BitCast(kU32, hn::ShiftRight<32>(hn::BitCast(kU64, v))); };
      const auto odd_words = odd(words);
      even0 = hn::Add(even0, hn::MulEven(words, key0));
      odd0 = hn::Add(odd0, hn::MulEven(odd_words, odd(key0)));
      even1 = hn::Add(even1, hn::MulEven(words, key1));
      odd1 = hn::Add(odd1, hn::MulEven(odd_words, odd(key1)));
    }
    even0 = fold(even0);
    odd0 = fold(odd0);
    even1 = fold(even1);
    odd1 = fold(odd1);
  }
  DigestSums sums{};
  HWY_ALIGN std::uint64_t folded[HWY_MAX_BYTES / 8];
  const auto collect = [&](VecU64 sum, std::uint64_t& into) {
    hn::Store(fold(sum), kU64, folded);
    for (std::uint32_t k = 0; k < lanes / 2; ++k) {
      into += folded[k];
      into = (into & kDigestPrime) + (into >> 61);
    }
  };
  collect(even0, sums.sums[0]);
  collect(odd0, sums.sums[0]);
  collect(even1, sums.sums[1]);
  collect(odd1, sums.sums[1]);
  for (; i < word_count; ++i) {
    const std::uint64_t word = LoadU32(data + 4 * std::size_t{i});
    const std::uint64_t sum0 = sums.sums[0] + word * keys0[i];
    const std::uint64_t sum1 = sums.sums[1] + word * keys1[i];
    sums.sums[0] = (sum0 & kDigestPrime) + (sum0 >> 61);
    sums.sums[1] = (sum1 & kDigestPrime) + (sum1 >> 61);
  }
  return sums;
}

// --- digest_u16 ---

#include "codec/kernels/digest_changes-inl.h"

// --- split_u16 ---

void SplitU16(const std::uint8_t* changes, std::size_t count, std::uint32_t first, std::uint32_t* positions,
              std::uint8_t* old_units, std::uint8_t* new_units) {
  constexpr std::size_t kCount = hn::MaxLanes(hn::ScalableTag<std::uint32_t>());
  constexpr std::size_t kRecord = RecordBytes(sizeof(std::uint16_t));
  const hn::Rebind<std::uint16_t, decltype(kU32)> u16;
  const hn::Repartition<std::uint8_t, decltype(u16)> u16_bytes;
  std::size_t k = 0;
  for (; k + kCount <= count; k += kCount) {
    // A position, then both units in one number.
    const auto low = LoadUnits<std::uint32_t>(changes + k * kRecord);
    const auto high = LoadUnits<std::uint32_t>(changes + (k + kCount / 2) * kRecord);
    const auto units = hn::ConcatOdd(kU32, high, low);
    hn::StoreU(hn::Add(hn::ConcatEven(kU32, high, low), hn::Set(kU32, first)), kU32, positions + k);
    hn::StoreU(hn::BitCast(u16_bytes, hn::TruncateTo(u16, units)), u16_bytes, old_units + 2 * k);
    hn::StoreU(hn::BitCast(u16_bytes, hn::TruncateTo(u16, hn::ShiftRight<16>(units))), u16_bytes, new_units + 2 * k);
  }
  for (; k < count; ++k) {
    const auto change = LoadChange<std::uint16_t>(changes, k);
    positions[k] = first + change.position;
    StoreUnit<std::uint16_t>(old_units, k, change.old_unit);
    StoreUnit<std::uint16_t>(new_units, k, change.new_unit);
  }
}

// --- decode_sparse ---

const hn::Full128<std::uint16_t> kRow;
using Row = hn::Vec<hn::Full128<std::uint16_t>>;

// Eight consecutive units, a time block, narrowed to 16 bits each such that ColumnShift and the field's mask still find
// the class field.
template <typename Unit>
HWY_INLINE Row LoadBlock(const std::uint8_t* units, const ClassRule& rule) {
  if constexpr (sizeof(Unit) == 1) {
    return hn::PromoteTo(kRow, hn::LoadU(hn::Full64<std::uint8_t>(), units));
  } else if constexpr (sizeof(Unit) == 2) {
    return hn::BitCast(kRow, hn::LoadU(hn::Full128<std::uint8_t>(), units));
  } else {
    alignas(16) std::uint16_t fields[kTimeBlock];
    for (std::uint32_t k = 0; k < kTimeBlock; ++k) {
      fields[k] = static_cast<std::uint16_t>((LoadUnit<Unit>(units, k) >> rule.shift) & 0xff);
    }
    return hn::Load(kRow, fields);
  }
}

template <typename Unit>
HWY_INLINE int ColumnShift(const ClassRule& rule) {
  return sizeof(Unit) <= 2 ? rule.shift : 0;
}

#include "codec/kernels/decode_lane_guess-inl.h"
#include "codec/kernels/decode_lane_symbols-inl.h"
#include "codec/kernels/decode_lane_windows-inl.h"
#include "codec/kernels/decode_sparse-inl.h"
#include "codec/kernels/decode_sparse_group-inl.h"
#include "codec/kernels/decode_sparse_lanes-inl.h"

}  // namespace

const EncodeKernels* GetEncodeKernels();    // encode_kernels_simd.cc
const ConvertKernels* GetConvertKernels();  // convert_kernels_simd.cc

const Kernels* GetKernels() {
#if HWY_TARGET == HWY_AVX3_DL
  constexpr const char* kName = "avx512vbmi";
#elif HWY_TARGET == HWY_AVX3
  constexpr const char* kName = "avx512";
#elif HWY_TARGET == HWY_AVX2
  constexpr const char* kName = "avx2";
#elif HWY_TARGET == HWY_SSE4
  constexpr const char* kName = "sse4";
#elif HWY_TARGET == HWY_NEON
  constexpr const char* kName = "neon";
#else
  constexpr const char* kName = "baseline";
#endif
  static const Kernels kKernels = {kName,    FindChanged,  SumRatesOfWidth, DigestWords,        DigestU16,
                                   SplitU16, DecodeSparse, DecodeGaps,      GetEncodeKernels(), GetConvertKernels()};
  return &kKernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace weightwire
HWY_AFTER_NAMESPACE();
#endif  // not HWY_SCALAR

#if HWY_ONCE
#include <hwy/targets.h>

#include <cstdlib>

namespace weightwire {
namespace {

struct Target {
  std::int64_t bit;
  const Kernels* (*get)();
};

// Best first.
constexpr Target kTargets[] = {
#if HWY_TARGETS & HWY_AVX3_DL
    {HWY_AVX3_DL, N_AVX3_DL::GetKernels},
#endif
#if HWY_TARGETS & HWY_AVX3
    {HWY_AVX3, N_AVX3::GetKernels},
#endif
#if HWY_TARGETS & HWY_AVX2
    {HWY_AVX2, N_AVX2::GetKernels},
#endif
#if HWY_TARGETS & HWY_SSE4
    {HWY_SSE4, N_SSE4::GetKernels},
#endif
#if HWY_TARGETS & HWY_NEON
    {HWY_NEON, N_NEON::GetKernels},
#endif
};

}  // namespace

std::vector<const Kernels*> AllKernels() {
  // Asked once: on a virtual machine an answer can take tens of microseconds.
  static const std::int64_t kSupported = hwy::SupportedTargets();
  std::vector<const Kernels*> all;
  for (const Target& target : kTargets) {
    if ((kSupported & target.bit) != 0) all.push_back(target.get());
  }
  all.push_back(ScalarKernels());
  return all;
}

Result<const Kernels*> KernelsNamed(std::string_view name) {
  std::string possible;
  for (const Kernels* kernels : AllKernels()) {
    if (name == kernels->name) return kernels;
    possible += std::string(possible.empty() ? "" : ", ") + kernels->name;
  }
  return Error(ErrorCode::kInvalidArgument, "no instruction set named '" + std::string(name) +
                                                "' on this machine: WEIGHTWIRE_ISA can be " + possible);
}

Result<const Kernels*> ChooseKernels() {
  const char* name = std::getenv("WEIGHTWIRE_ISA");
  if (name != nullptr && *name != '\0') return KernelsNamed(name);
  return AllKernels().front();
}

}  // namespace weightwire
#endif  // HWY_ONCE
