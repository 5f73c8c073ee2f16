// A store in a directory, also one on a network file system that several machines share. The object KEY is the regular
// file ROOT/KEY.
//
// A write fills a file under ROOT/.weightwire/tmp, flushes it to the disk, and then gives it its name: by rename(2), or
// by link(2) when the name must be free, for link is atomic on NFS too. If the answer to a link is lost, the number of
// links of the temporary file tells whether it happened. The directories on the way are flushed as well, so a write
// that returned survives a crash. Files that a crashed writer left in tmp are removed after a day.
//
// The directory is made by the first write. Links and names that are no keys are ignored. Times are those of the file
// system, which on NFS is the server's.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <mutex>

#include "base/random.h"
#include "store/store.h"

namespace weightwire {

class FileStore final : public Store {
 public:
  using LinkCall = int (*)(const char* from, const char* to);

  // `name` is what messages call it: as the user wrote it. `link` is link(2); a test puts in one that loses its answer,
  // as NFS does.
  FileStore(std::filesystem::path root, std::string name, LinkCall link = ::link);

  [[nodiscard]] std::string Name() const override { return name_; }

  // The file system's clock. Where nothing can be written this machine's, which is the same unless it is on a network.
  Result<WallTime> Now() override;

 private:
  class FileUpload;

  Result<std::vector<std::uint8_t>> DoGet(std::string_view key, std::uint64_t max_bytes) override;
  Status DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) override;
  Status DoPut(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Result<PutOutcome> DoPutIfAbsent(std::string_view key, std::span<const std::uint8_t> bytes) override;
  Result<ObjectInfo> DoStat(std::string_view key) override;
  Result<std::vector<ObjectInfo>> DoList(std::string_view prefix, std::string_view start_after,
                                         std::size_t limit) override;
  Status DoRemove(std::string_view key) override;
  Result<std::unique_ptr<Upload>> DoStartUpload(std::string_view key, std::uint64_t size_bytes) override;

  // Whether the directory was there and is not any more, as a mount goes. Nothing can be said then of what it holds,
  // and nothing may be written: it would land in the directory that the mount hides, and be lost.
  [[nodiscard]] bool HasGone() const;
  // Makes a directory of the bucket; the bucket's own only as long as it never was there. 0 or an errno.
  int MakeBelow(const std::filesystem::path& directory);
  // A new name under tmp, whose directory exists.
  Result<std::filesystem::path> NewTemporary();
  // Removes what crashed writers left in tmp, once. The fresh file tells the file system's time.
  void RemoveOldTemporariesOnce(const std::filesystem::path& fresh);

  // That there is no such object; or kUnavailable if the whole directory has gone, as a mount does, or is none: then
  // nothing can be said of what it holds.
  [[nodiscard]] Error NotFound(std::string_view key);
  // "cannot DOING KEY in NAME: reason", with the code that fits.
  [[nodiscard]] Error Failure(const char* doing, std::string_view key, int error) const;
  // Gives the temporary file its name, in a directory that is made if need be, and flushes that.
  Status RenameTo(const std::filesystem::path& temporary, std::string_view key);
  Result<PutOutcome> LinkIfAbsent(const std::filesystem::path& temporary, std::string_view key);
  [[nodiscard]] int FlushNames(std::string_view key) const;

  const std::filesystem::path root_;
  const std::filesystem::path temporaries_;
  const std::string name_;
  const LinkCall link_;
  std::mutex random_mutex_;
  SystemRandom random_;  // guarded by random_mutex_
  std::atomic<bool> cleaned_ = false;
  std::atomic<bool> was_there_ = false;  // the directory, at some time
};

}  // namespace weightwire
