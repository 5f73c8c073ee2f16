#include "publish/same_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/surface.h"

namespace weightwire {
namespace {

// Whether `other` has a tensor of this name and of the shape of tensor `index` of `layout`.
bool HasSame(const Layout& other, const std::string& name, const Layout& layout, std::size_t index) {
  const auto found = other.Resolve(name);
  return found.has_value() && other.tensors()[*found].shape == layout.tensors()[index].shape;
}

}  // namespace

bool SharesTensor(const Layout& one, const Layout& other) {
  if (one.size() == 0 || other.size() == 0) return true;
  for (std::size_t i = 0; i < one.size(); ++i) {
    if (HasSame(other, one.tensors()[i].name, one, i)) return true;
  }
  return std::ranges::any_of(
      one.aliases(), [&](const auto& alias) { return HasSame(other, alias.first, one, *one.Find(alias.second)); });
}

Status CheckSameModel(const Layout& newest, const Layout& published, const std::string& run_name) {
  if (SharesTensor(newest, published)) return Ok();
  return Error(ErrorCode::kMismatch,
               fmt::format("this is another model than {} holds: none of its {} tensors has the name and the shape of "
                           "one in the newest version (the first there is '{}', here '{}'); publish to another run, or "
                           "allow it with {}",
                           run_name, published.size(), newest.tensors().front().name, published.tensors().front().name,
                           FlagText("allow-new-model")));
}

}  // namespace weightwire
