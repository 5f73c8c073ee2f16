#include "codec/format/rans.h"

namespace weightwire {

namespace {
// A stream is its words in the order the encoder made them, then the final state in as few bytes as tell its length:
// up to eight if there are no words, otherwise five to eight, so that the total length decides how many.
constexpr std::size_t kShortestStateAfterWords = 5;
constexpr std::size_t kLongestState = 8;
}  // namespace

void RansEncoder::Finish(std::span<const std::uint32_t> words, std::uint64_t state, std::vector<std::uint8_t>& out) {
  std::size_t state_bytes = words.empty() ? 0 : kShortestStateAfterWords;
  while (state_bytes < kLongestState && (state >> (8 * state_bytes)) != 0) ++state_bytes;
  const std::size_t begin = out.size();
  out.resize(begin + 4 * words.size() + state_bytes);
  std::uint8_t* to = out.data() + begin;
  for (std::size_t i = 0; i < words.size(); ++i) StoreU32(to + 4 * i, words[i]);
  to += 4 * words.size();
  for (std::size_t i = 0; i < state_bytes; ++i) to[i] = static_cast<std::uint8_t>(state >> (8 * i));
}

RansDecoder::RansDecoder(std::span<const std::uint8_t> bytes) : state_(0) {
  const std::size_t size = bytes.size();
  const std::size_t state_bytes =
      size <= kLongestState ? size : kShortestStateAfterWords + (size - kShortestStateAfterWords) % 4;
  words_left_ = (size - state_bytes) / 4;
  for (std::size_t i = 0; i < state_bytes; ++i) state_ |= std::uint64_t{bytes[4 * words_left_ + i]} << (8 * i);
  if (words_left_ != 0) {
    words_ = bytes.data();
    next_word_ = LoadU32(words_ + 4 * (words_left_ - 1));
  }
}

}  // namespace weightwire
