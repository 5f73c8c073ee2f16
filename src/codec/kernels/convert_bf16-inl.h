// F32 to BF16, to the nearest, ties to even; every NaN becomes 0xffff (convert_scalar.h). Included inside each target's
// namespace, which has an alias hn; no include guard on purpose.

using FloatBits = hn::Vec<hn::ScalableTag<std::uint32_t>>;

// Numbers whose upper half is the BF16 of the float, unless that is a NaN.
HWY_INLINE FloatBits Bf16InUpperHalf(FloatBits bits) {
  const hn::ScalableTag<std::uint32_t> words;
  const auto is_odd = hn::TestBit(bits, hn::Set(words, 1u << 16));
  return hn::Add(bits, hn::IfThenElse(is_odd, hn::Set(words, 0x8000), hn::Set(words, 0x7fff)));
}

// The same for NaNs too.
HWY_INLINE FloatBits Bf16InUpperHalfOfAny(FloatBits bits) {
  const hn::ScalableTag<std::uint32_t> words;
  const hn::ScalableTag<float> floats;
  const auto is_nan = hn::RebindMask(words, hn::IsNaN(hn::BitCast(floats, bits)));
  return hn::IfThenElse(is_nan, hn::Set(words, ~0u), Bf16InUpperHalf(bits));
}

// As many at a time as fill a vector.
constexpr std::size_t kBf16Step = hn::MaxLanes(hn::ScalableTag<std::uint16_t>());
HWY_INLINE void StoreBf16OfFloats(const std::uint8_t* floats, std::uint8_t* out) {
  const hn::ScalableTag<std::uint16_t> u16;
  const hn::ScalableTag<std::uint32_t> words;
  const auto* from = reinterpret_cast<const std::uint32_t*>(floats);
  const hn::ScalableTag<float> numbers;
  const FloatBits first = hn::LoadU(words, from);
  const FloatBits second = hn::LoadU(words, from + kBf16Step / 2);
  FloatBits low = Bf16InUpperHalf(first);
  FloatBits high = Bf16InUpperHalf(second);
  // One question for both: the sum of two numbers is a NaN if either is one, and else only between two infinities.
  const auto sum = hn::Add(hn::BitCast(numbers, first), hn::BitCast(numbers, second));
  if (HWY_UNLIKELY(!hn::AllFalse(numbers, hn::IsNaN(sum)))) {
    low = Bf16InUpperHalfOfAny(first);
    high = Bf16InUpperHalfOfAny(second);
  }
  hn::StoreU(hn::ConcatOdd(u16, hn::BitCast(u16, high), hn::BitCast(u16, low)), u16,
             reinterpret_cast<std::uint16_t*>(out));
}
