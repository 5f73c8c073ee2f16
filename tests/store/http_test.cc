#include "store/http/http.h"

#include <gtest/gtest.h>

#include "store/bytes.h"

namespace weightwire {
namespace {

using testing::ExpectError;

TEST(HttpTest, AHostThatDoesNotResolveIsSaidEveryTime) {
  HttpOptions options;
  options.ignore_proxies = true;  // one would resolve it instead of us
  HttpClient client(options);
  HttpRequest request;
  request.url = "http://no-such-host.invalid/x";
  // Of what the first one leaves behind nothing may stand in the way of the others.
  for (int i = 0; i < 3; ++i) ExpectError(client.Perform(request), ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace weightwire
