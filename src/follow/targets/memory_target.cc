#include "follow/targets/memory_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "codec/digest/state.h"
#include "tensor/safetensors.h"

namespace weightwire {
namespace {

// Of all files: no machine has as much memory, and sums stay far from 2^64.
constexpr std::uint64_t kMaxStateBytes = std::uint64_t{1} << 46;
constexpr std::string_view kWeightsEnding = ".safetensors";

}  // namespace

// The files of weights as they come; others are not needed in memory.
class MemoryLoad final : public TargetLoad {
 public:
  MemoryLoad(MemoryTarget& target, std::span<const AnchorFile> files) : target_(target) {
    for (const AnchorFile& file : files) {
      names_.push_back(file.name);
      const bool wanted = file.name.ends_with(kWeightsEnding);
      files_.push_back(std::make_shared<UnfilledVector<std::uint8_t>>(wanted ? file.size_bytes : 0));
    }
  }

  Status WriteAt(std::size_t file, std::uint64_t offset, std::span<const std::uint8_t> bytes) override {
    UnfilledVector<std::uint8_t>& to = *files_[file];
    if (!names_[file].ends_with(kWeightsEnding)) return Ok();
    WW_CHECK(offset <= to.size() && bytes.size() <= to.size() - offset);
    std::copy(bytes.begin(), bytes.end(), to.begin() + static_cast<std::ptrdiff_t>(offset));
    return Ok();
  }

  Status Prepare(const Held& held, const Layout& layout) override {
    if (state_.layout != nullptr) return Ok();
    MemoryTarget::State state;
    state.layout = std::make_shared<const Layout>(layout);
    state.tensors.resize(layout.size());
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (files_[i]->empty()) continue;
      WW_RETURN_IF_ERROR(AddTensorsOf(i, layout, state));
    }
    std::vector<std::span<const std::uint8_t>> tensors;
    for (std::size_t i = 0; i < layout.size(); ++i) {
      if (state.tensors[i].empty())
        return Corrupt(fmt::format("the anchor has no tensor '{}'", layout.tensors()[i].name));
      const auto& first = state.tensors[i].front();
      for (const auto& other : state.tensors[i]) {
        if (!std::equal(first.begin(), first.end(), other.begin(), other.end())) {
          return Corrupt(fmt::format("the anchor holds '{}' twice, with different bits", layout.tensors()[i].name));
        }
      }
      tensors.emplace_back(first);
    }
    state.digests = DigestTensors(tensors, target_.kernels_, target_.pool_);
    if (StateDigest(layout, state.digests) != held.state) {
      return Corrupt(fmt::format("the anchor's weights are not those of version {}", held.version));
    }
    state_ = std::move(state);
    held_ = held;
    return Ok();
  }

  Result<StateView> View() override { return MemoryTarget::ViewOf(state_); }

  Status Commit(const std::shared_ptr<const StagedChange>& change, const Held& after) override {
    target_.state_ = std::move(state_);
    target_.held_ = held_;
    if (change != nullptr) WW_RETURN_IF_ERROR(target_.Apply(change, after));
    // The bits from before the load are not kept.
    target_.last_change_ = nullptr;
    target_.held_before_.reset();
    target_.state_before_ = {};
    return Ok();
  }

 private:
  // Finds the tensors of a file among those of the layout.
  Status AddTensorsOf(std::size_t file, const Layout& layout, MemoryTarget::State& state) {
    auto view = SafetensorsView::Parse(*files_[file]);
    if (!view.ok()) return view.error().In(fmt::format("{} of the anchor", names_[file]));
    for (const TensorView& tensor : view.value().tensors()) {
      const auto index = layout.Resolve(tensor.spec.name);
      if (!index.has_value())
        return Corrupt(fmt::format("the anchor's tensor '{}' is not in the layout", tensor.spec.name));
      const TensorSpec& spec = layout.tensors()[*index];
      if (spec.dtype != tensor.spec.dtype || spec.shape != tensor.spec.shape) {
        return Corrupt(fmt::format("the anchor's tensor '{}' has another type or shape", tensor.spec.name));
      }
      const auto offset = static_cast<std::size_t>(tensor.bytes.data() - files_[file]->data());
      state.tensors[*index].push_back(std::span(*files_[file]).subspan(offset, tensor.bytes.size()));
    }
    state.storage.push_back(files_[file]);
    return Ok();
  }

  MemoryTarget& target_;
  std::vector<std::string> names_;
  // Memory that nothing was written to yet takes none: a size that is a lie ends with the object, not with the machine.
  std::vector<std::shared_ptr<UnfilledVector<std::uint8_t>>> files_;
  MemoryTarget::State state_;  // with a layout once it is prepared
  std::optional<Held> held_;
};

Result<StateView> MemoryTarget::View() {
  WW_CHECK(held_.has_value());
  return ViewOf(state_);
}

StateView MemoryTarget::ViewOf(const State& state) {
  std::vector<std::span<const std::uint8_t>> tensors;
  for (const auto& places : state.tensors) tensors.emplace_back(places.front());
  return {state.layout, std::move(tensors), state.digests};
}

Status MemoryTarget::Apply(const std::shared_ptr<const StagedChange>& change, const Held& after) {
  WW_CHECK(held_.has_value() && change->state_before() == held_->state && change->state_after() == after.state);
  State next;
  next.layout = change->shared_layout_after();
  next.digests = change->digests_after();
  next.storage = state_.storage;
  next.tensors.resize(next.layout->size());
  for (std::size_t i = 0; i < next.tensors.size(); ++i) {
    // A new tensor may have the name, type and shape of one that went, whose bits Undo needs.
    const StagedTensor* tensor = change->Find(i);
    const bool is_new = tensor != nullptr && tensor->is_new();
    if (const auto origin = change->Origin(i); origin.has_value() && !is_new) {
      next.tensors[i] = state_.tensors[*origin];
    } else {
      next.storage.push_back(std::make_shared<UnfilledVector<std::uint8_t>>(next.layout->byte_size(i)));
      next.tensors[i] = {std::span(*next.storage.back())};
    }
  }
  WriteChange(*change, next.tensors, pool_);
  state_before_ = std::exchange(state_, std::move(next));
  held_before_ = std::exchange(held_, after);
  last_change_ = change;
  return Ok();
}

Status MemoryTarget::Undo() {
  if (last_change_ == nullptr) return Error(ErrorCode::kInvalidArgument, "there is no change to take back");
  TakeBackChange(*last_change_, state_.tensors, pool_);  // new tensors go with the state
  state_ = std::exchange(state_before_, {});
  held_ = std::exchange(held_before_, std::nullopt);
  last_change_ = nullptr;
  return Ok();
}

Result<std::unique_ptr<TargetLoad>> MemoryTarget::BeginLoad(std::span<const AnchorFile> files) {
  std::uint64_t bytes = 0;
  for (const AnchorFile& file : files) {
    if (file.size_bytes > kMaxStateBytes - bytes) {
      return Error(ErrorCode::kLimit,
                   fmt::format("the files of the anchor have more than {} bytes, the limit for one that is loaded into "
                               "memory",
                               kMaxStateBytes));
    }
    bytes += file.size_bytes;
  }
  try {
    return std::unique_ptr<TargetLoad>(std::make_unique<MemoryLoad>(*this, files));
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kIo, fmt::format("there is no memory for the {} bytes of the anchor's files", bytes));
  }
}

Status MemoryTarget::Verify() {
  if (!held_.has_value()) return Error(ErrorCode::kInvalidArgument, "there is no version yet that could be verified");
  std::vector<std::span<const std::uint8_t>> tensors;
  for (const auto& places : state_.tensors) tensors.emplace_back(places.front());
  if (DigestTensors(tensors, kernels_, pool_) == state_.digests &&
      StateDigest(*state_.layout, state_.digests) == held_->state) {
    return Ok();
  }
  Error differs =
      Corrupt(fmt::format("the memory no longer holds version {}: something else has written to it", held_->version));
  held_.reset();
  last_change_ = nullptr;
  held_before_.reset();
  state_before_ = {};
  return differs;
}

}  // namespace weightwire
