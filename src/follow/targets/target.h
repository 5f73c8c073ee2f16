// A target: what a follower writes into, and the only thing it needs to know of it.
//
// Between two calls a target holds the exact bits of one version, or nothing. Apply and Commit of a load are atomic:
// after a crash the target holds the previous version or the next one.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/sha256.h"
#include "codec/decode/staged_change.h"
#include "codec/decode/state_view.h"
#include "log/anchor.h"
#include "log/record.h"
#include "tensor/layout.h"

namespace weightwire {

// The version a target holds.
struct Held {
  Id run;
  Version version = 0;
  std::uint64_t step = 0;
  Sha256Digest record_hash{};  // SHA-256 of the record's bytes
  Sha256Digest layout{};
  Sha256Digest state{};
  std::uint64_t delta_bytes = 0;  // as in the record

  bool operator==(const Held&) const = default;
};

[[nodiscard]] inline Held HeldOf(const KnownRecord& known) {
  const Record& record = known.record;
  return {record.run, record.version, record.step, known.hash, record.layout, record.state, record.delta_bytes};
}

// An anchor that is loaded beside what a target holds. The target shows nothing of it before Commit. A load that is
// destroyed before that is dropped. Its target's Apply, Undo, BeginLoad and Recover end it: destroy it then.
class TargetLoad {
 public:
  TargetLoad() = default;
  TargetLoad(const TargetLoad&) = delete;
  TargetLoad& operator=(const TargetLoad&) = delete;
  virtual ~TargetLoad() = default;

  // Bytes of a file, in any order and any number of times; what is written last counts. REQUIRES: within the file.
  virtual Status WriteAt(std::size_t file, std::uint64_t offset, std::span<const std::uint8_t> bytes) = 0;

  // Digests all bytes in full, and makes them durable where the target is. kCorrupt if they are not the state of
  // `held`. The target does not change. May be repeated. REQUIRES: all bytes were written.
  virtual Status Prepare(const Held& held, const Layout& layout) = 0;

  // The bits loaded. Valid until the load is committed or destroyed. REQUIRES for this and Commit: Prepare succeeded.
  [[nodiscard]] virtual Result<StateView> View() = 0;

  // Makes the target hold the loaded version, with `change` over it unless that is nullptr. `after` is the version held
  // then. Errors are those of Target::Apply; the target may then hold the loaded version without the change, and the
  // load is over. Otherwise the call can be repeated.
  virtual Status Commit(const std::shared_ptr<const StagedChange>& change, const Held& after) = 0;
};

class Target {
 public:
  Target() = default;
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  virtual ~Target() = default;

  // Nothing before the first load.
  [[nodiscard]] virtual const std::optional<Held>& held() const = 0;

  // The bits held, with known digests. Valid until the target is written to. REQUIRES: held().
  [[nodiscard]] virtual Result<StateView> View() = 0;

  // REQUIRES: the change begins at the state held and ends at that of `after`. kUnavailable when somebody is reading
  // the target just now: nothing was written, try again.
  virtual Status Apply(const std::shared_ptr<const StagedChange>& change, const Held& after) = 0;

  // Takes back the last Apply, or the last Commit of a load. kInvalidArgument if there is none, or the target does not
  // keep the bits from before a load.
  virtual Status Undo() = 0;

  // Digests everything that the target holds. kCorrupt: something else has written to it, and the target holds no
  // version any longer. kInvalidArgument if it holds none.
  virtual Status Verify() = 0;

  // True if the follower must call Verify before it stages over what the target holds: once for each update.
  [[nodiscard]] virtual bool verifies_base() const { return false; }

  // Files that are not needed may be passed over by the target.
  virtual Result<std::unique_ptr<TargetLoad>> BeginLoad(std::span<const AnchorFile> files) = 0;

  // Finishes what an error of an earlier call may have left half done, as opening the target again would. True if there
  // was something: then it may hold another version than before that call, and loads begun before are void.
  virtual Result<bool> Recover() { return false; }

  // Something that can be done while there is nothing else to do, such as flushing; false if there was nothing.
  virtual Result<bool> RunMaintenance() { return false; }
};

}  // namespace weightwire
