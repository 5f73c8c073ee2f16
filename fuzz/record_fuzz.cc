// The readers of a run's objects on arbitrary text. Every reader is given every input: it refuses it, or what it read
// prints as text that reads back to the same, and the text has only one spelling.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "log/anchor.h"
#include "log/keys.h"
#include "log/lease.h"
#include "log/mark.h"
#include "log/record.h"
#include "log/run_manifest.h"
#include "store/key.h"

namespace weightwire {
namespace {

template <typename Parse>
void Check(std::string_view text, const Parse& parse) {
  const auto first = parse(text);
  if (!first.ok()) {
    WW_CHECK(!first.error().message().empty());
    return;
  }
  const std::string printed = ToJson(first.value());
  const auto second = parse(printed);
  WW_CHECK(second.ok() && second.value() == first.value());
  WW_CHECK(ToJson(second.value()) == printed);
}

// What the rest of the program relies on without looking again.
void CheckPromises(std::string_view text) {
  if (const auto record = ParseRecord(text); record.ok()) {
    WW_CHECK(record.value().chain <= record.value().version);
    WW_CHECK(record.value().OwnDeltaBytes() <= record.value().delta_bytes);
    if (record.value().delta.has_value()) {
      for (const PartRef& part : *record.value().delta) WW_CHECK(CheckKey(part.key).ok());
    }
  }
  if (const auto anchor = ParseAnchorManifest(text); anchor.ok()) {
    const auto& assembled = anchor.value().assembled;
    for (const AssembledFile& file : assembled) WW_CHECK(CheckFileName(file.name).ok());
    for (const AnchorFile& file : anchor.value().files) {
      WW_CHECK(CheckFileName(file.name).ok());
      for (const Place& place : file.places) {
        WW_CHECK(place.rows > 0 && place.row_bytes > 0 && place.file < assembled.size());
        WW_CHECK(place.at + (place.rows - 1) * place.stride + place.row_bytes <= assembled[place.file].size_bytes);
      }
    }
  }
  if (const auto mark = ParseMark(text); mark.ok()) {
    for (const std::string& key : mark.value().keys) {
      WW_CHECK(key.starts_with(kDeltasPrefix) || key.starts_with(kAnchorsPrefix));
      WW_CHECK(CheckKeyPrefix(key).ok());
    }
  }
}

}  // namespace
}  // namespace weightwire

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weightwire;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Check(text, ParseRunManifest);
  Check(text, ParseRecord);
  Check(text, ParseAnchorManifest);
  Check(text, ParseLease);
  Check(text, ParseMark);
  CheckPromises(text);
  if (const auto delta = DeltaOfKey(text); delta.has_value()) {
    WW_CHECK(text.starts_with(DeltaFolder(delta->from, delta->to)));
  }
  if (const auto anchor = AnchorOfKey(text); anchor.has_value()) WW_CHECK(text.starts_with(AnchorFolder(*anchor)));
  return 0;
}
