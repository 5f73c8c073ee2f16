// What a person writes to name a store, taken apart.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weightwire {

struct StoreUrl {
  enum class Kind : std::uint8_t { kFile, kS3, kHf };

  Kind kind = Kind::kFile;
  std::string path;    // of kFile
  std::string bucket;  // of kS3 the name, of kHf "owner/name"
  std::string prefix;  // a key, or empty
  std::map<std::string, std::string> query;

  // The URL without its query, for messages.
  std::string name;
};

// kInvalidArgument with what is wrong.
Result<StoreUrl> ParseStoreUrl(std::string_view url);

// "https://host[:port][/path]" without "/" at the end, or kInvalidArgument. User names and passwords are refused: they
// would appear in messages.
Result<std::string> CheckEndpoint(std::string_view endpoint);

}  // namespace weightwire
