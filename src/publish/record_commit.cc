#include "publish/record_commit.h"

#include <fmt/format.h>

#include <string>

#include "base/bytes.h"
#include "base/surface.h"
#include "store/transfer.h"

namespace weightwire {

Status PutPart(Store& store, const PartRef& part, std::span<const std::uint8_t> bytes, bool again) {
  // The key holds the hash: what is there, complete, is the same. Looking is worth a request only if we may have put
  // it.
  if (again) {
    const auto there = store.Stat(part.key);
    if (there.ok() && there.value().size_bytes == part.size_bytes) return Ok();
    if (!there.ok() && there.error().code() != ErrorCode::kNotFound) return there.error();
  }
  // The store itself sends the parts of an upload at the same time (wrappers/parallel_store.h).
  return PutObject(store, part.key, bytes, {.threads = 1, .single_put_bytes = kMaxPutBytes});
}

Result<ReadBackOutcome> CommitRecord(const Run& run, Version version, std::string_view record_json) {
  Store& store = run.store();
  const std::string key = RecordKey(version);
  const auto bytes = BytesOf(record_json);
  if (!run.manifest().single_writer) return PutAndReadBack(store, key, bytes);
  WW_TRY(const auto before, ReadBack(store, key, bytes));
  if (before.has_value()) return *before;
  const Status put = store.Put(key, bytes);
  if (!put.ok() && put.error().code() != ErrorCode::kUnknownOutcome) return put.error();
  const auto after = ReadBack(store, key, bytes);
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
  return {
      ErrorCode::kConflict,
      fmt::format("{}: this publisher stops, and none of its versions from there on is published; see that only "
                  "one publishes, then start it again{}",
                  WhoseRecord(run, version), spooled ? fmt::format(" with {}", FlagText("discard-conflicting")) : "")};
}

}  // namespace weightwire
