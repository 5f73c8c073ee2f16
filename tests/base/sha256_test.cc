#include "base/sha256.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

namespace weightwire {
namespace {

// FIPS 180-4 examples.
constexpr const char* kHashOfNothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr const char* kHashOfAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

TEST(Sha256, KnownDigests) {
  EXPECT_EQ(ToHex(Sha256Of("")), kHashOfNothing);
  EXPECT_EQ(ToHex(Sha256Of("abc")), kHashOfAbc);
}

RC_GTEST_PROP(Sha256Property, PiecesDoNotMatter, (const std::vector<std::uint8_t>& bytes)) {
  const std::size_t cut = *rc::gen::inRange<std::size_t>(0, bytes.size() + 1);
  Sha256 hash;
  hash.Update(std::span(bytes).first(cut));
  hash.Update(std::span(bytes).subspan(cut));
  RC_ASSERT(hash.Finish() == Sha256Of(bytes));
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
