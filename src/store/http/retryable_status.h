// Which HTTP statuses mean that the same request may succeed later. Each store adds what its service answers besides.
#pragma once

namespace weightwire {

// The request timed out, came too early or too often, or the server failed. A write with a status from 500 on may still
// have happened, unless the service itself says that it did nothing.
[[nodiscard]] constexpr bool IsRetryableStatus(int status) {
  return status == 408 || status == 425 || status == 429 || status >= 500;
}

}  // namespace weightwire
