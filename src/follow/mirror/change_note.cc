#include "follow/mirror/change_note.h"

#include "follow/in_place/journal_format.h"
#include "follow/mirror/mirror_state.h"
#include "log/fields.h"

namespace weightwire {
namespace {

constexpr std::string_view kNoteFormat = "weightwire-change";

}  // namespace

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

}  // namespace weightwire
