#include "codec/decode/state_view.h"

#include <utility>

#include "base/check.h"
#include "codec/format/units.h"

namespace weightwire {

StateView::StateView(std::shared_ptr<const Layout> layout, std::vector<std::span<const std::uint8_t>> tensors,
                     std::vector<Digest> digests)
    : layout_(std::move(layout)), digests_(std::move(digests)) {
  WW_CHECK(tensors.size() == layout_->size() && digests_.size() == layout_->size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    WW_CHECK(tensors[i].size() == layout_->byte_size(i));
    tensors_.push_back({tensors[i], {}});
  }
}

StateView StateView::After(std::shared_ptr<const StagedChange> change) const& {
  return StateView(*this).After(std::move(change));
}

StateView StateView::After(std::shared_ptr<const StagedChange> change) && {
  WW_CHECK(change->layout_before() == *layout_ && change->digests_before() == digests_);
  if (!(change->layout_after() == *layout_)) {
    std::vector<Tensor> before = std::exchange(tensors_, {});
    layout_ = change->shared_layout_after();
    tensors_.resize(layout_->size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (const auto origin = change->Origin(i); origin.has_value()) tensors_[i] = before[*origin];
    }
  }
  digests_ = change->digests_after();
  for (const StagedTensor& staged : change->tensors()) {
    Tensor& tensor = tensors_[staged.tensor()];
    if (staged.is_new()) {
      tensor = {staged.new_bytes(), {}};
    } else {
      tensor.changes.push_back(&staged);
    }
  }
  kept_.push_back(std::move(change));
  return std::move(*this);
}

std::span<const std::uint8_t> StateView::InPlace(std::size_t tensor) const {
  return tensors_[tensor].changes.empty() ? tensors_[tensor].bytes : std::span<const std::uint8_t>{};
}

std::span<const std::uint8_t> StateView::Units(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                                               std::vector<std::uint8_t>& scratch) const {
  const Tensor& from = tensors_[tensor];
  const auto unit_bytes = static_cast<std::size_t>(UnitBytes(layout_->tensors()[tensor].dtype));
  const std::span<const std::uint8_t> bytes = from.bytes.subspan(first * unit_bytes, count * unit_bytes);
  if (from.changes.empty()) return bytes;
  scratch.assign(bytes.begin(), bytes.end());
  WithUnit(static_cast<int>(unit_bytes), [&]<typename Unit>() {
    for (const StagedTensor* change : from.changes) {
      change->ForEachSlice(first, first + count, [&](const ChangeSlice& slice) {
        std::uint8_t* const to = scratch.data();
        const std::uint64_t shift = slice.first_unit - first;  // modulo 2^64
        for (std::size_t k = 0; k < slice.offsets.size(); ++k) {
          StoreUnit<Unit>(to, shift + slice.offsets[k], LoadUnit<Unit>(slice.new_units, k));
        }
      });
    }
  });
  return scratch;
}

void StateView::AddOverlay(std::size_t tensor, std::uint64_t first, std::uint64_t count,
                           std::vector<OverlaidUnits>& lists) const {
  for (const StagedTensor* change : tensors_[tensor].changes) {
    change->ForEachSlice(first, first + count, [&](const ChangeSlice& slice) {
      OverlaidUnits list;
      list.offsets = slice.offsets.data();
      list.new_units = slice.new_units;
      list.count = static_cast<std::uint32_t>(slice.offsets.size());
      list.shift = static_cast<std::uint32_t>(slice.first_unit - first);
      lists.push_back(list);
    });
  }
}

}  // namespace weightwire
