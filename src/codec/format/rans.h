// The entropy coder: range asymmetric numeral systems with a 64-bit state, 32-bit words and one kind of step.
//
// A step codes one event of probability width/2^32 whose interval of [0, 2^32) starts at `start`. Raw bits are events
// of equal width. The encoder works backwards: it pushes the last event first, and Finish() gives the bytes the
// decoder reads. Unlike the textbook version the state starts at 1 and is written with no more bytes than it needs, so
// that a tile costs hardly more than its events; and a decoder that ends in any state but 1, or with words left, has
// found damage. spec/FORMAT.md, "Entropy coder".
//
// All are single-threaded values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace weightwire {

inline constexpr std::uint64_t kRansTotal = std::uint64_t{1} << 32;

struct RansEvent {
  std::uint32_t start;
  std::uint32_t width;  // 0 stands for 2^32: the event is certain and costs nothing
};

// The encoder's state. Words go to memory the caller owns, of which one event needs at most one.
class RansEncoder {
 public:
  // REQUIRES: *words has room for one word. Branches on the data would be mispredicted, so the word is always written
  // and kept only if it was due.
  void Push(RansEvent event, std::uint32_t*& words) {
    const std::uint64_t width = event.width == 0 ? kRansTotal : event.width;
    *words = static_cast<std::uint32_t>(state_);
    const bool emit = (state_ >> 32) >= width;
    words += emit ? 1 : 0;
    const std::uint64_t state = emit ? state_ >> 32 : state_;
    const std::uint64_t quotient = state / width;
    state_ = (quotient << 32) + event.start + (state - quotient * width);
  }

  // Appends the stream, words and final state, to `out`.
  static void Finish(std::span<const std::uint32_t> words, std::uint64_t state, std::vector<std::uint8_t>& out);

  [[nodiscard]] std::uint64_t state() const { return state_; }

 private:
  std::uint64_t state_ = 1;
};

// Reading past the end yields nothing rather than an error: damage shows in Finished(), which every tile checks.
// The bytes must outlive the decoder.
class RansDecoder {
 public:
  RansDecoder() = default;
  explicit RansDecoder(std::span<const std::uint8_t> bytes);
  // A decoder in the middle of a stream, whose words begin at `words`.
  static RansDecoder Resume(std::uint64_t state, const std::uint8_t* words, std::size_t words_left) {
    RansDecoder decoder;
    decoder.state_ = state;
    decoder.words_left_ = words_left;
    if (words_left != 0) {
      decoder.words_ = words;
      decoder.next_word_ = LoadU32(words + 4 * (words_left - 1));
    }
    return decoder;
  }

  [[nodiscard]] std::uint64_t state() const { return state_; }
  [[nodiscard]] std::size_t words_left() const { return words_left_; }

  // Where the next event lies. Whoever finds the event calls Pop with exactly its interval.
  [[nodiscard]] std::uint32_t Peek() const { return static_cast<std::uint32_t>(state_); }

  void Pop(RansEvent event) {
    const std::uint64_t width = event.width == 0 ? kRansTotal : event.width;
    Refill(width * (state_ >> 32) + (Peek() - event.start));
  }

  // REQUIRES: 1 <= count <= 32.
  std::uint32_t PopBits(int count) {
    const auto bits = static_cast<std::uint32_t>(std::uint64_t{Peek()} >> (32 - count));
    Refill(((state_ >> 32) << (32 - count)) + (Peek() & static_cast<std::uint32_t>((kRansTotal >> count) - 1)));
    return bits;
  }

  [[nodiscard]] bool Finished() const { return state_ == 1 && words_left_ == 0; }

 private:
  void Refill(std::uint64_t state) {
    // Without branches, which would be mispredicted: the next word is at hand already.
    const bool due = (state >> 32) == 0 && words_left_ != 0;
    state_ = due ? (state << 32) | next_word_ : state;
    words_left_ -= due ? 1 : 0;
    next_word_ = LoadU32(words_ + 4 * (words_left_ - (words_left_ != 0 ? 1 : 0)));
  }

  // What words_ points to in a stream without words, so that there is always something to load.
  static constexpr std::uint8_t kNoWord[4] = {};

  std::uint64_t state_ = 1;
  const std::uint8_t* words_ = kNoWord;
  std::size_t words_left_ = 0;  // read from the back
  std::uint32_t next_word_ = 0;
};

}  // namespace weightwire
