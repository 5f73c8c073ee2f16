// The format of a journal: positions with their old and new bits, of a change to files in place.
//
// The journal holds bits, not differences and not the delta itself, because a difference leads nowhere once part of its
// base is overwritten. A replay could not know which units hold old bits and which hold new ones. With both bits of
// every unit, the new state can be completed or the old one restored, whatever part of the change has reached the
// files.
//
//   "WWJRNL03"
//   state before, state after           32 bytes each
//   note                                varint length, bytes: defined by the caller
//   digests                             varint count; the tensors' digests before, then after, 16 bytes each
//   files                               varint count; for each: varint length, name, varint size
//   blocks                              varint size, then as many bytes, until a size of 0:
//       varint file, byte width of a unit, varint offset of the tensor in the file, varint first unit, varint changes,
//       a byte for each change: the gap after the previous change (at first: after the first unit), at most 255,
//       the old units, the new units, and a varint for each byte of 255: the rest of that gap
//   digest                              of all bytes before it, computed like a tensor's (codec/digest/digest.h)
//
// So a changed unit (codec/format/units.h) costs one gap, mostly of one byte, and twice its width; and the lists of a
// staged change are copied unchanged. Writing the journal is on the critical path of every update, so it carries the
// cheap linear digest instead of SHA-256: it must detect crash and disk damage, not tampering.
#pragma once

#include <cstdint>
#include <string_view>

namespace weightwire {

inline constexpr std::string_view kJournalMagic = "WWJRNL03";

// A gap that does not fit into its byte.
inline constexpr std::uint64_t kLongJournalGap = 255;

inline constexpr std::uint64_t kMaxJournalNoteBytes = std::uint64_t{64} << 10;

}  // namespace weightwire
