#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/bytes.h"
#include "base/check.h"

namespace weightwire {
namespace {

std::optional<std::uint8_t> HexDigit(char c) {
  if (c >= '0' && c <= '9') return static_cast<std::uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<std::uint8_t>(c - 'a' + 10);
  return std::nullopt;
}

}  // namespace

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

// libcrypto fails here only when it has no memory or no SHA-256 at all: nothing a caller could do anything about.
Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  WW_CHECK(context_ != nullptr);
  WW_CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256::Update(std::span<const std::uint8_t> bytes) {
  WW_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  unsigned size = 0;
  WW_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1);
  WW_CHECK(size == digest.size());
  return digest;
}

Sha256Digest Sha256Of(std::span<const std::uint8_t> bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.Finish();
}

Sha256Digest Sha256Of(std::string_view text) { return Sha256Of(BytesOf(text)); }

std::string ToHex(std::span<const std::uint8_t> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const std::uint8_t byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::optional<Sha256Digest> Sha256FromHex(std::string_view hex) {
  Sha256Digest digest;
  if (hex.size() != digest.size() * 2) return std::nullopt;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const auto high = HexDigit(hex[2 * i]);
    const auto low = HexDigit(hex[2 * i + 1]);
    if (!high || !low) return std::nullopt;
    digest[i] = static_cast<std::uint8_t>(*high << 4 | *low);
  }
  return digest;
}

}  // namespace weightwire
