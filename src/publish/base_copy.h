// The base copy: the bits of the version published last, with their digests, which the next delta is made from.
//
// Making a delta brings the base to the new version in the same pass and keeps the bits it replaced, as an undo step.
// Undo steps serve two ends: a version that could not be published is rolled back, and an anchor of an older version is
// read while the base has moved on, without a second copy of the model.
//
// The bits are trusted because every one of them was digested in full, or came by a change whose digest was computed.
// Of a state that several ranks hold in shards, a base copy is one rank's shards, and a delta is its part. The digests
// are then what the shards add to those of their tensors.
//
// A base that lost that trust (a write to its file failed half way) is lost: it holds nothing until it is replaced.
//
// Thread safety: one thread, the owner's, calls everything but ReadAt, which any other thread may call at the
// same time; RunLocked keeps the two apart.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "codec/decode/state_view.h"
#include "codec/digest/digest.h"
#include "codec/encode/encoder.h"
#include "codec/kernels/kernels.h"
#include "log/keys.h"
#include "publish/base_storage.h"
#include "publish/publisher_options.h"
#include "publish/state_bits.h"

namespace weightwire {

// As long as one lives, the bits of its version can be read, unless it was revoked. Only BaseCopy makes them.
struct BasePin {
  Version version = 0;
  std::shared_ptr<const Layout> layout;
  bool revocable = false;
  mutable bool revoked = false;  // guarded by RunLocked
};

// What a delta from the base to a new state came to.
struct BaseAdvance {
  UnsealedDelta delta;         // empty if the state is the same
  bool same = false;           // not a bit, name, type, shape or tie differs
  std::uint64_t changed = 0;   // units
  std::vector<Digest> before;  // the digests that the base had
};

// Whether each tensor has as many bytes as its shape says: kInvalidArgument if not. What a BaseCopy is given REQUIRES
// it.
Status CheckBits(const StateBits& bits);

class BaseCopy {
 public:
  // All that is pointed to must outlive it.
  BaseCopy(BaseLocation location, const Kernels& kernels, ThreadPool& pool, RunLocked run_locked)
      : location_(std::move(location)), kernels_(kernels), pool_(pool), run_locked_(std::move(run_locked)) {}

  // Whether it holds a version. The rest REQUIRES it, except for what makes it so: Replace and Adopt.
  [[nodiscard]] bool holds() const { return storage_ != nullptr; }
  [[nodiscard]] Version version() const { return version_; }
  [[nodiscard]] const std::shared_ptr<const Layout>& layout() const { return storage_->layout(); }
  [[nodiscard]] const std::vector<Digest>& digests() const { return digests_; }
  // None if it is of a whole state; then the next two are there.
  [[nodiscard]] const std::shared_ptr<const Shards>& shards() const { return shards_; }
  [[nodiscard]] Sha256Digest state() const;
  [[nodiscard]] StateView View() const;

  // A copy of the state as it is. Undo steps end here, and what is pinned can no longer be read.
  Status Replace(const StateBits& bits, Version version);

  // What an earlier process left, if its state digest, computed in full, is that of a candidate: says which. Otherwise
  // nothing, and the base holds nothing.
  struct Candidate {
    Version version = 0;
    Sha256Digest state{};
    std::shared_ptr<const Layout> layout;
  };
  std::optional<std::size_t> Adopt(std::span<const Candidate> candidates);

  // Makes the delta to the next version and goes there. With `unless_same`, a state that is the same stays at the
  // version it is. After an error the base is as it was, or holds nothing. REQUIRES: the same shards as the base, if
  // either has any.
  Result<BaseAdvance> Advance(const StateBits& bits, bool unless_same);
  // Goes to the next version by a change that was decoded. REQUIRES: it begins at the state held.
  Status Advance(const StagedChange& change);
  // The next version has the same bits.
  void AdvanceSame();

  // Back to an earlier version, from old bits. After an error the base holds nothing.
  Status RollBack(Version to);
  // Discards undo data up to version `up_to`, unless a pin needs it. While the rest exceeds `max_step_bytes`, revokes
  // the oldest revocable pin.
  void DiscardUndo(Version up_to, std::uint64_t max_step_bytes);
  // What they may take: a quarter of the state. It is the price of a slow network.
  [[nodiscard]] std::uint64_t StepLimit() const;
  [[nodiscard]] std::uint64_t step_bytes() const;

  // Of the version held.
  [[nodiscard]] std::shared_ptr<const BasePin> Pin(bool revocable);
  // Bytes of a tensor of the pinned version's layout. kMismatch when the base was replaced since, or the pin revoked.
  Status ReadAt(const BasePin& pin, std::size_t tensor, std::uint64_t offset, std::span<std::uint8_t> out) const;

  // Discards the bits and the undo steps, and revokes all pins: the base then holds nothing.
  void Invalidate();
  // The same bits under another number. REQUIRES: nothing is pinned, and there are no undo steps.
  void Renumber(Version version) { version_ = version; }

 private:
  // Leads from a version back to the previous one.
  struct UndoStep {
    Version from = 0;
    std::shared_ptr<const Layout> before;
    std::vector<Digest> digests_before;
    // Whether tensors have other indices, and what became of each of the layout before; none: it is in `removed`.
    bool reshapes = false;
    std::vector<std::optional<std::size_t>> after;
    std::map<std::size_t, std::vector<std::uint8_t>> removed;
    // The old bits, by tensor of the layout after, and ascending in each.
    std::vector<ReplacedUnits> replaced;
    std::vector<UndoBits> kept;  // what `replaced` points to
    std::uint64_t bytes = 0;     // of all that
  };

  [[nodiscard]] UndoStep BeginStep(const Layout& after) const;
  // What takes the base to a state, in storage that is the base's or has been made for it, at `update` by tensor.
  [[nodiscard]] EncodeRequest RequestFor(const StateBits& bits, const BaseStorage& target,
                                         const std::vector<std::uint8_t*>& update) const;
  static void PutOldBits(const UndoStep& step, std::size_t tensor_after, int unit_bytes, std::uint64_t offset,
                         std::span<std::uint8_t> out);
  Status ApplyUndoStep();
  void DropUndo(Version safe);

  const BaseLocation location_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  const RunLocked run_locked_;
  EncodeScratch scratch_;

  std::unique_ptr<BaseStorage> storage_;
  Version version_ = 0;
  std::vector<Digest> digests_;
  std::shared_ptr<const Shards> shards_;
  std::deque<UndoStep> steps_;  // oldest first; the last one leads back from version_
  std::vector<std::weak_ptr<const BasePin>> pins_;
};

}  // namespace weightwire
