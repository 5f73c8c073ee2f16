#include "store/wrappers/parallel_store.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "store/policy.h"

namespace weightwire {
namespace {

// An upload whose parts are several of another's.
class ParallelUpload final : public Upload {
 public:
  ParallelUpload(std::unique_ptr<Upload> inner, std::uint64_t together)
      : Upload(inner->size_bytes(), inner->part_bytes() * together), inner_(std::move(inner)), together_(together) {}

  Status Finish() override { return inner_->Finish(); }
  Status Abort() override { return inner_->Abort(); }

 private:
  Status DoWritePart(std::uint64_t index, std::span<const std::uint8_t> bytes) override {
    return WritePartsInParallel(*inner_, index * together_, bytes, together_);
  }

  const std::unique_ptr<Upload> inner_;
  const std::uint64_t together_;
};

}  // namespace

ParallelStore::ParallelStore(std::unique_ptr<Store> inner, TransferOptions options)
    : ForwardingStore(std::move(inner)), options_(options) {}

Status ParallelStore::DoRead(std::string_view key, std::uint64_t offset, std::span<std::uint8_t> out) {
  if (out.size() <= options_.read_bytes) return inner().Read(key, offset, out);
  return ReadInParallel(inner(), key, offset, out, options_);
}

Status ParallelStore::DoPut(std::string_view key, std::span<const std::uint8_t> bytes) {
  return PutObject(inner(), key, bytes, options_);
}

Result<std::unique_ptr<Upload>> ParallelStore::DoStartUpload(std::string_view key, std::uint64_t size_bytes) {
  WW_TRY(std::unique_ptr<Upload> upload, inner().StartUpload(key, size_bytes));
  const std::uint64_t together =
      std::min<std::uint64_t>(options_.threads, kMaxParallelPartBytes / upload->part_bytes());
  if (together <= 1 || upload->part_count() <= 1) return upload;
  return std::unique_ptr<Upload>(std::make_unique<ParallelUpload>(std::move(upload), together));
}

}  // namespace weightwire
