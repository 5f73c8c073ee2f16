// Moving one large object through a store, against curl moving the same bytes.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "bench/setup.h"
#include "bench/timings.h"

namespace weightwire {

struct TransferTimes {
  std::uint64_t size_bytes = 0;
  Timings upload;         // as a publisher puts a part
  Timings download;       // as a follower gets one, its hash checked
  Timings curl_upload;    // one plain PUT of a file, signed but not hashed
  Timings curl_download;  // one plain GET, thrown away
};

// `location` is an s3:// URL; what is written below it is removed again.
Result<TransferTimes> MeasureTransfers(const BenchSetup& setup, const std::string& location, std::uint64_t size_bytes,
                                       std::size_t repeat);

}  // namespace weightwire
