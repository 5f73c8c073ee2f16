// Readers: new bits that lie nowhere as they are to be published.
//
// A trainer may hold its weights as numbers of another type, in another order or on another device. A reader makes the
// units that are asked for from them, batch by batch, so the encoder needs no second copy of the model.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"

namespace weightwire {

// The units of one entry, in row-major order of its box.
//
// Thread safety: any number of threads may read. The same units have the same bits as long as the state they are made
// from stands still, which its owner sees to. If it does not, and the request says so (EncodeRequest::may_move), what
// is encoded with an update of the base copy is still one state, which the base then holds: each unit is taken from one
// reading of it.
class UnitReader {
 public:
  virtual ~UnitReader() = default;

  // Batches of `count` units each, which begin at the units `firsts`, one after another to `out`.
  // REQUIRES: all are units of the entry.
  virtual Status Read(std::span<const std::uint64_t> firsts, std::uint32_t count, std::uint8_t* out) const = 0;

  // The F32 that `count` units are the BF16 of, if that is how they are made and the F32 lie one after another; nullptr
  // if not. Who compares the units can then make them itself, which is quicker than Read.
  [[nodiscard]] virtual const std::uint8_t* FloatsOf(std::uint64_t /*first*/, std::uint64_t /*count*/) const {
    return nullptr;
  }

  // Whether a few thousand units at a time come as quickly as millions. They then never leave the cache.
  [[nodiscard]] virtual bool reads_small_batches() const = 0;
};

// Any number of units.
Status ReadUnits(const UnitReader& reader, std::uint64_t first, std::uint64_t count, int unit_bytes, std::uint8_t* out);

}  // namespace weightwire
