// The small files in a mirror's own folder that say what it holds: for followers, for readers, and for recovery after a
// crash. state.json is the one that counts:
//
//   {"format":"weightwire-mirror",
//    "run_id":id, "version":number, "step":number, "record_hash":hash, "layout_hash":hash, "digest":hash,
//    "total_delta_bytes":number,    all of them null: no version yet
//    "writing":null, or an object with the same keys: the files are being changed to that version, and are neither,
//    "by":"journal" or "files": how to complete that; null if "writing" is null,
//    "unsynced":null, or the boot (FileSystem::BootId) since which weights may not be durable}
//
// Numbers are decimal strings, as in a run's objects (spec/PROTOCOL.md, "JSON"). The file is replaced as a whole.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/filesystem.h"
#include "base/result.h"
#include "base/sha256.h"
#include "codec/digest/digest.h"
#include "follow/targets/target.h"
#include "log/fields.h"
#include "tensor/layout.h"

namespace weightwire {

// The keys of a version, and back.
void WriteHeld(FieldsWriter& out, const Held& held);
Result<Held> ReadHeld(const JsonValue& object);

struct MirrorState {
  enum class By : std::uint8_t { kJournal, kFiles };
  struct Writing {
    Held target;
    By by = By::kJournal;

    bool operator==(const Writing&) const = default;
  };

  std::optional<Held> held;
  std::optional<Writing> writing;
  std::optional<std::string> unsynced;

  // True if the files are exactly `held` for readers during this boot.
  [[nodiscard]] bool IsReadable(std::string_view boot) const {
    return held.has_value() && !writing.has_value() && (!unsynced.has_value() || (*unsynced == boot && !boot.empty()));
  }

  bool operator==(const MirrorState&) const = default;
};

[[nodiscard]] std::string ToJson(const MirrorState& state);
Result<MirrorState> ParseMirrorState(std::string_view json);

// Reads the state of the mirror in that directory. kNotFound if there is none.
Result<MirrorState> ReadMirrorState(FileSystem& files, const FileSystem::Path& directory);

// The versions before and after the change in the journal, as the text of the journal's note.
struct ChangeNote {
  Held before;
  Held after;
};

[[nodiscard]] std::string ToJson(const ChangeNote& note);
Result<ChangeNote> ParseChangeNote(std::string_view json);

// The digests of a state's tensors, kept beside the weights so that a restart need not read them: "WWDGST01", varint
// count, 16 bytes each. The state digest is computed from them and the layout, so a damaged file is noticed.
//
// Returns once they are durable.
Status WriteDigests(FileSystem& files, const FileSystem::Path& path, const std::vector<Digest>& digests);

// Returns nullopt if the file is missing, or its digests do not give that state.
[[nodiscard]] std::optional<std::vector<Digest>> ReadDigests(FileSystem& files, const FileSystem::Path& path,
                                                             const Layout& layout, const Sha256Digest& state);

// The mirror's own folder, next to the checkpoint, and names in it. mirror.h lists them.
inline constexpr std::string_view kMirrorFolder = ".weightwire";
inline constexpr std::string_view kStateFile = "state.json";
inline constexpr std::string_view kFollowerLock = "follower.lock";
inline constexpr std::string_view kContentLock = "content.lock";
// Names the files that a load has placed.
inline constexpr std::string_view kMirrorFilesFile = "files.json";
// A directory with this file in its folder is not a mirror; it contains copies that are mirrors (swap_mirror.h).
inline constexpr std::string_view kSwapMark = "swap";

// Takes the lock of the one follower that keeps the mirror in the directory. kUnavailable while another holds it.
Result<std::unique_ptr<FileLock>> LockFollower(FileSystem& files, const FileSystem::Path& directory);

inline constexpr std::uint64_t kMaxMirrorStateBytes = std::uint64_t{64} << 10;

}  // namespace weightwire
