#include "codec/format/delta_bytes.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

namespace weightwire {
namespace {

using File = std::vector<std::uint8_t>;

UnsealedDelta EmptyDelta() {
  auto delta = AssembleDeltaFile({});
  WW_CHECK(delta.ok());
  return std::move(delta).value();
}

TEST(UnsealedDelta, IsADeltaFileOnceItIsSealed) {
  UnsealedDelta delta = EmptyDelta();
  const std::uint64_t size = delta.size_bytes();
  const File sealed = std::move(delta).Seal();
  EXPECT_EQ(sealed.size(), size);
  EXPECT_TRUE(DeltaFile::Parse(sealed).ok());
}

TEST(DeltaBytes, AreSealedOnceByTheFirstCaller) {
  const DeltaBytes part(EmptyDelta());
  const File expected = EmptyDelta().Seal();
  std::array<const File*, 4> seen{};
  {
    std::vector<std::jthread> threads;
    for (const File*& at : seen) threads.emplace_back([&] { at = &part.Sealed(); });
  }
  for (const File* bytes : seen) {
    EXPECT_EQ(bytes, &part.Sealed());
    EXPECT_EQ(*bytes, expected);
  }
  EXPECT_EQ(part.size_bytes(), expected.size());
}

}  // namespace
}  // namespace weightwire
