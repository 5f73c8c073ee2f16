#include "follow/mirror/mirror_content.h"

#include <utility>

#include "codec/digest/state.h"

namespace weightwire {

Result<MirrorContent> MirrorContent::Open(FileSystem& files, const FileSystem::Path& directory,
                                          std::shared_ptr<const Layout> layout) {
  WW_TRY(const Checkpoint found, Checkpoint::Open(files, directory));
  auto seen = found.ViewAs(*layout);
  if (!seen.ok()) return seen.error().In(directory.string());
  MirrorContent content(std::move(seen).value(), std::move(layout));
  WW_TRY(content.locations_, LocationsIn(content.checkpoint_.files(), *content.layout_));
  for (std::size_t i = 0; i < content.layout_->size(); ++i) content.tensors_.push_back(content.checkpoint_.bytes(i));
  return content;
}

std::vector<Digest> MirrorContent::DigestInFull(const Kernels& kernels, ThreadPool& pool) const {
  return DigestTensors(tensors_, kernels, pool);
}

}  // namespace weightwire
