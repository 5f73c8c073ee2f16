// SHA-256 (FIPS 180-4), for naming and checking bytes; libcrypto does the work.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// libcrypto's own name for its state; its headers stay out of ours.
struct evp_md_ctx_st;  // NOLINT(readability-identifier-naming)

namespace weightwire {

using Sha256Digest = std::array<std::uint8_t, 32>;

// A hash of bytes that arrive in portions. Movable; one thread at a time.
class Sha256 {
 public:
  Sha256();

  void Update(std::span<const std::uint8_t> bytes);

  // The digest of everything so far. The object is spent afterwards: only destroy or assign to it.
  [[nodiscard]] Sha256Digest Finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

[[nodiscard]] Sha256Digest Sha256Of(std::span<const std::uint8_t> bytes);
[[nodiscard]] Sha256Digest Sha256Of(std::string_view text);

// Lower-case hexadecimal, two digits a byte.
[[nodiscard]] std::string ToHex(std::span<const std::uint8_t> bytes);

// The inverse for a SHA-256: exactly 64 lower-case digits, or nothing. Upper case is refused so that a digest has one
// spelling only, in names of objects too.
[[nodiscard]] std::optional<Sha256Digest> Sha256FromHex(std::string_view hex);

}  // namespace weightwire
