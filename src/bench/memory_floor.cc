#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/memory_floor.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, as highway demands.
#include <hwy/highway.h>

#include "bench/memory_floor.h"

HWY_BEFORE_NAMESPACE();
namespace weightwire::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Longs = hn::ScalableTag<std::uint64_t>;

HWY_INLINE hn::Vec<Longs> LoadLongs(const std::uint8_t* from) {
  return hn::LoadU(Longs(), reinterpret_cast<const std::uint64_t*>(from));
}

// By hand: the compiler's own sum of 512 bits is one of signed numbers, which must not overflow.
std::uint64_t SumLanes(hn::Vec<Longs> sums) {
  HWY_ALIGN std::uint64_t lanes[hn::MaxLanes(Longs())];
  hn::Store(sums, Longs(), lanes);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < hn::Lanes(Longs()); ++i) sum += lanes[i];
  return sum;
}

std::uint64_t ReadOnce(const std::uint8_t* bytes, std::size_t size) {
  const std::size_t step = hn::Lanes(Longs()) * sizeof(std::uint64_t);
  auto s0 = hn::Zero(Longs()), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
  std::size_t i = 0;
  for (; i + 8 * step <= size; i += 8 * step) {
    s0 = hn::Add(s0, LoadLongs(bytes + i));
    s1 = hn::Add(s1, LoadLongs(bytes + i + step));
    s2 = hn::Add(s2, LoadLongs(bytes + i + 2 * step));
    s3 = hn::Add(s3, LoadLongs(bytes + i + 3 * step));
    s4 = hn::Add(s4, LoadLongs(bytes + i + 4 * step));
    s5 = hn::Add(s5, LoadLongs(bytes + i + 5 * step));
    s6 = hn::Add(s6, LoadLongs(bytes + i + 6 * step));
    s7 = hn::Add(s7, LoadLongs(bytes + i + 7 * step));
  }
  std::uint64_t rest = 0;
  for (; i < size; ++i) rest += bytes[i];
  return rest + SumLanes(hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(hn::Add(s4, s5), hn::Add(s6, s7))));
}

std::uint64_t ReadBothOnce(const std::uint8_t* a, const std::uint8_t* b, std::size_t size) {
  const std::size_t step = hn::Lanes(Longs()) * sizeof(std::uint64_t);
  auto s0 = hn::Zero(Longs()), s1 = s0, s2 = s0, s3 = s0, t0 = s0, t1 = s0, t2 = s0, t3 = s0;
  std::size_t i = 0;
  for (; i + 4 * step <= size; i += 4 * step) {
    s0 = hn::Add(s0, LoadLongs(a + i));
    t0 = hn::Add(t0, LoadLongs(b + i));
    s1 = hn::Add(s1, LoadLongs(a + i + step));
    t1 = hn::Add(t1, LoadLongs(b + i + step));
    s2 = hn::Add(s2, LoadLongs(a + i + 2 * step));
    t2 = hn::Add(t2, LoadLongs(b + i + 2 * step));
    s3 = hn::Add(s3, LoadLongs(a + i + 3 * step));
    t3 = hn::Add(t3, LoadLongs(b + i + 3 * step));
  }
  std::uint64_t rest = 0;
  for (; i < size; ++i) rest += a[i] + b[i];
  return rest + SumLanes(hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(hn::Add(t0, t1), hn::Add(t2, t3))));
}

void XorInto(const std::uint8_t* a, const std::uint8_t* b, std::uint8_t* to, std::size_t size) {
  const hn::ScalableTag<std::uint8_t> tag;
  const std::size_t step = hn::Lanes(tag);
  std::size_t i = 0;
  for (; i + step <= size; i += step) hn::StoreU(hn::Xor(hn::LoadU(tag, a + i), hn::LoadU(tag, b + i)), tag, to + i);
  for (; i < size; ++i) to[i] = a[i] ^ b[i];
}

const char* Isa() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace weightwire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weightwire {
namespace {
HWY_EXPORT(ReadOnce);
HWY_EXPORT(ReadBothOnce);
HWY_EXPORT(XorInto);
HWY_EXPORT(Isa);
}  // namespace

std::uint64_t ReadOnce(const std::uint8_t* bytes, std::size_t size) {
  return HWY_DYNAMIC_DISPATCH(ReadOnce)(bytes, size);
}
std::uint64_t ReadBothOnce(const std::uint8_t* a, const std::uint8_t* b, std::size_t size) {
  return HWY_DYNAMIC_DISPATCH(ReadBothOnce)(a, b, size);
}
void XorInto(const std::uint8_t* a, const std::uint8_t* b, std::uint8_t* to, std::size_t size) {
  HWY_DYNAMIC_DISPATCH(XorInto)(a, b, to, size);
}
const char* MemoryFloorIsa() { return HWY_DYNAMIC_DISPATCH(Isa)(); }

}  // namespace weightwire
#endif  // HWY_ONCE
