#include "publish/record_commit.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>

#include "base/bytes.h"

namespace weightwire {
namespace {

// Whose object is there; nothing if none is.
Result<std::optional<CommitOutcome>> WhoseIs(Store& store, const std::string& key, std::span<const std::uint8_t> ours) {
  const auto there = store.Get(key, ours.size());
  if (there.ok()) {
    return std::optional(std::ranges::equal(there.value(), ours) ? CommitOutcome::kOurs : CommitOutcome::kConflict);
  }
  if (there.error().code() == ErrorCode::kLimit) return std::optional(CommitOutcome::kConflict);
  if (there.error().code() == ErrorCode::kNotFound) return std::optional<CommitOutcome>();
  return there.error();
}

}  // namespace

Result<CommitOutcome> CommitRecord(const Run& run, Version version, std::string_view record_json) {
  Store& store = run.store();
  const std::string key = RecordKey(version);
  const auto bytes = BytesOf(record_json);
  if (!run.manifest().single_writer) return Commit(store, key, bytes);
  WW_TRY(const auto before, WhoseIs(store, key, bytes));
  if (before.has_value()) return *before;
  const Status put = store.Put(key, bytes);
  if (!put.ok() && put.error().code() != ErrorCode::kUnknownOutcome) return put.error();
  auto after = WhoseIs(store, key, bytes);
  if (after.ok() && after.value().has_value()) return *after.value();
  return Error(ErrorCode::kUnknownOutcome,
               fmt::format("it is not known whether {} was committed to {}; ask again", key, store.Name()));
}

std::string WhoseRecord(const Run& run, Version version) {
  const auto other = run.ReadRecord(version);
  std::string whose = "a record that is not ours";
  if (other.ok() && other.value().has_value()) {
    const Record& record = other.value()->record;
    whose =
        fmt::format("the record of another writer ({}, step {}, {})", ToHex(record.writer), record.step, record.time);
  }
  return fmt::format("version {} of {} is {}", version, run.store().Name(), whose);
}

Error AnotherWriterWon(const Run& run, Version version, bool spooled) {
  return {ErrorCode::kMismatch,
          fmt::format("{}: this publisher stops, and none of its versions from there on is published; see that only "
                      "one publishes, then start it again{}",
                      WhoseRecord(run, version), spooled ? fmt::format(", dropping them {}", kHowToDropLost) : "")};
}

}  // namespace weightwire
