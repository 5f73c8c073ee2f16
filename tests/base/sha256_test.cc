#include "base/sha256.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "base/sha256_pair.h"

namespace weightwire {
namespace {

// FIPS 180-4 examples.
constexpr const char* kHashOfNothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr const char* kHashOfAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

TEST(Sha256, KnownDigests) {
  EXPECT_EQ(ToHex(Sha256Of("")), kHashOfNothing);
  EXPECT_EQ(ToHex(Sha256Of("abc")), kHashOfAbc);
}

RC_GTEST_PROP(Sha256Property, DoesNotDependOnThePortions, (const std::vector<std::uint8_t>& bytes)) {
  const std::size_t cut = *rc::gen::inRange<std::size_t>(0, bytes.size() + 1);
  Sha256 hash;
  hash.Update(std::span(bytes).first(cut));
  hash.Update(std::span(bytes).subspan(cut));
  RC_ASSERT(hash.Finish() == Sha256Of(bytes));
}

// Every place of a message's end within its last block, where the length moves into a block of its own too.
TEST(Sha256Pair, EachIsTheHashOfItsOwnBytes) {
  std::vector<std::uint8_t> bytes(400);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 167 + (i >> 3));
  for (std::size_t size = 0; size <= 200; ++size) {
    const auto first = std::span(bytes).first(size);
    const auto second = std::span(bytes).subspan(199, size);
    const auto [of_first, of_second] = Sha256PairOf(first, second);
    EXPECT_EQ(ToHex(of_first), ToHex(Sha256Of(first))) << size;
    EXPECT_EQ(ToHex(of_second), ToHex(Sha256Of(second))) << size;
  }
}

RC_GTEST_PROP(Sha256PairProperty, EachIsTheHashOfItsOwnBytes, (const std::vector<std::uint8_t>& bytes)) {
  const std::size_t size = bytes.size() / 2;
  const auto first = std::span(bytes).first(size);
  const auto second = std::span(bytes).last(size);
  const auto hashes = Sha256PairOf(first, second);
  RC_ASSERT(hashes == std::pair(Sha256Of(first), Sha256Of(second)));
}

TEST(Sha256FromHex, AcceptsOneSpellingOnly) {
  EXPECT_EQ(Sha256FromHex(kHashOfAbc), Sha256Of("abc"));
  std::string upper = kHashOfAbc;
  upper[0] = 'B';
  EXPECT_EQ(Sha256FromHex(upper), std::nullopt);
  EXPECT_EQ(Sha256FromHex(std::string(kHashOfAbc) + "0"), std::nullopt);
  EXPECT_EQ(Sha256FromHex(std::string(63, '0')), std::nullopt);
  EXPECT_EQ(Sha256FromHex(std::string(63, '0') + "g"), std::nullopt);
}

}  // namespace
}  // namespace weightwire
