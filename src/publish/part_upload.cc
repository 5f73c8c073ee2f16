#include "publish/part_upload.h"

#include <memory>

namespace weightwire {

Status PutPart(Store& store, const PartRef& part, std::span<const std::uint8_t> bytes, bool again) {
  // The key holds the hash: what is there, complete, is the same. Looking is worth a request only if we may have put
  // it.
  if (again) {
    const auto there = store.Stat(part.key);
    if (there.ok() && there.value().size_bytes == part.size_bytes) return Ok();
    if (!there.ok() && there.error().code() != ErrorCode::kNotFound) return there.error();
  }
  if (bytes.size() <= kMaxPutBytes) return store.Put(part.key, bytes);
  WW_TRY(const std::unique_ptr<Upload> upload, store.StartUpload(part.key, bytes.size()));
  for (std::uint64_t i = 0; i < upload->part_count(); ++i) {
    WW_RETURN_IF_ERROR(upload->WritePart(i, bytes.subspan(i * upload->part_bytes(), upload->PartSize(i))));
  }
  return upload->Finish();
}

}  // namespace weightwire
