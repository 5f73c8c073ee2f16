// The names of objects. All keys pass here before any back end sees them, so that no back end has to escape anything
// and no key from a bucket can name something outside it.
//
// A key is made of segments separated by "/". A segment has 1 to 255 of the characters [A-Za-z0-9._-] and is neither
// "." nor "..". The first segment is not ".weightwire", which back ends keep for themselves. A key has at most
// kMaxKeyBytes bytes.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/result.h"

namespace weightwire {

// Services allow 1,024 bytes, of which a run's own prefix takes some.
inline constexpr std::size_t kMaxKeyBytes = 512;
inline constexpr std::size_t kMaxKeySegmentBytes = 255;
inline constexpr std::string_view kReservedSegment = ".weightwire";

// kInvalidArgument unless it is a key.
Status CheckKey(std::string_view key);

// kInvalidArgument unless some key could start with it. The empty prefix is one; a prefix need not end at a "/".
Status CheckKeyPrefix(std::string_view prefix);

}  // namespace weightwire
