#include "codec/format/rans.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "codec/format/step_coding.h"

namespace weightwire {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Events = std::vector<RansEvent>;

Bytes Encode(const Events& events) {
  RansEncoder encoder;
  std::vector<std::uint32_t> words(events.size() + 1);
  std::uint32_t* next = words.data();
  for (std::size_t i = events.size(); i-- > 0;) encoder.Push(events[i], next);
  Bytes stream;
  RansEncoder::Finish({words.data(), next}, encoder.state(), stream);
  return stream;
}

// Pops the events as a decoder that knows the truth would; false as soon as one is not where it should be, or the
// stream does not end with the last.
bool Decodes(const Bytes& stream, const Events& events) {
  RansDecoder decoder(stream);
  for (const RansEvent& event : events) {
    const std::uint64_t width = event.width == 0 ? kRansTotal : event.width;
    if (decoder.Peek() < event.start || decoder.Peek() - event.start >= width) return false;
    decoder.Pop(event);
  }
  return decoder.Finished();
}

// Events of all widths: rare, likely, nearly certain, certain.
Events RandomEvents(std::mt19937_64& random, std::size_t count) {
  Events events;
  for (std::size_t i = 0; i < count; ++i) {
    switch (random() % 8) {
      case 0:
        events.push_back({0, 0});
        break;
      case 1:
        events.push_back({static_cast<std::uint32_t>(random()), 1});
        break;
      case 2:
        events.push_back({1, 0xffffffff});
        break;
      default: {
        const std::uint64_t width = 1 + (random() >> 32 >> (random() % 32));
        events.push_back(
            {static_cast<std::uint32_t>(random() % (kRansTotal - width + 1)), static_cast<std::uint32_t>(width)});
      }
    }
  }
  return events;
}

TEST(Rans, DecodesEventsInOrder) {
  std::mt19937_64 random(1);
  for (std::size_t count = 0; count < 300; ++count) {
    const Events events = RandomEvents(random, count);
    const Bytes stream = Encode(events);
    ASSERT_TRUE(Decodes(stream, events)) << count;
  }
  const Events many = RandomEvents(random, 100'000);
  EXPECT_TRUE(Decodes(Encode(many), many));
}

TEST(Rans, CertainEventsCostNothing) {
  EXPECT_EQ(Encode({}), (Bytes{1}));
  EXPECT_EQ(Encode(Events(1000, {0, 0})), (Bytes{1}));
}

TEST(Rans, TheStreamIsCloseToTheEntropyOfItsEvents) {
  // 1000 events of a quarter each: 2000 bits, and no more than four bytes beside them.
  std::mt19937_64 random(2);
  Events events;
  for (int i = 0; i < 1000; ++i) events.push_back({static_cast<std::uint32_t>(random() % 4) << 30, 1u << 30});
  EXPECT_LE(Encode(events).size(), 254u);
  EXPECT_GE(Encode(events).size(), 250u);
}

TEST(Rans, EveryLengthOfAStreamSplitsIntoWordsAndState) {
  // spec/FORMAT.md, "Entropy coder": the state is all L bytes if L <= 8, otherwise the last 5 + (L - 5) mod 4. So
  // streams made of raw bits, longer and longer, must come back at every length.
  std::mt19937_64 random(3);
  std::vector<bool> seen(64, false);
  for (int bits = 0; bits < 400; ++bits) {
    Events events;
    for (int i = 0; i < bits; ++i) events.push_back({static_cast<std::uint32_t>(random() & 1) << 31, 1u << 31});
    const Bytes stream = Encode(events);
    ASSERT_TRUE(Decodes(stream, events)) << stream.size();
    if (stream.size() < seen.size()) seen[stream.size()] = true;
  }
  // (From the state 1 a bit leads at once to four bytes or stays at one.)
  for (std::size_t length = 4; length <= 40; ++length) EXPECT_TRUE(seen[length]) << length;
}

TEST(Rans, ShortStreamsAreAStateAndNothingElse) {
  for (std::size_t length = 0; length <= 8; ++length) {
    Bytes stream(length, 0);
    for (std::size_t i = 0; i < length; ++i) stream[i] = static_cast<std::uint8_t>(i + 1);
    RansDecoder decoder(stream);
    EXPECT_EQ(decoder.Peek() & 0xff, length == 0 ? 0 : 1u);
    EXPECT_EQ(decoder.Finished(), length == 1) << length;  // {1} is the state 1
  }
  EXPECT_TRUE(RansDecoder(Bytes{1, 0, 0, 0, 0, 0, 0, 0}).Finished());
  EXPECT_FALSE(RansDecoder(Bytes{0}).Finished());
  EXPECT_FALSE(RansDecoder(Bytes{1, 0, 0, 0, 1}).Finished());
}

TEST(Rans, LongerStreamsBeginWithWords) {
  // Nine bytes are one word and five of state, twelve one word and eight.
  for (std::size_t length = 9; length <= 12; ++length) {
    Bytes stream(length, 0);
    stream[4] = 7;
    EXPECT_EQ(RansDecoder(stream).Peek(), 7u) << length;
    stream[4] = 1;
    EXPECT_FALSE(RansDecoder(stream).Finished()) << "a word is left";
  }
}

TEST(Rans, ReadingPastTheEndIsHarmless) {
  for (const Bytes& stream : {Bytes{}, Bytes{1}, Bytes{255}, Bytes(9, 255)}) {
    RansDecoder decoder(stream);
    for (int i = 0; i < 1000; ++i) decoder.PopBits(1 + i % 32);
    for (int i = 0; i < 1000; ++i) decoder.Pop({0, 0});
  }
}

TEST(Rans, DamageIsNearlyAlwaysFoundAtTheEnd) {
  // A decoder that does not know the truth: its three symbols cover everything, so only Finished() can object. It is
  // the first net, not the last: what slips through (about one in 2^31 for long streams, more for short ones) meets the
  // digests.
  constexpr RansEvent kSymbols[3] = {{0, 1234567891}, {1234567891, 2000000011}, {3234567902, 1060399394}};
  const auto symbol_at = [&](std::uint32_t position) {
    return position < kSymbols[1].start ? 0 : position < kSymbols[2].start ? 1 : 2;
  };
  std::mt19937_64 random(5);
  Events events;
  for (int i = 0; i < 400; ++i) events.push_back(kSymbols[random() % 3]);
  const Bytes stream = Encode(events);
  const auto finishes = [&](const Bytes& bytes) {
    RansDecoder decoder(bytes);
    for (int i = 0; i < 400; ++i) decoder.Pop(kSymbols[symbol_at(decoder.Peek())]);
    return decoder.Finished();
  };
  ASSERT_TRUE(finishes(stream));
  int unseen = 0;
  for (std::size_t length = 0; length < stream.size(); ++length) {
    unseen += finishes(Bytes(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(length)));
  }
  Bytes longer = stream;
  for (int i = 0; i < 12; ++i) {
    longer.push_back(static_cast<std::uint8_t>(random()));
    unseen += finishes(longer);
  }
  for (std::size_t bit = 0; bit < 8 * stream.size(); ++bit) {
    Bytes flipped = stream;
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1 << (bit % 8));
    unseen += finishes(flipped);
  }
  EXPECT_LE(unseen, 3);
}

TEST(Rans, AFlippedBitChangesAnEventOrTheEnd) {
  // Rare events leave nearly every flip outside their interval; whatever stays inside must change the end.
  std::mt19937_64 random(6);
  const Events events = RandomEvents(random, 200);
  const Bytes stream = Encode(events);
  ASSERT_TRUE(Decodes(stream, events));
  for (std::size_t bit = 0; bit < 8 * stream.size(); ++bit) {
    Bytes flipped = stream;
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1 << (bit % 8));
    EXPECT_FALSE(Decodes(flipped, events)) << bit;
  }
}

TEST(Rans, DecodesRawBitsOfEveryCount) {
  std::mt19937_64 random(7);
  Events events;
  std::vector<std::pair<std::uint64_t, int>> written;
  for (int bits = 0; bits <= 62; ++bits) {
    for (const std::uint64_t raw : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{random()}}) {
      const std::uint64_t value = bits == 0 ? 0 : raw >> (64 - bits);
      RansEvent raw_events[2];
      RansEvent* end = AppendRawBits(value, bits, raw_events);
      ASSERT_EQ(end - raw_events, bits == 0 ? 0 : bits <= 32 ? 1 : 2);
      events.insert(events.end(), raw_events, end);
      written.emplace_back(value, bits);
    }
  }
  const Bytes stream = Encode(events);
  RansDecoder decoder(stream);
  for (const auto& [value, bits] : written) ASSERT_EQ(PopRawBits(decoder, bits), value) << bits;
  EXPECT_TRUE(decoder.Finished());
}

}  // namespace
}  // namespace weightwire
