// What other systems' formats take for the same change: really computed, payload only, without their headers.
//
//   TRL raw   an index (int32) and a value for every changed element
//   TRL gap   the same with idx[k] - idx[k-1] - 1 for the index: 16 bits each, or 32 for the whole tensor if one does
//             not fit
//   slime     XOR of the whole tensor, compressed by zstd at level 1
//
// For a tensor that the old state does not have, all of them send it as it is (slime: compressed).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "codec/kernels/kernels.h"

struct ZSTD_CCtx_s;  // NOLINT(readability-identifier-naming): zstd's own name; its headers stay out of ours

namespace weightwire {

inline constexpr int kPeerZstdLevel = 1;

struct PeerBytes {
  std::uint64_t trl_raw = 0;
  std::uint64_t trl_gap = 0;
  std::uint64_t xor_zstd = 0;

  PeerBytes& operator+=(const PeerBytes& other);
};

// Measures tensor by tensor, in bounded memory. One thread at a time.
class PeerMeter {
 public:
  explicit PeerMeter(const Kernels& kernels);

  // `old_bytes` is empty, or as long as `new_bytes`. Calls on_bytes with every number of bytes done.
  Result<PeerBytes> Measure(std::span<const std::uint8_t> old_bytes, std::span<const std::uint8_t> new_bytes,
                            int unit_bytes, const std::function<void(std::uint64_t)>& on_bytes);

 private:
  // The size of the output for the next bytes of the input.
  Result<std::uint64_t> Compress(std::span<const std::uint8_t> bytes, bool last);

  struct Free {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  const Kernels& kernels_;
  std::unique_ptr<ZSTD_CCtx_s, Free> context_;
  std::vector<std::uint8_t> xored_;
  std::vector<std::uint8_t> compressed_;
  std::vector<std::uint16_t> positions_;
};

}  // namespace weightwire
