#include "publish/base_storage.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/huge_buffer.h"
#include "tensor/checkpoint_plan.h"

namespace weightwire {
namespace {

using Path = FileSystem::Path;
constexpr const char* kBaseFileName = "base.safetensors";
constexpr const char* kNewBaseFileName = "base.safetensors.tmp";

// A tensor's bytes. Large ones are in large pages where the system gives them: reading old and new side by side is what
// a publisher does most, and small pages cost it a tenth of its speed.
class MemoryTensor {
 public:
  static Result<std::shared_ptr<MemoryTensor>> Make(std::uint64_t size_bytes) {
    constexpr std::uint64_t kLeastLargeBytes = std::uint64_t{4} << 20;
    auto tensor = std::make_shared<MemoryTensor>();
    if (size_bytes < kLeastLargeBytes) {
      tensor->small_.resize(size_bytes);
      return tensor;
    }
    WW_TRY(HugeBuffer large, HugeBuffer::Allocate(size_bytes));
    tensor->large_.emplace(std::move(large));
    return tensor;
  }

  [[nodiscard]] std::span<std::uint8_t> bytes() { return large_.has_value() ? large_->bytes() : std::span(small_); }

 private:
  std::vector<std::uint8_t> small_;
  std::optional<HugeBuffer> large_;
};

class MemoryStorage final : public BaseStorage {
 public:
  using Tensor = std::shared_ptr<MemoryTensor>;

  MemoryStorage(std::shared_ptr<const Layout> layout, std::vector<Tensor> tensors)
      : layout_(std::move(layout)), tensors_(std::move(tensors)) {}

  static Result<std::unique_ptr<BaseStorage>> Make(std::shared_ptr<const Layout> layout, const MemoryStorage* from) {
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < layout->size(); ++i) {
      const auto origin = from != nullptr ? from->layout_->FindSame(layout->tensors()[i]) : std::nullopt;
      if (origin.has_value()) {
        tensors.push_back(from->tensors_[*origin]);
        continue;
      }
      WW_TRY(Tensor tensor, MemoryTensor::Make(layout->byte_size(i)));
      tensors.push_back(std::move(tensor));
    }
    return std::unique_ptr<BaseStorage>(std::make_unique<MemoryStorage>(std::move(layout), std::move(tensors)));
  }

  [[nodiscard]] const std::shared_ptr<const Layout>& layout() const override { return layout_; }
  [[nodiscard]] std::span<const std::uint8_t> bytes(std::size_t tensor) const override {
    return tensors_[tensor]->bytes();
  }

  Result<std::vector<std::uint8_t*>> ForWriting() override {
    std::vector<std::uint8_t*> pointers;
    for (const Tensor& tensor : tensors_) pointers.push_back(tensor->bytes().data());
    return pointers;
  }

  Result<std::unique_ptr<BaseStorage>> Reshaped(std::shared_ptr<const Layout> after) override {
    return Make(std::move(after), this);
  }

 private:
  std::shared_ptr<const Layout> layout_;
  std::vector<Tensor> tensors_;
};

class FileStorage final : public BaseStorage {
 public:
  FileStorage(FileSystem& files, Path directory) : files_(files), directory_(std::move(directory)) {}

  // Writes a file with the tensors of `layout`, those that `from` has with its bits, and opens it.
  static Result<std::unique_ptr<BaseStorage>> Make(FileSystem& files, const Path& directory,
                                                   std::shared_ptr<const Layout> layout, const FileStorage* from) {
    CheckpointOptions one_file;
    one_file.max_shard_bytes = ~std::uint64_t{0};
    const CheckpointPlan plan = PlanFresh(*layout, one_file);
    WW_TRY(const std::vector<std::uint8_t> header, plan.front().Header());
    const Path path = directory / kNewBaseFileName;
    if (const Status removed = files.Remove(path); !removed.ok() && removed.error().code() != ErrorCode::kNotFound) {
      return removed.error();
    }
    {
      WW_TRY(const std::unique_ptr<NewFile> file, files.Create(path));
      WW_RETURN_IF_ERROR(file->Append(header));
      // Every byte is written: a page without a place on the disk would end the process when the disk is full.
      const std::vector<std::uint8_t> zeros(kCopyBytes);
      for (const std::size_t tensor : plan.front().sources) {
        const auto origin = from != nullptr ? from->layout_->FindSame(layout->tensors()[tensor]) : std::nullopt;
        for (std::uint64_t at = 0; at < layout->byte_size(tensor); at += kCopyBytes) {
          const std::uint64_t size = std::min<std::uint64_t>(kCopyBytes, layout->byte_size(tensor) - at);
          WW_RETURN_IF_ERROR(file->Append(origin.has_value() ? from->bytes_[*origin].subspan(at, size)
                                                             : std::span(zeros).first(size)));
        }
      }
    }
    WW_RETURN_IF_ERROR(files.Rename(path, directory / kBaseFileName));
    auto storage = std::make_unique<FileStorage>(files, directory);
    WW_RETURN_IF_ERROR(storage->Open());
    if (storage->layout_->tensors() != layout->tensors()) {
      return Error(ErrorCode::kCorrupt, "the base copy is not what was written; does somebody else write to its file?");
    }
    storage->layout_ = std::move(layout);
    return std::unique_ptr<BaseStorage>(std::move(storage));
  }

  Status Open() {
    const Path path = directory_ / kBaseFileName;
    WW_TRY(map_, files_.Map(path));
    WW_TRY(const SafetensorsView view, SafetensorsView::Parse(map_->bytes()));
    std::vector<TensorSpec> specs;
    for (const TensorView& tensor : view.tensors()) specs.push_back(tensor.spec);
    WW_TRY(Layout layout, Layout::Make(std::move(specs), {}));
    layout_ = std::make_shared<const Layout>(std::move(layout));
    for (const TensorSpec& spec : layout_->tensors()) bytes_.push_back(view.Find(spec.name)->bytes);
    WW_TRY(update_, files_.MapForUpdate(path));
    return Ok();
  }

  [[nodiscard]] const std::shared_ptr<const Layout>& layout() const override { return layout_; }
  [[nodiscard]] std::span<const std::uint8_t> bytes(std::size_t tensor) const override { return bytes_[tensor]; }

  Result<std::vector<std::uint8_t*>> ForWriting() override {
    WW_TRY(const std::span<std::uint8_t> all, update_->ForWriting(0, map_->bytes().size()));
    std::vector<std::uint8_t*> pointers;
    for (const auto& bytes : bytes_) pointers.push_back(all.data() + (bytes.data() - map_->bytes().data()));
    return pointers;
  }

  Result<std::unique_ptr<BaseStorage>> Reshaped(std::shared_ptr<const Layout> after) override {
    return Make(files_, directory_, std::move(after), this);
  }

 private:
  static constexpr std::size_t kCopyBytes = std::size_t{1} << 20;

  FileSystem& files_;
  const Path directory_;
  std::shared_ptr<const Layout> layout_;
  std::unique_ptr<FileMap> map_;
  std::unique_ptr<UpdateMap> update_;
  std::vector<std::span<const std::uint8_t>> bytes_;  // by the layout, in map_
};

}  // namespace

Result<std::unique_ptr<BaseStorage>> MakeStorage(const BaseLocation& location, std::shared_ptr<const Layout> layout) {
  if (!location.directory.has_value()) return MemoryStorage::Make(std::move(layout), nullptr);
  auto made = FileStorage::Make(*location.files, *location.directory, std::move(layout), nullptr);
  if (!made.ok()) return made.error().In("cannot write the base copy below " + location.directory->string());
  return made;
}

Result<std::unique_ptr<BaseStorage>> OpenStorage(const BaseLocation& location) {
  if (!location.directory.has_value())
    return Error(ErrorCode::kNotFound, "a base copy in memory ends with its process");
  auto storage = std::make_unique<FileStorage>(*location.files, *location.directory);
  WW_RETURN_IF_ERROR(storage->Open());
  return std::unique_ptr<BaseStorage>(std::move(storage));
}

}  // namespace weightwire
