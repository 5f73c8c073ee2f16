// The other formats' sizes, against their definitions written out.
#include "cli/peers.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <random>

#include "base/bytes.h"

namespace weightwire {
namespace {

struct RandomPair {
  std::vector<std::uint8_t> old_bytes;
  std::vector<std::uint8_t> new_bytes;
};

RandomPair MakePair(std::size_t units, std::size_t changed) {
  std::mt19937_64 random(units + changed);
  RandomPair states;
  states.old_bytes.resize(2 * units);
  for (std::uint8_t& byte : states.old_bytes) byte = static_cast<std::uint8_t>(random());
  states.new_bytes = states.old_bytes;
  for (std::size_t k = 0; k < changed; ++k) states.new_bytes[2 * (random() % units)] ^= 1 + random() % 3;
  return states;
}

// As TRL and slime write it down, one after another.
PeerBytes Plainly(const RandomPair& states) {
  std::vector<std::uint64_t> positions;
  for (std::size_t i = 0; i < states.old_bytes.size() / 2; ++i) {
    if (LoadU16(&states.old_bytes[2 * i]) != LoadU16(&states.new_bytes[2 * i])) positions.push_back(i);
  }
  bool wide = false;
  for (std::size_t k = 0; k < positions.size(); ++k) {
    wide = wide || (k == 0 ? positions[0] : positions[k] - positions[k - 1] - 1) > 65535;
  }
  std::vector<std::uint8_t> xored(states.old_bytes.size());
  for (std::size_t i = 0; i < xored.size(); ++i) xored[i] = states.old_bytes[i] ^ states.new_bytes[i];
  std::vector<std::uint8_t> compressed(ZSTD_compressBound(xored.size()));
  const std::size_t size = ZSTD_compress(compressed.data(), compressed.size(), xored.data(), xored.size(), 1);
  return {6 * positions.size(), positions.size() * (wide ? 6 : 4), size};
}

PeerBytes Measured(const RandomPair& states) {
  PeerMeter meter(*ScalarKernels());
  std::uint64_t seen = 0;
  const auto bytes = meter.Measure(states.old_bytes, states.new_bytes, 2, [&](std::uint64_t n) { seen += n; });
  EXPECT_TRUE(bytes.ok());
  EXPECT_EQ(seen, states.new_bytes.size());
  return bytes.value();
}

TEST(Peers, AreMeasuredByTheirDefinitions) {
  for (const auto& [units, changed] : std::vector<std::pair<std::size_t, std::size_t>>{
           {1, 1}, {5000, 0}, {5000, 60}, {300'000, 3000}, {300'000, 2}, {1'000'000, 3}}) {
    const RandomPair states = MakePair(units, changed);
    const PeerBytes plain = Plainly(states);
    const PeerBytes measured = Measured(states);
    EXPECT_EQ(measured.trl_raw, plain.trl_raw) << units;
    EXPECT_EQ(measured.trl_gap, plain.trl_gap) << units;
    // In pieces zstd may cut its blocks elsewhere, which is worth a few bytes.
    EXPECT_NEAR(static_cast<double>(measured.xor_zstd), static_cast<double>(plain.xor_zstd),
                16 + 0.01 * static_cast<double>(plain.xor_zstd))
        << units;
  }
}

TEST(Peers, AGapThatJustFitsAndOneThatDoesNot) {
  for (const std::size_t gap : {65535, 65536}) {
    RandomPair states;
    states.old_bytes.resize(2 * 70'000);
    states.new_bytes = states.old_bytes;
    states.new_bytes[2 * gap] = 1;
    EXPECT_EQ(Measured(states).trl_gap, gap == 65535 ? 4U : 6U);
  }
}

TEST(Peers, ANewTensorIsSentWhole) {
  const RandomPair states = MakePair(1000, 0);
  PeerMeter meter(*ScalarKernels());
  const auto bytes = meter.Measure({}, states.new_bytes, 2, [](std::uint64_t) {});
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(bytes.value().trl_raw, 2000U);
  EXPECT_EQ(bytes.value().trl_gap, 2000U);
  EXPECT_GE(bytes.value().xor_zstd, 2000U);  // random bytes
}

}  // namespace
}  // namespace weightwire
