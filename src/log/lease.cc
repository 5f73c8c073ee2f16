#include "log/lease.h"

#include <utility>

#include "log/fields.h"
#include "log/limits.h"

namespace weightwire {
namespace {

constexpr std::string_view kLeaseFormat = "weightwire-lease";

// It will be shown on a terminal: no control characters, neither of one byte nor U+0080 to U+009F.
bool IsPrintable(std::string_view name) {
  for (std::size_t i = 0; i < name.size(); ++i) {
    const auto byte = static_cast<unsigned char>(name[i]);
    if (byte < 0x20 || byte == 0x7f) return false;
    if (byte == 0xc2 && i + 1 < name.size() && static_cast<unsigned char>(name[i + 1]) < 0xa0) return false;
  }
  return true;
}

}  // namespace

std::string ToJson(const Lease& lease) {
  FieldsWriter fields;
  fields.Text("format", kLeaseFormat).AnId("run_id", lease.run).AnId("id", lease.follower).Text("name", lease.name);
  fields.Number("version", lease.holds).Number("needs_deltas_after", lease.needs_from);
  if (lease.needs_anchor.has_value()) {
    std::string folder = AnchorFolder(*lease.needs_anchor);
    folder.pop_back();  // its "/"
    fields.Text("needs_anchor", folder);
  } else {
    fields.Null("needs_anchor");
  }
  return fields.SmallNumber("ttl_seconds", lease.seconds).Finish();
}

Result<Lease> ParseLease(std::string_view json) {
  WW_TRY(const JsonValue fields, ParseFields(json, kMaxLeaseBytes, kLeaseFormat));
  Lease lease;
  WW_TRY(lease.run, fields.AnId("run_id"));
  WW_TRY(lease.follower, fields.AnId("id"));
  WW_TRY(lease.name, fields.Text("name"));
  if (!IsPrintable(lease.name) || lease.name.size() > kMaxFollowerNameBytes) {
    return Corrupt("its \"name\" is too long or not printable");
  }
  WW_TRY(lease.holds, fields.NumberOrNull("version"));
  WW_TRY(lease.needs_from, fields.NumberOrNull("needs_deltas_after"));
  WW_TRY(const JsonValue* anchor, fields.Get("needs_anchor"));
  if (!anchor->is_null()) {
    WW_TRY(const std::string folder, fields.Text("needs_anchor"));
    lease.needs_anchor = AnchorOfKey(folder + "/");
    if (!lease.needs_anchor.has_value() || AnchorFolder(*lease.needs_anchor) != folder + "/") {
      return Corrupt("its \"needs_anchor\" is no anchor");
    }
  }
  WW_TRY(lease.seconds, fields.SmallNumber("ttl_seconds"));
  if (lease.seconds < kMinLeaseSeconds || lease.seconds > kMaxLeaseSeconds) {
    return Corrupt("its \"ttl_seconds\" is outside the limits of a lease");
  }
  return lease;
}

}  // namespace weightwire
