// Encoding: from an old and a new state to the bytes of a delta file.
//
// Old and new are read from memory once, tile by tile, after a look at a sample. The same pass can bring the base copy
// up to date and keep the old bits of what changed, so that a publish that fails later can be taken back. Memory beyond
// the inputs: the file, and per thread a few tiles. New bits that are not in memory as they are to be sent are made by
// a reader, a few at a time.
//
// EncodeDelta is a pure function of its inputs (apart from the base copy it was asked to update): the bytes do not
// depend on the number of threads, the instruction set or the machine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "codec/digest/digest.h"
#include "codec/digest/state.h"
#include "codec/encode/mode_choice.h"
#include "codec/encode/undo_bits.h"
#include "codec/encode/unit_reader.h"
#include "codec/format/box.h"
#include "codec/format/delta_file.h"
#include "codec/kernels/kernels.h"
#include "tensor/layout.h"

namespace weightwire {

// A box of a tensor in both states; its units lie one after another in row-major order of the box.
struct EncodeEntry {
  std::size_t tensor = 0;                   // in the layout after
  std::optional<Box> box;                   // the whole tensor if none
  std::span<const std::uint8_t> old_bytes;  // empty for a tensor that the old state does not have …
  bool has_old = true;                      // … which this says, for an empty tensor has no bytes either
  std::span<const std::uint8_t> new_bytes;
  const UnitReader* reader = nullptr;  // if set, it makes the new bits, and new_bytes is empty
  Digest before;                       // of the old bits of the box; zero without
  // If set, the memory behind old_bytes: the new bits are written there.
  std::uint8_t* update = nullptr;
};

struct EncodeRequest {
  const Layout* layout_before = nullptr;
  const Layout* layout_after = nullptr;
  std::vector<EncodeEntry> entries;  // by tensor, ascending; every tensor that may have changed
  // The digests of all tensors before, by the layout before, if the file is to be a whole delta: it then names the
  // state digests, and the entries must cover every changed tensor whole.
  std::optional<std::vector<Digest>> digests_before;
  CodingRequest coding = CodingRequest::kSmallest;
  bool keep_old = false;  // fill EncodedDelta::replaced
  bool seal = true;       // fill EncodedDelta::file; otherwise `unsealed`, which is sooner there
  // The new bits may change while they are read. What readers give is then still encoded as one state: that which the
  // base copies hold afterwards. REQUIRES: entries have an update, and a reader or bytes that do not move; or no old
  // bits, and bytes that do not move.
  bool may_move = false;
};

struct EntryReport {
  std::uint64_t units = 0;
  std::uint64_t changed = 0;
  std::uint64_t single_steps = 0;   // changes to the neighbouring number
  std::uint64_t payload_bytes = 0;  // without the entry's bytes in the index
  const char* mode = "unchanged";   // unchanged, conditioned, uniform, gaps, dense, whole
  Digest after;
};

struct EncodedDelta {
  std::vector<std::uint8_t> file;
  UnsealedDelta unsealed;
  std::vector<EntryReport> reports;     // one for each entry of the request
  std::vector<Digest> digests_after;    // by the layout after; only for a whole delta
  std::vector<ReplacedUnits> replaced;  // what they point to is in `kept`
  std::vector<UndoBits> kept;
};

// What encoding works with besides its inputs, some megabytes for each thread. Who encodes again and again keeps one,
// so that the memory need not come from the system, page by page, for every delta. Movable; one encoding at a time.
class EncodeScratch {
 public:
  EncodeScratch();
  EncodeScratch(EncodeScratch&&) noexcept;
  EncodeScratch& operator=(EncodeScratch&&) noexcept;
  ~EncodeScratch();

  // Memory for the bits that the next encoding replaces: what an earlier one kept, which nobody needs any more.
  void Reuse(std::vector<UndoBits> kept);

  struct Workers;
  // For encoder.cc.
  [[nodiscard]] Workers& workers() { return *workers_; }

 private:
  std::unique_ptr<Workers> workers_;
};

// Errors: kInvalidArgument when the request contradicts itself (sizes, boxes, order); those of readers. After an error
// the base copy is as it was, if old bits were to be kept.
Result<EncodedDelta> EncodeDelta(const EncodeRequest& request, const Kernels& kernels, ThreadPool& pool,
                                 EncodeScratch& scratch);
// With a scratch of its own.
Result<EncodedDelta> EncodeDelta(const EncodeRequest& request, const Kernels& kernels, ThreadPool& pool);

// Puts the old bits back into the base copy behind `entries`.
void RestoreReplaced(std::span<const ReplacedUnits> replaced, std::span<const EncodeEntry> entries,
                     const Layout& layout_after);

}  // namespace weightwire
