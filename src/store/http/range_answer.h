// The answer to a read of a range, checked.
#pragma once

#include <functional>

#include "store/http/http.h"
#include "store/store.h"

namespace weightwire {

// Ok when the request brought exactly the `size` bytes from `offset` on. `refusal` makes the error for an answer that
// is neither that nor "out of range".
Status CheckRangeAnswer(const Store& store, std::string_view key, std::uint64_t offset, std::uint64_t size,
                        const Result<HttpAnswer>& result, const std::function<Error(const HttpAnswer&)>& refusal);

}  // namespace weightwire
