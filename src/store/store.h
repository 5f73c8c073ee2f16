// A store: named objects in a bucket, a directory or memory. The one thing between trainer and inference servers.
//
// Objects appear complete or not at all: no call ever shows a half-written one. A call that has returned is visible to
// every later call, by anybody (read after write, list after write), and survives a crash of the machine it was
// written on.
//
// Outcomes. What a caller reacts to differently has its own code:
//   kNotFound          there is no such object.
//   kUnknownOutcome    only from writes: the request was sent and its answer was lost. It may have happened, may not
//                      have, or may happen later. Read back and compare (read_back.h), or repeat it where repeating is
//                      harmless.
//   kRefused           credentials are missing, expired or not allowed to do this. A person must act.
//   kUnavailable       not now: overload, network, time-out. Nothing was changed. Trying again may help
//                      (retry_store.h does).
//   kCorrupt           the store gave other bytes than it has: a wrong length, a damaged answer. Fetch again.
//   kInvalidArgument   the request makes no sense, e.g. a bad key (key.h).
//   kLimit             the object is larger than the caller said it may be.
//   kUnsupported       this store cannot do it at all, e.g. writing where it is read-only.
//   kIo                the local disk failed or is full.
// "It exists already" is no error but an answer: PutOutcome::kExists.
//
// No object's key followed by "/" may begin the key of another: a directory cannot hold that. A store may refuse the
// second of the two.
//
// Thread safety: all calls may be made by several threads at once. Calls block. Wrappers
// (retry_store.h, limit_store.h, trace_store.h, parallel_store.h) are stores too; the last one has threads of its own
// while a call lasts, the others and all back ends start none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "store/policy.h"

namespace weightwire {

// An object uploaded in parts; the usual limit of services.
inline constexpr std::uint64_t kMaxObjectBytes = std::uint64_t{5} << 40;
inline constexpr std::size_t kMaxListEntries = 100'000;

struct ObjectInfo {
  std::string key;
  std::uint64_t size_bytes = 0;
  // By the store's own clock; some stores count whole seconds only. Never compare it with this machine's time.
  WallTime last_modified;

  bool operator==(const ObjectInfo&) const = default;
};

enum class PutOutcome : std::uint8_t { kCreated, kExists };

// An object being written in parts; see Store::StartUpload. The object appears when Finish succeeds, as a whole.
//
// All parts have part_bytes() bytes, except that the last may have fewer. They may be written in any order, several at
// a time, and again after an error. Finish once all are written. Destroyed before that, the upload is given up as
// Abort does, but errors are lost.
//
// Thread safety: WritePart may be called by several threads; Finish and Abort by one, when no other call is running.
// An upload must not outlive its store.
class Upload {
 public:
  Upload(std::uint64_t size_bytes, std::uint64_t part_bytes) : size_bytes_(size_bytes), part_bytes_(part_bytes) {}
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;
  virtual ~Upload() = default;

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] std::uint64_t part_bytes() const { return part_bytes_; }
  [[nodiscard]] std::uint64_t part_count() const { return (size_bytes_ + part_bytes_ - 1) / part_bytes_; }
  // REQUIRES: index < part_count().
  [[nodiscard]] std::uint64_t PartSize(std::uint64_t index) const;

  // REQUIRES: index < part_count(), bytes.size() == PartSize(index). Repeating it is harmless.
  Status WritePart(std::uint64_t index, std::span<const std::uint8_t> bytes);

  // After kUnknownOutcome the object may be there: look.
  virtual Status Finish() = 0;

  // Removes what was written so far. Finish and WritePart must not follow.
  virtual Status Abort() = 0;

 private:
  virtual Status DoWritePart(std::uint64_t index, std::span<const std::uint8_t> bytes) = 0;

  const std::uint64_t size_bytes_;
  const std::uint64_t part_bytes_;
};

// The public functions check their arguments and then call the private one of the same name, which a back end
// implements.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  // What a person would call it: its URL or path, without secrets.
  [[nodiscard]] virtual std::string Name() const = 0;

  // A whole object. kLimit when it has more than `max_bytes`.
  Result<std::vector<std::uint8_t>> Get(std::string_view key, std::uint64_t max_bytes);

  // Fills `out` with the object's bytes from `offset` on. An object that ends before that is kCorrupt. Nothing is asked
  // of the store when `out` is empty. After an error the content of `out` is unspecified.
  Status Read(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out);

  // Writes an object, replacing one of the same name. For keys that have a single writer.
  // REQUIRES for this and PutIfAbsent: at most kMaxPutBytes.
  Status Put(std::string_view key, std::span<const std::uint8_t> bytes);

  // Writes an object unless there is one of that name. Of any number of racing callers one gets kCreated. What an
  // application commits by this goes through PutAndReadBack (read_back.h), which handles a lost answer.
  Result<PutOutcome> PutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes);

  Result<ObjectInfo> Stat(std::string_view key);

  // Objects whose key begins with `prefix` and comes after `start_after` (empty: from the first), in rising order of
  // the keys' bytes. At most `limit`, which is 1 to kMaxListEntries; fewer only when there are no more. Other objects
  // in the bucket whose names are no keys are left out.
  Result<std::vector<ObjectInfo>> List(std::string_view prefix, std::string_view start_after, std::size_t limit);

  // Removing what is not there is fine.
  Status Remove(std::string_view key);

  // For large objects: an upload of exactly `size_bytes`, at least 1. Like Put it replaces.
  Result<std::unique_ptr<Upload>> StartUpload(std::string_view key, std::uint64_t size_bytes);

  // The store's own clock, as last_modified has it; about a second exact. May cost a request.
  virtual Result<WallTime> Now() = 0;

 protected:
  // By default gathers the parts in memory and writes them by one Put.
  virtual Result<std::unique_ptr<Upload>> DoStartUpload(std::string_view key, std::uint64_t size_bytes);

 private:
  virtual Result<std::vector<std::uint8_t>> DoGet(std::string_view key, std::uint64_t max_bytes) = 0;
  virtual Status DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) = 0;
  virtual Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) = 0;
  virtual Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) = 0;
  virtual Result<ObjectInfo> DoStat(std::string_view key) = 0;
  virtual Result<std::vector<ObjectInfo>> DoList(std::string_view prefix, std::string_view start_after,
                                                 std::size_t limit) = 0;
  virtual Status DoRemove(std::string_view key) = 0;
};

// "there is no object KEY in STORE": one wording for all back ends.
[[nodiscard]] Error ObjectNotFound(std::string_view key, const Store& store);
// The object is shorter than what was to be read from it.
[[nodiscard]] Error ObjectEndsEarly(std::string_view key, const Store& store, std::uint64_t wanted_end_bytes,
                                    std::uint64_t size_bytes);
[[nodiscard]] Error ObjectTooLarge(std::string_view key, const Store& store, std::uint64_t size_bytes,
                                   std::uint64_t max_bytes);

}  // namespace weightwire
