#include "base/random.h"

#include <fmt/format.h>

#include <bit>
#include <random>

#include "base/check.h"

namespace weightwire {

std::uint64_t Random::Below(std::uint64_t bound) {
  WW_CHECK(bound >= 1);
  // Numbers below 2^64 mod bound are thrown away, so that what is left is a multiple of bound.
  const std::uint64_t uneven = (0 - bound) % bound;
  while (true) {
    const std::uint64_t number = Next();
    if (number >= uneven) return number % bound;
  }
}

std::string Random::Hex128() {
  const std::uint64_t high = Next();
  return fmt::format("{:016x}{:016x}", high, Next());
}

SeededRandom::SeededRandom(std::uint64_t seed) {
  for (std::uint64_t& word : state_) {
    seed += 0x9e3779b97f4a7c15;
    std::uint64_t mixed = seed;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    word = mixed ^ mixed >> 31;
  }
}

std::uint64_t SeededRandom::Next() {
  const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const std::uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

std::uint64_t SystemRandom::Next() {
  std::random_device device;
  const std::uint64_t high = device();
  return high << 32 | device();
}

}  // namespace weightwire
