#include "codec/encode/converting_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "codec/format/units.h"
#include "codec/kernels/convert_scalar.h"
#include "codec/kernels/prefetch.h"

namespace weightwire {
namespace {

// What is converted at a time.
constexpr std::uint32_t kBatchElements = 1024;

// Finds the elements of a tensor by their numbers in row-major order.
class RowMajor {
 public:
  explicit RowMajor(StridedTensor tensor) : tensor_(std::move(tensor)) {
    // Dimensions whose elements follow on each other are one.
    for (std::size_t d = 0; d < tensor_.shape.size(); ++d) {
      const std::uint64_t size = tensor_.shape[d];
      if (size == 1) continue;
      const std::int64_t stride = tensor_.strides[d];
      if (!sizes_.empty() && strides_.back() == stride * static_cast<std::int64_t>(size)) {
        sizes_.back() *= size;
        strides_.back() = stride;
      } else {
        sizes_.push_back(size);
        strides_.push_back(stride);
      }
    }
  }

  [[nodiscard]] const StridedTensor& tensor() const { return tensor_; }

  // Calls function(element, count, stride) for `count` elements from `first` on, in stretches along the innermost
  // dimension.
  template <typename Function>
  void ForEachStretch(std::uint64_t first, std::uint64_t count, Function&& function) const {
    const auto unit_bytes = static_cast<std::int64_t>(UnitBytes(tensor_.dtype));
    if (sizes_.empty()) {
      if (count != 0) function(tensor_.data, std::uint64_t{1}, std::int64_t{1});
      return;
    }
    const std::uint64_t inner = sizes_.back();
    while (count > 0) {
      const std::uint64_t column = first % inner;
      std::uint64_t row = first / inner;
      std::int64_t offset = static_cast<std::int64_t>(column) * strides_.back();
      for (std::size_t d = sizes_.size() - 1; d-- > 0;) {
        offset += static_cast<std::int64_t>(row % sizes_[d]) * strides_[d];
        row /= sizes_[d];
      }
      const std::uint64_t stretch = std::min(count, inner - column);
      function(tensor_.data + offset * unit_bytes, stretch, strides_.back());
      first += stretch;
      count -= stretch;
    }
  }

  void PrefetchElements(std::uint64_t first, std::uint64_t count) const {
    ForEachStretch(first, count, [&](const std::uint8_t* from, std::uint64_t size, std::int64_t stride) {
      if (stride == 1) Prefetch(from, size * static_cast<std::size_t>(UnitBytes(tensor_.dtype)));
    });
  }

  // `count` elements as they are.
  void Copy(std::uint64_t first, std::uint64_t count, std::uint8_t* out) const {
    WithUnit(UnitBytes(tensor_.dtype), [&]<typename Unit>() {
      ForEachStretch(first, count, [&](const std::uint8_t* from, std::uint64_t size, std::int64_t stride) {
        if (stride == 1) {
          std::memcpy(out, from, size * sizeof(Unit));
        } else {
          const std::int64_t step = stride * static_cast<std::int64_t>(sizeof(Unit));
          for (std::uint64_t i = 0; i < size; ++i) {
            StoreUnit<Unit>(out, i, LoadUnit<Unit>(from + static_cast<std::int64_t>(i) * step, 0));
          }
        }
        out += size * sizeof(Unit);
      });
    });
  }

  // The same as F32: where they are, or in `room`. REQUIRES: F32 or BF16; count <= kBatchElements.
  using Room = std::array<std::uint8_t, kBatchElements * sizeof(float)>;
  const std::uint8_t* Floats(std::uint64_t first, std::uint32_t count, Room& room) const {
    if (tensor_.dtype == DType::kF32) {
      const std::uint8_t* there = nullptr;
      ForEachStretch(first, count, [&](const std::uint8_t* from, std::uint64_t size, std::int64_t stride) {
        if (size == count && (stride == 1 || size == 1)) there = from;
      });
      if (there == nullptr) Copy(first, count, room.data());
      return there != nullptr ? there : room.data();
    }
    std::array<std::uint8_t, kBatchElements * sizeof(std::uint16_t)> bf16;
    Copy(first, count, bf16.data());
    for (std::uint32_t i = 0; i < count; ++i) {
      StoreUnit<std::uint32_t>(room.data(), i, std::uint32_t{LoadUnit<std::uint16_t>(bf16.data(), i)} << 16);
    }
    return room.data();
  }

 private:
  StridedTensor tensor_;
  std::vector<std::uint64_t> sizes_;
  std::vector<std::int64_t> strides_;
};

// The base of the readers. It makes units in batches that fit the cache.
class HostReader : public UnitReader {
 public:
  HostReader(StridedTensor tensor, DType to) : elements_(std::move(tensor)), unit_bytes_(UnitBytes(to)) {}

  Status Read(std::span<const std::uint64_t> firsts, std::uint32_t count, std::uint8_t* out) const final {
    for (std::size_t k = 0; k < firsts.size(); ++k) {
      if (k + 1 < firsts.size()) elements_.PrefetchElements(firsts[k + 1], count);
      Make(firsts[k], count, out);
      out += std::size_t{count} * static_cast<std::size_t>(unit_bytes_);
    }
    return Ok();
  }
  [[nodiscard]] bool reads_small_batches() const final { return true; }

 protected:
  virtual void Make(std::uint64_t first, std::uint32_t count, std::uint8_t* out) const = 0;
  [[nodiscard]] const RowMajor& elements() const { return elements_; }

 private:
  RowMajor elements_;
  int unit_bytes_;
};

class SameType final : public HostReader {
 public:
  using HostReader::HostReader;
  void Make(std::uint64_t first, std::uint32_t count, std::uint8_t* out) const override {
    elements().Copy(first, count, out);
  }
};

class FloatsAsBf16 final : public HostReader {
 public:
  FloatsAsBf16(StridedTensor tensor, const Kernels& kernels)
      : HostReader(std::move(tensor), DType::kBF16), kernels_(*kernels.convert) {}

  [[nodiscard]] const std::uint8_t* FloatsOf(std::uint64_t first, std::uint64_t count) const override {
    const std::uint8_t* floats = nullptr;
    elements().ForEachStretch(first, count, [&](const std::uint8_t* from, std::uint64_t size, std::int64_t stride) {
      if (size == count && stride == 1) floats = from;
    });
    return floats;
  }

  void Make(std::uint64_t first, std::uint32_t count, std::uint8_t* out) const override {
    elements().ForEachStretch(first, count, [&](const std::uint8_t* from, std::uint64_t size, std::int64_t stride) {
      if (stride == 1) {
        kernels_.to_bf16(from, size, out);
      } else {
        const std::int64_t step = stride * static_cast<std::int64_t>(sizeof(float));
        for (std::uint64_t i = 0; i < size; ++i) {
          StoreUnit(out, i, ToBf16(LoadUnit<std::uint32_t>(from + static_cast<std::int64_t>(i) * step, 0)));
        }
      }
      out += size * sizeof(std::uint16_t);
    });
  }

 private:
  const ConvertKernels& kernels_;
};

class BlocksAsE4m3 final : public HostReader {
 public:
  BlocksAsE4m3(StridedTensor tensor, BlockScales scales, const Kernels& kernels)
      : HostReader(std::move(tensor), DType::kF8E4M3), scales_(std::move(scales)), kernels_(*kernels.convert) {}

  void Make(std::uint64_t first, std::uint32_t count, std::uint8_t* out) const override {
    static_assert(BlockScales::kBlock <= kBatchElements);
    const std::uint64_t columns = elements().tensor().shape[1];
    RowMajor::Room room;
    while (count > 0) {
      const std::uint64_t row = first / columns;
      const std::uint64_t column = first % columns;
      const std::uint64_t block = column / BlockScales::kBlock;
      const std::uint64_t end = std::min(columns, (block + 1) * BlockScales::kBlock);
      const auto size = static_cast<std::uint32_t>(std::min<std::uint64_t>(count, end - column));
      const float scale = scales_.scales[row / BlockScales::kBlock * scales_.columns + block];
      kernels_.to_e4m3(elements().Floats(first, size, room), size, scale, out);
      first += size;
      count -= size;
      out += size;
    }
  }

 private:
  const BlockScales scales_;
  const ConvertKernels& kernels_;
};

bool IsFloatMatrix(const StridedTensor& tensor) {
  return tensor.shape.size() == 2 && (tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16);
}

std::uint64_t Blocks(std::uint64_t elements) { return (elements + BlockScales::kBlock - 1) / BlockScales::kBlock; }

float ScaleOf(std::uint32_t largest, ScaleKind kind) {
  if (largest == 0) return 1.0F;
  const float scale = std::bit_cast<float>(largest) / kLargestE4m3;
  if (kind == ScaleKind::kFloat) return scale;
  constexpr std::uint32_t kMantissa = 0x7fffff;
  const auto bits = std::bit_cast<std::uint32_t>(scale);
  if (bits >= kFloatInfinity || (bits & kMantissa) == 0) return scale;
  return std::bit_cast<float>((bits & ~kMantissa) + kMantissa + 1);
}

}  // namespace

Result<BlockScales> MakeBlockScales(const StridedTensor& tensor, ScaleKind kind, const Kernels& kernels,
                                    ThreadPool& pool) {
  if (!IsFloatMatrix(tensor)) {
    return Error(ErrorCode::kInvalidArgument,
                 "scales of blocks are made of matrices of F32 or BF16, and no other tensors");
  }
  const RowMajor elements(tensor);
  const std::uint64_t rows = tensor.shape[0];
  const std::uint64_t columns = tensor.shape[1];
  BlockScales result{Blocks(columns), std::vector<float>(Blocks(rows) * Blocks(columns))};
  pool.ParallelFor(Blocks(rows), [&](std::size_t band, std::size_t) {
    std::vector<std::uint32_t> largest(result.columns);
    RowMajor::Room room;
    const std::uint64_t last_row = std::min(rows, (band + 1) * BlockScales::kBlock);
    for (std::uint64_t row = band * BlockScales::kBlock; row < last_row; ++row) {
      for (std::uint64_t block = 0; block < result.columns; ++block) {
        const std::uint64_t column = block * BlockScales::kBlock;
        const auto size = static_cast<std::uint32_t>(std::min(BlockScales::kBlock, columns - column));
        const std::uint8_t* floats = elements.Floats(row * columns + column, size, room);
        largest[block] = std::max(largest[block], kernels.convert->largest(floats, size));
      }
    }
    for (std::uint64_t block = 0; block < result.columns; ++block) {
      result.scales[band * result.columns + block] = ScaleOf(largest[block], kind);
    }
  });
  return result;
}

Result<std::unique_ptr<UnitReader>> MakeConvertingReader(StridedTensor tensor, DType to,
                                                         std::optional<BlockScales> scales, const Kernels& kernels) {
  WW_CHECK(tensor.shape.size() == tensor.strides.size());
  std::unique_ptr<UnitReader> reader;
  if (scales.has_value()) {
    if (to != DType::kF8E4M3 || !IsFloatMatrix(tensor) || scales->columns != Blocks(tensor.shape[1]) ||
        scales->scales.size() != Blocks(tensor.shape[0]) * Blocks(tensor.shape[1])) {
      return Error(ErrorCode::kInvalidArgument, "scales of blocks do not fit the tensor they are for");
    }
    reader = std::make_unique<BlocksAsE4m3>(std::move(tensor), std::move(*scales), kernels);
  } else if (tensor.dtype == to) {
    reader = std::make_unique<SameType>(std::move(tensor), to);
  } else if (tensor.dtype == DType::kF32 && to == DType::kBF16) {
    reader = std::make_unique<FloatsAsBf16>(std::move(tensor), kernels);
  } else {
    return Error(ErrorCode::kInvalidArgument,
                 std::string("cannot publish ") + std::string(NameOf(tensor.dtype)) + " as " + std::string(NameOf(to)));
  }
  return reader;
}

}  // namespace weightwire
