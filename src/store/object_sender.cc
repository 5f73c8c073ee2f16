#include "store/object_sender.h"

#include <vector>

#include "store/policy.h"

namespace weightwire {

Status ObjectSender::Begin() {
  if (size_bytes_ <= kSinglePutBytes) return Ok();
  WW_TRY(upload_, store_.StartUpload(key_, size_bytes_));
  return Ok();
}

Result<bool> ObjectSender::Step(const Fill& fill) {
  if (upload_ != nullptr && next_part_ == upload_->part_count()) {
    WW_RETURN_IF_ERROR(upload_->Finish());
    return true;
  }
  std::vector<std::uint8_t> piece(upload_ != nullptr ? upload_->PartSize(next_part_) : size_bytes_);
  WW_RETURN_IF_ERROR(fill(piece));
  hasher_.Update(piece);
  if (upload_ == nullptr) {
    WW_RETURN_IF_ERROR(store_.Put(key_, piece));
  } else {
    WW_RETURN_IF_ERROR(upload_->WritePart(next_part_++, piece));
  }
  bytes_sent_ += piece.size();
  return upload_ == nullptr;
}

}  // namespace weightwire
