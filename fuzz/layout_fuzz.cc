// The layout reader on arbitrary text: it accepts nothing but the canonical text of what it read.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "tensor/layout.h"
#include "tensor/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weightwire;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto layout = Layout::Parse(text); layout.ok()) {
    WW_CHECK(layout.value().CanonicalJson() == text);
  }
  if (const auto map = ParseShardIndex(text); map.ok()) {
    WW_CHECK(ParseShardIndex(ShardIndexText(map.value(), 0)).value() == map.value());
  }
  return 0;
}
