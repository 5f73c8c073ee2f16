// What a mirror holds, as .weightwire/state.json says it: to followers, to readers, and after a crash.
//
//   {"format":"weightwire-mirror",
//    "run":id, "version":number, "step":number, "record":hash, "layout":hash, "state":hash,
//    "delta_bytes":number,    all of them null: nothing yet
//    "writing":null, or an object with the same keys: the files are on the way there, and are neither,
//    "by":"journal" or "files": how to finish that; null when "writing" is,
//    "unsynced":null, or the boot (FileSystem::BootId) since which weights may not be on the disk}
//
// Numbers are decimal strings, as in a run's objects (spec/PROTOCOL.md, "JSON"). The file is replaced as a whole.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/filesystem.h"
#include "base/result.h"
#include "base/sha256.h"
#include "follow/targets/target.h"
#include "log/fields.h"

namespace weightwire {

// The keys of a version, and back.
void WriteHeld(FieldsWriter& out, const Held& held);
Result<Held> ReadHeld(const JsonValue& object);

struct MirrorState {
  enum class By : std::uint8_t { kJournal, kFiles };
  struct Writing {
    Held held;
    By by = By::kJournal;

    bool operator==(const Writing&) const = default;
  };

  std::optional<Held> held;
  std::optional<Writing> writing;
  std::optional<std::string> unsynced;

  // Whether the files are exactly `held` for whoever reads them during this boot.
  [[nodiscard]] bool IsReadable(std::string_view boot) const {
    return held.has_value() && !writing.has_value() && (!unsynced.has_value() || (*unsynced == boot && !boot.empty()));
  }

  bool operator==(const MirrorState&) const = default;
};

[[nodiscard]] std::string ToJson(const MirrorState& state);
Result<MirrorState> ParseMirrorState(std::string_view json);

// Of the mirror in that directory; kNotFound when there is none.
Result<MirrorState> ReadMirrorState(FileSystem& files, const FileSystem::Path& directory);

// What lies in a mirror beside the checkpoint, below the directory.
inline constexpr std::string_view kMirrorFolder = ".weightwire";
inline constexpr std::string_view kStateFile = "state.json";
inline constexpr std::string_view kFollowerLock = "follower.lock";
inline constexpr std::string_view kContentLock = "content.lock";
// The names of the files that a load has put there.
inline constexpr std::string_view kMirrorFilesFile = "files.json";
// A directory with this beside is no mirror but holds copies that are (swap_mirror.h).
inline constexpr std::string_view kSwapMark = "swap";
// Whoever follows keeps its id here, which names its lease; the mirror only leaves it alone.
inline constexpr std::string_view kFollowerIdFile = "follower.id";
// And here which version its user was told of last (cli/told.h).
inline constexpr std::string_view kToldFile = "told";

// Held by the one follower that keeps the mirror in that directory; kUnavailable while another does.
Result<std::unique_ptr<FileLock>> LockFollower(FileSystem& files, const FileSystem::Path& directory);

inline constexpr std::uint64_t kMaxMirrorStateBytes = std::uint64_t{64} << 10;

}  // namespace weightwire
