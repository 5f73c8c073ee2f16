// The address that a server of this program listens at, as an option gives it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weightwire {

struct ListenAddress {
  std::string host;        // a name or an address, without brackets
  std::uint16_t port = 0;  // 0: any free port

  bool operator==(const ListenAddress&) const = default;
};

// Parses "127.0.0.1:9400", "localhost:9400", "[::1]:9400" or ":9400", which means 127.0.0.1: without a host, no other
// machine can connect. kInvalidArgument for anything else.
[[nodiscard]] Result<ListenAddress> ParseListenAddress(std::string_view text);

// The reverse: "[::1]:9400".
[[nodiscard]] std::string TextOf(const ListenAddress& address);

}  // namespace weightwire
