#include "cli/peers.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>

namespace weightwire {
namespace {

constexpr std::size_t kFindRoom = 64;  // find_changed may write so many positions too many

Error ZstdError(std::size_t code) { return {ErrorCode::kIo, fmt::format("zstd failed: {}", ZSTD_getErrorName(code))}; }

}  // namespace

PeerBytes& PeerBytes::operator+=(const PeerBytes& other) {
  trl_raw += other.trl_raw;
  trl_gap += other.trl_gap;
  xor_zstd += other.xor_zstd;
  return *this;
}

void PeerMeter::Free::operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }

PeerMeter::PeerMeter(const Kernels& kernels)
    : kernels_(kernels),
      context_(ZSTD_createCCtx()),
      compressed_(ZSTD_CStreamOutSize()),
      positions_(kChunkUnits + kFindRoom) {
  WW_CHECK(context_ != nullptr);
}

Result<std::uint64_t> PeerMeter::Compress(std::span<const std::uint8_t> bytes, bool last) {
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  std::uint64_t written = 0;
  while (true) {
    ZSTD_outBuffer out{compressed_.data(), compressed_.size(), 0};
    const std::size_t left = ZSTD_compressStream2(context_.get(), &out, &in, last ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(left) != 0) return ZstdError(left);
    written += out.pos;
    if (last ? left == 0 : in.pos == in.size) return written;
  }
}

Result<PeerBytes> PeerMeter::Measure(std::span<const std::uint8_t> old_bytes, std::span<const std::uint8_t> new_bytes,
                                     int unit_bytes, const std::function<void(std::uint64_t)>& on_bytes) {
  const auto width = static_cast<std::size_t>(unit_bytes);
  const bool is_new = old_bytes.empty() && !new_bytes.empty();
  ZSTD_CCtx_reset(context_.get(), ZSTD_reset_session_and_parameters);
  ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, kPeerZstdLevel);
  ZSTD_CCtx_setPledgedSrcSize(context_.get(), new_bytes.size());

  PeerBytes bytes;
  std::uint64_t changed = 0;
  std::uint64_t next_unit = 0;  // after the last changed one
  std::uint64_t largest_gap = 0;
  const std::size_t chunk_bytes = kChunkUnits * width;
  for (std::size_t at = 0; at < new_bytes.size(); at += chunk_bytes) {
    const std::size_t size = std::min(chunk_bytes, new_bytes.size() - at);
    std::span<const std::uint8_t> input = new_bytes.subspan(at, size);
    if (!is_new) {
      const std::uint8_t* old_units = old_bytes.data() + at;
      const std::uint32_t count = kernels_.find_changed(
          old_units, input.data(), static_cast<std::uint32_t>(size / width), unit_bytes, positions_.data());
      for (std::uint32_t k = 0; k < count; ++k) {
        const std::uint64_t unit = at / width + positions_[k];
        largest_gap = std::max(largest_gap, unit - next_unit);
        next_unit = unit + 1;
      }
      changed += count;
      xored_.resize(size);
      for (std::size_t i = 0; i < size; ++i) xored_[i] = old_units[i] ^ input[i];
      input = xored_;
    }
    WW_TRY(const std::uint64_t written, Compress(input, at + size == new_bytes.size()));
    bytes.xor_zstd += written;
    on_bytes(size);
  }
  if (is_new) {
    bytes.trl_raw = bytes.trl_gap = new_bytes.size();
    return bytes;
  }
  // An int32 cannot name elements beyond 2^31; eight bytes are the next size.
  const std::uint64_t index_bytes = new_bytes.size() / width > (std::uint64_t{1} << 31) ? 8 : 4;
  bytes.trl_raw = changed * (index_bytes + width);
  bytes.trl_gap = changed * ((largest_gap <= 0xffff ? 2 : 4) + width);
  return bytes;
}

}  // namespace weightwire
