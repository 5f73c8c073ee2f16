#include "follow/mirror/mirror_state.h"

#include <fmt/format.h>

#include <vector>

#include "base/bytes.h"

namespace weightwire {
namespace {

constexpr std::string_view kMirrorFormat = "weightwire-mirror";

}  // namespace

void WriteHeld(FieldsWriter& out, const Held& held) {
  out.AnId("run", held.run)
      .Number("version", held.version)
      .Number("step", held.step)
      .Hash("record", held.record_hash)
      .Hash("layout", held.layout)
      .Hash("state", held.state)
      .Number("delta_bytes", held.delta_bytes);
}

Result<Held> ReadHeld(const JsonValue& object) {
  Held held;
  WW_TRY(held.run, object.AnId("run"));
  WW_TRY(held.version, object.Number("version"));
  WW_TRY(held.step, object.Number("step"));
  WW_TRY(held.record_hash, object.Hash("record"));
  WW_TRY(held.layout, object.Hash("layout"));
  WW_TRY(held.state, object.Hash("state"));
  WW_TRY(held.delta_bytes, object.Number("delta_bytes"));
  return held;
}

std::string ToJson(const MirrorState& state) {
  FieldsWriter out;
  out.Text("format", kMirrorFormat);
  if (state.held.has_value()) {
    WriteHeld(out, *state.held);
  } else {
    for (const char* key : {"run", "version", "step", "record", "layout", "state", "delta_bytes"}) out.Null(key);
  }
  if (state.writing.has_value()) {
    FieldsWriter writing;
    WriteHeld(writing, state.writing->target);
    out.Object("writing", writing);
    out.Text("by", state.writing->by == MirrorState::By::kJournal ? "journal" : "files");
  } else {
    out.Null("writing").Null("by");
  }
  if (state.unsynced.has_value()) {
    out.Text("unsynced", *state.unsynced);
  } else {
    out.Null("unsynced");
  }
  return out.Finish() + "\n";
}

Result<MirrorState> ParseMirrorState(std::string_view json) {
  WW_TRY(const JsonValue object, ParseFields(json, kMaxMirrorStateBytes, kMirrorFormat));
  MirrorState state;
  WW_TRY(const JsonValue* run, object.Get("run"));
  if (!run->is_null()) {
    WW_TRY(Held held, ReadHeld(object));
    state.held = held;
  }
  WW_TRY(const JsonValue* writing, object.ObjectOrNull("writing"));
  if (writing != nullptr) {
    WW_TRY(const Held held, ReadHeld(*writing));
    WW_TRY(const std::string by, object.Text("by"));
    if (by != "journal" && by != "files") {
      return Error(ErrorCode::kCorrupt, R"("by" is none of "journal", "files")");
    }
    state.writing = {held, by == "journal" ? MirrorState::By::kJournal : MirrorState::By::kFiles};
  }
  WW_TRY(const JsonValue* unsynced, object.Get("unsynced"));
  if (!unsynced->is_null()) {
    WW_TRY(std::string boot, object.Text("unsynced"));
    state.unsynced = std::move(boot);
  }
  return state;
}

Result<MirrorState> ReadMirrorState(FileSystem& files, const FileSystem::Path& directory) {
  const FileSystem::Path path = directory / kMirrorFolder / kStateFile;
  WW_TRY(const std::vector<std::uint8_t> bytes, files.Read(path, kMaxMirrorStateBytes));
  auto state = ParseMirrorState(TextOf(bytes));
  if (!state.ok()) return state.error().In(path.string());
  return state;
}

Result<std::unique_ptr<FileLock>> LockFollower(FileSystem& files, const FileSystem::Path& directory) {
  auto lock = files.Lock(directory / kMirrorFolder / kFollowerLock, LockMode::kExclusive);
  if (lock.ok() || lock.error().code() != ErrorCode::kUnavailable) return lock;
  return Error(ErrorCode::kUnavailable,
               fmt::format("another follower keeps {}; a mirror has one at a time", directory.string()));
}

}  // namespace weightwire
