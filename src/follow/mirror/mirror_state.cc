#include "follow/mirror/mirror_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "codec/digest/state.h"
#include "follow/in_place/journal.h"

namespace weightwire {
namespace {

constexpr std::string_view kMirrorFormat = "weightwire-mirror";
constexpr std::string_view kNoteFormat = "weightwire-change";
constexpr std::string_view kDigestsMagic = "WWDGST01";

}  // namespace

void WriteHeld(FieldsWriter& out, const Held& held) {
  out.AnId("run_id", held.run)
      .Number("version", held.version)
      .Number("step", held.step)
      .Hash("record_hash", held.record_hash)
      .Hash("layout_hash", held.layout)
      .Hash("digest", held.state)
      .Number("total_delta_bytes", held.delta_bytes);
}

Result<Held> ReadHeld(const JsonValue& object) {
  Held held;
  WW_TRY(held.run, object.AnId("run_id"));
  WW_TRY(held.version, object.Number("version"));
  WW_TRY(held.step, object.Number("step"));
  WW_TRY(held.record_hash, object.Hash("record_hash"));
  WW_TRY(held.layout, object.Hash("layout_hash"));
  WW_TRY(held.state, object.Hash("digest"));
  WW_TRY(held.delta_bytes, object.Number("total_delta_bytes"));
  return held;
}

std::string ToJson(const MirrorState& state) {
  FieldsWriter out;
  out.Text("format", kMirrorFormat);
  if (state.held.has_value()) {
    WriteHeld(out, *state.held);
  } else {
    for (const char* key : {"run_id", "version", "step", "record_hash", "layout_hash", "digest", "total_delta_bytes"}) {
      out.Null(key);
    }
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
  WW_TRY(const JsonValue* run, object.Get("run_id"));
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

std::string ToJson(const ChangeNote& note) {
  FieldsWriter before;
  WriteHeld(before, note.before);
  FieldsWriter after;
  WriteHeld(after, note.after);
  FieldsWriter out;
  out.Text("format", kNoteFormat).Object("before", before).Object("after", after);
  return out.Finish();
}

Result<ChangeNote> ParseChangeNote(std::string_view json) {
  WW_TRY(const JsonValue object, ParseFields(json, kMaxJournalNoteBytes, kNoteFormat));
  ChangeNote note;
  WW_TRY(const JsonValue* before, object.Object("before"));
  WW_TRY(note.before, ReadHeld(*before));
  WW_TRY(const JsonValue* after, object.Object("after"));
  WW_TRY(note.after, ReadHeld(*after));
  return note;
}

Status WriteDigests(FileSystem& files, const FileSystem::Path& path, const std::vector<Digest>& digests) {
  std::vector<std::uint8_t> bytes(kDigestsMagic.begin(), kDigestsMagic.end());
  ByteWriter out(bytes);
  out.Varint(digests.size());
  for (const Digest& digest : digests) out.Bytes(digest.ToBytes());
  return WriteDurably(files, path, bytes);
}

std::optional<std::vector<Digest>> ReadDigests(FileSystem& files, const FileSystem::Path& path, const Layout& layout,
                                               const Sha256Digest& state) {
  const auto bytes = files.Read(path, kDigestsMagic.size() + kMaxVarintBytes + layout.size() * kDigestBytes);
  if (!bytes.ok()) return std::nullopt;
  ByteReader in(bytes.value());
  const auto magic = in.Bytes(kDigestsMagic.size());
  if (!magic.ok() || !std::equal(kDigestsMagic.begin(), kDigestsMagic.end(), magic.value().begin()))
    return std::nullopt;
  const auto count = in.Varint();
  if (!count.ok() || count.value() != layout.size()) return std::nullopt;
  std::vector<Digest> digests;
  for (std::size_t i = 0; i < layout.size(); ++i) {
    const auto digest = in.Bytes(kDigestBytes);
    if (!digest.ok()) return std::nullopt;
    digests.push_back(Digest::FromBytes(digest.value().first<kDigestBytes>()));
  }
  if (!in.ExpectEnd().ok() || StateDigest(layout, digests) != state) return std::nullopt;
  return digests;
}

}  // namespace weightwire
