#include "cli/listen_address.h"

#include <fmt/format.h>

#include <limits>

#include "cli/text.h"

namespace weightwire {
namespace {

constexpr std::string_view kLoopback = "127.0.0.1";

Error Invalid(std::string_view text, std::string_view why) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("'{}' is no address to listen at: {}; write for example :9400, 0.0.0.0:9400 or [::1]:9400", text,
                      why)};
}

}  // namespace

Result<ListenAddress> ParseListenAddress(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || text.ends_with(']')) return Invalid(text, "it has no port");
  std::string_view host = text.substr(0, colon);
  const auto port = ParseNumber(std::string(text.substr(colon + 1)));
  if (!port.ok()) return Invalid(text, "its port is no number");
  if (port.value() > std::numeric_limits<std::uint16_t>::max()) return Invalid(text, "its port is above 65535");
  if (host.starts_with('[') && host.ends_with(']') && host.size() > 2) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]/") != std::string_view::npos) {
    return Invalid(text, "an IPv6 address needs brackets, and a URL is not accepted");
  }
  return ListenAddress{std::string(host.empty() ? kLoopback : host), static_cast<std::uint16_t>(port.value())};
}

std::string TextOf(const ListenAddress& address) {
  const bool is_v6 = address.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", is_v6 ? "[" : "", address.host, is_v6 ? "]" : "", address.port);
}

}  // namespace weightwire
