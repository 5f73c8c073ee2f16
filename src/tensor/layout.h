// Layout: which tensors a model has, in a canonical order, named by a hash.
//
// A delta names tensors by their index in a layout and carries the layout's hash, so that two sides which agree on the
// hash agree on every name, type and shape.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/sha256.h"
#include "tensor/tensor_spec.h"

namespace weightwire {

// Tied weights: a second name -> the name under which the tensor is kept.
using Aliases = std::map<std::string, std::string>;

// Immutable, so safe to share between threads. Invariants:
//   1. tensors are sorted by the bytes of their names, and no name occurs twice;
//   2. every spec and their number are within the limits;
//   3. an alias is not a tensor, and what it stands for is one.
class Layout {
 public:
  // A layout without tensors.
  Layout();

  // Sorts the tensors; the error says which rule was broken.
  static Result<Layout> Make(std::vector<TensorSpec> tensors, Aliases aliases);

  // Accepts exactly the texts CanonicalJson gives.
  static Result<Layout> Parse(std::string_view json);

  [[nodiscard]] std::size_t size() const { return tensors_.size(); }
  [[nodiscard]] const std::vector<TensorSpec>& tensors() const { return tensors_; }
  [[nodiscard]] const Aliases& aliases() const { return aliases_; }

  // Index of the tensor kept under that name. An alias is not found: look it up in aliases() first.
  [[nodiscard]] std::optional<std::size_t> Find(std::string_view name) const;
  // Index of the tensor with that name, type and shape.
  [[nodiscard]] std::optional<std::size_t> FindSame(const TensorSpec& spec) const;
  // As Find, but an alias gives the tensor it stands for.
  [[nodiscard]] std::optional<std::size_t> Resolve(std::string_view name) const;

  // REQUIRES: index < size().
  [[nodiscard]] std::uint64_t byte_size(std::size_t index) const { return byte_sizes_[index]; }
  [[nodiscard]] std::uint64_t element_count(std::size_t index) const;
  // Elements, except for packed types: bytes (see UnitBytes).
  [[nodiscard]] std::uint64_t unit_count(std::size_t index) const;

  [[nodiscard]] std::uint64_t total_bytes() const { return total_bytes_; }

  // The one text that describes this layout, without white space:
  //   {"aliases":{"alias":"kept",…},"tensors":[["name","BF16",[2,3]],…]}
  // Aliases and tensors in order of their names' bytes; strings as AppendJsonString (json.h) writes them.
  [[nodiscard]] std::string CanonicalJson() const;

  // SHA-256 of the bytes of CanonicalJson().
  [[nodiscard]] const Sha256Digest& hash() const { return hash_; }

  bool operator==(const Layout& other) const { return hash_ == other.hash_; }

 private:
  std::vector<TensorSpec> tensors_;
  std::vector<std::uint64_t> byte_sizes_;
  std::uint64_t total_bytes_ = 0;
  Aliases aliases_;
  Sha256Digest hash_;
};

}  // namespace weightwire
