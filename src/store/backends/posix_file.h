// System calls of the directory store: descriptors that close themselves, whole reads and writes, durable directories.
// Everything returns 0 or an errno, for the store's errors depend on which it is.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

namespace weightwire {

// Owns a descriptor. Movable.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();

  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

int OpenFile(const std::filesystem::path& path, int flags, Descriptor* out);

// Reads until `bytes` is full or the file ends, and counts.
int ReadFully(const Descriptor& file, std::uint64_t offset, std::span<std::uint8_t> bytes, std::size_t* count);
int WriteFully(const Descriptor& file, std::uint64_t offset, std::span<const std::uint8_t> bytes);

// Flushes a file's data, or a directory's names. Network file systems that cannot flush a directory need not.
int Flush(const Descriptor& file);
int FlushDirectory(const std::filesystem::path& directory);

// Makes a directory and those above it, each flushed into its parent. One that exists is fine. `floor`, if given, is
// one of them that must be there: it is not made, and ENOENT says that it has gone.
int MakeDirectories(const std::filesystem::path& directory, const std::filesystem::path& floor = {});

// A size or a time of lstat(2).
int StatLink(const std::filesystem::path& path, struct stat* out);

}  // namespace weightwire
