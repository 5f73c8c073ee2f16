// The safetensors file format: https://github.com/huggingface/safetensors#format
//
//   8 bytes   N, length of the header, little-endian
//   N bytes   JSON: {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, …}, begins with '{', may
//             end in white space; "__metadata__" maps strings to strings
//   the rest  the tensors' data; offsets count from here
//
// Parsing is validating. A SafetensorsView exists only for bytes in which
//   1. the header is within the file and kMaxHeaderBytes, and names each tensor once, within the limits;
//   2. each tensor's size is what its type and shape say, without overflow;
//   3. the tensors, in order of their offsets, cover the data to the last byte: no hole, no overlap, nothing left over.
// Bytes for which the format's own library finds more than one reading (a key given twice) or ignores something (an
// unknown key) are refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "tensor/tensor_spec.h"

namespace weightwire {

// The strings of "__metadata__". An empty map and none at all are the same.
using Metadata = std::map<std::string, std::string>;

// A tensor in a file: what it is, and its data, which belongs to whoever owns the file's bytes and has any alignment.
struct TensorView {
  TensorSpec spec;
  std::span<const std::uint8_t> bytes;
};

// A parsed file. Immutable, so safe to share between threads. The bytes stay their owner's and must outlive the view.
class SafetensorsView {
 public:
  // The error does not name the file: the caller knows it.
  static Result<SafetensorsView> Parse(std::span<const std::uint8_t> file);

  // In the order in which the data lies in the file.
  [[nodiscard]] const std::vector<TensorView>& tensors() const { return tensors_; }
  [[nodiscard]] const Metadata& metadata() const { return metadata_; }

  // The tensor of that name, or nullptr.
  [[nodiscard]] const TensorView* Find(std::string_view name) const;

 private:
  SafetensorsView() = default;

  std::vector<TensorView> tensors_;
  std::vector<std::size_t> by_name_;  // indices into tensors_
  Metadata metadata_;
};

// Sorts as the format's own library does before writing: widest alignment first, then by name, so that data of a usual
// file is aligned to its type.
void SortForFile(std::vector<TensorSpec>& specs);

// The length and the header of a file that holds these tensors in this order, padded with spaces to a multiple of 8.
// Same input, same bytes.
Result<std::vector<std::uint8_t>> SafetensorsHeader(std::span<const TensorSpec> specs, const Metadata& metadata);

// A file written portion by portion, so that it may be larger than memory.
class SafetensorsWriter {
 public:
  // Creates `path`, which must not exist, and writes the header.
  static Result<SafetensorsWriter> Create(const std::filesystem::path& path, std::span<const TensorSpec> specs,
                                          const Metadata& metadata);

  // The next bytes of the tensors' data, one tensor after another in the order of `specs`, in portions of any size.
  // More than the specs have room for is an error.
  Status Append(std::span<const std::uint8_t> bytes);

  // Bytes appended so far.
  [[nodiscard]] std::uint64_t position() const { return position_ - data_begin_; }

  // Returns once the file is on the disk; an error unless all data was appended.
  Status Finish();

 private:
  SafetensorsWriter(File file, std::uint64_t data_begin, std::uint64_t end)
      : file_(std::move(file)), data_begin_(data_begin), position_(data_begin), end_(end) {}

  File file_;
  std::uint64_t data_begin_;
  std::uint64_t position_;
  std::uint64_t end_;
};

}  // namespace weightwire
