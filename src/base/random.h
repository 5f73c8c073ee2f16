// Random numbers, injected: seeded ones make a run repeatable, the system's make names nobody else has.
#pragma once

#include <cstdint>
#include <string>

namespace weightwire {

// Thread safety: one thread at a time.
class Random {
 public:
  Random() = default;
  Random(const Random&) = delete;
  Random& operator=(const Random&) = delete;
  virtual ~Random() = default;

  // 64 random bits.
  virtual std::uint64_t Next() = 0;

  // A number in [0, bound), each equally likely. REQUIRES: bound >= 1.
  std::uint64_t Below(std::uint64_t bound);

  // 32 hexadecimal digits, for names.
  std::string Hex128();
};

// xoshiro256** started by SplitMix64: the same numbers for the same seed on every machine. Not for secrets.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(std::uint64_t seed);
  std::uint64_t Next() override;

 private:
  std::uint64_t state_[4];
};

// The operating system's generator.
class SystemRandom final : public Random {
 public:
  std::uint64_t Next() override;
};

}  // namespace weightwire
