// F32 to BF16, to the nearest, ties to even; every NaN becomes 0xffff (convert_scalar.h). Included inside each target's
// namespace, which has an alias hn; no include guard on purpose.

using FloatBits = hn::Vec<hn::ScalableTag<std::uint32_t>>;

// Words whose upper half is the BF16 of the float.
HWY_INLINE FloatBits Bf16InUpperHalf(FloatBits bits) {
  const hn::ScalableTag<std::uint32_t> words;
  const hn::ScalableTag<float> floats;
  const auto is_odd = hn::TestBit(bits, hn::Set(words, 1u << 16));
  const auto rounded = hn::Add(bits, hn::IfThenElse(is_odd, hn::Set(words, 0x8000), hn::Set(words, 0x7fff)));
  const auto is_nan = hn::RebindMask(words, hn::IsNaN(hn::BitCast(floats, bits)));
  return hn::IfThenElse(is_nan, hn::Set(words, ~0u), rounded);
}

// As many at a time as fill a vector.
constexpr std::size_t kBf16Step = hn::MaxLanes(hn::ScalableTag<std::uint16_t>());
HWY_INLINE void StoreBf16OfFloats(const std::uint8_t* floats, std::uint8_t* out) {
  const hn::ScalableTag<std::uint16_t> shorts;
  const hn::ScalableTag<std::uint32_t> words;
  const auto* from = reinterpret_cast<const std::uint32_t*>(floats);
  const auto low = hn::BitCast(shorts, Bf16InUpperHalf(hn::LoadU(words, from)));
  const auto high = hn::BitCast(shorts, Bf16InUpperHalf(hn::LoadU(words, from + kBf16Step / 2)));
  hn::StoreU(hn::ConcatOdd(shorts, high, low), shorts, reinterpret_cast<std::uint16_t*>(out));
}
