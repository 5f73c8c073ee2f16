#include "follow/targets/array_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "codec/digest/state.h"

namespace weightwire {
namespace {

Error Differs(std::string what) { return {ErrorCode::kMismatch, "the arrays do not fit the run: " + std::move(what)}; }

}  // namespace

// An anchor on its way into memory beside the arrays.
class ArrayLoad final : public TargetLoad {
 public:
  ArrayLoad(ArrayTarget& target, std::unique_ptr<MemoryTarget> memory, std::unique_ptr<TargetLoad> load)
      : target_(target), memory_(std::move(memory)), load_(std::move(load)) {}

  Status WriteAt(std::size_t file, std::uint64_t offset, std::span<const std::uint8_t> bytes) override {
    return load_->WriteAt(file, offset, bytes);
  }

  Status Prepare(const Held& held, const Layout& layout) override {
    if (memory_->held().has_value()) return Ok();
    WW_TRY(const ArrayTarget::Places fits, target_.Match(layout));
    WW_RETURN_IF_ERROR(load_->Prepare(held, layout));
    return load_->Commit(nullptr, held);
  }

  Result<StateView> View() override { return memory_->View(); }

  // Applies the change before anything is copied, so that the arrays change once.
  Status Commit(const std::shared_ptr<const StagedChange>& change, const Held& after) override {
    if (change != nullptr && memory_->held() != after) {
      WW_TRY(const ArrayTarget::Places fits, target_.Match(change->layout_after()));
      WW_RETURN_IF_ERROR(memory_->Apply(change, after));
    }
    return target_.CopyFrom(*memory_, after);
  }

 private:
  ArrayTarget& target_;
  std::unique_ptr<MemoryTarget> memory_;
  std::unique_ptr<TargetLoad> load_;
};

Result<std::unique_ptr<ArrayTarget>> ArrayTarget::Make(std::vector<TargetArray> arrays, const Kernels& kernels,
                                                       ThreadPool& pool, const ArrayTargetOptions& options) {
  std::unique_ptr<ArrayTarget> target(new ArrayTarget(kernels, pool, options));
  for (TargetArray& array : arrays) {
    WW_TRY(const std::uint64_t size, CheckedByteSize(array.spec));
    if (size != array.bytes.size()) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("the array '{}' is not of the size its shape says", array.spec.name));
    }
    std::string name = array.spec.name;
    if (!target->arrays_.emplace(name, std::move(array)).second) {
      return Error(ErrorCode::kInvalidArgument, fmt::format("there are two arrays named '{}'", name));
    }
  }
  return target;
}

Result<ArrayTarget::Places> ArrayTarget::Match(const Layout& layout) const {
  Places places(layout.size());
  for (const auto& [name, array] : arrays_) {
    const auto index = layout.Resolve(name);
    if (!index.has_value()) return Differs(fmt::format("it has no tensor '{}'", name));
    const TensorSpec& spec = layout.tensors()[*index];
    if (spec.dtype != array.spec.dtype || spec.shape != array.spec.shape) {
      return Differs(fmt::format("'{}' is {} there and {} here", name, Describe(spec), Describe(array.spec)));
    }
    places[*index].push_back(array.bytes);
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i].empty()) return Differs(fmt::format("there is no array '{}'", layout.tensors()[i].name));
  }
  return places;
}

Result<std::vector<Digest>> ArrayTarget::DigestsAs(const Layout& layout, const Places& places) const {
  std::vector<std::span<const std::uint8_t>> tensors;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto& first = places[i].front();
    for (const auto& other : places[i]) {
      if (other.data() == first.data() || std::ranges::equal(first, other)) continue;
      return Differs(fmt::format("two arrays of '{}' have different bits", layout.tensors()[i].name));
    }
    tensors.emplace_back(first);
  }
  return DigestTensors(tensors, kernels_, pool_);
}

Result<Sha256Digest> ArrayTarget::DigestAs(const Layout& layout) {
  WW_TRY(const Places places, Match(layout));
  WW_TRY(const std::vector<Digest> digests, DigestsAs(layout, places));
  return StateDigest(layout, digests);
}

Status ArrayTarget::Adopt(const Held& held, const Layout& layout) {
  WW_CHECK(!state_.held.has_value());
  WW_TRY(Places places, Match(layout));
  WW_TRY(std::vector<Digest> digests, DigestsAs(layout, places));
  if (StateDigest(layout, digests) != held.state) {
    return Differs(fmt::format("they do not hold version {}", held.version));
  }
  state_ = {held, std::make_shared<const Layout>(layout), std::move(digests)};
  places_ = std::move(places);
  return Ok();
}

Result<StateView> ArrayTarget::View() {
  WW_CHECK(state_.held.has_value());
  std::vector<std::span<const std::uint8_t>> tensors;
  for (const auto& places : places_) tensors.emplace_back(places.front());
  return StateView(state_.layout, std::move(tensors), state_.digests);
}

Status ArrayTarget::CopyFrom(const MemoryTarget& loaded, const Held& held) {
  const Layout& layout = loaded.layout();
  WW_TRY(Places places, Match(layout));
  bits_before_.clear();
  last_change_ = nullptr;
  const bool first = !state_.held.has_value();
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto& to = places[i].front();
    if (!first) bits_before_.emplace_back(to.begin(), to.end());
    for (const auto& place : places[i]) std::ranges::copy(loaded.bytes(i), place.begin());
  }
  before_ = std::exchange(state_, {held, std::make_shared<const Layout>(layout), loaded.digests()});
  places_ = std::move(places);
  return Ok();
}

Status ArrayTarget::Apply(const std::shared_ptr<const StagedChange>& change, const Held& after) {
  WW_CHECK(state_.held.has_value());
  WW_CHECK(change->state_before() == state_.held->state && change->state_after() == after.state);
  // An engine may be waiting, so the arrays are matched again only if the layout changes.
  if (change->layout_after() != *state_.layout) {
    WW_TRY(places_, Match(change->layout_after()));
  }
  if (const auto other = FindOtherBits(*change, places_, pool_); other.has_value()) {
    return Lose(fmt::format("'{}'", change->layout_after().tensors()[*other].name));
  }
  WriteChange(*change, places_, pool_);
  before_ = std::exchange(state_, {after, change->shared_layout_after(), change->digests_after()});
  last_change_ = change;
  bits_before_.clear();
  return Ok();
}

Status ArrayTarget::Undo() {
  if (!before_.held.has_value()) return Error(ErrorCode::kInvalidArgument, "there is no change to take back");
  WW_TRY(Places places, Match(*before_.layout));
  if (last_change_ != nullptr) {
    for (const StagedTensor& tensor : last_change_->tensors()) {
      if (tensor.is_new()) {
        return Error(ErrorCode::kInvalidArgument, "the last change cannot be taken back: it brought a new tensor");
      }
    }
    if (const auto other = FindOtherBits(*last_change_, places_, pool_, /*taken_back=*/true); other.has_value()) {
      return Lose(fmt::format("'{}'", last_change_->layout_after().tensors()[*other].name));
    }
    TakeBackChange(*last_change_, places_, pool_);
  } else {
    // The load had the same arrays, in the order of its layout.
    for (std::size_t i = 0; i < places_.size(); ++i) {
      for (const auto& place : places_[i]) std::ranges::copy(bits_before_[i], place.begin());
    }
  }
  state_ = std::exchange(before_, {});
  places_ = std::move(places);
  last_change_ = nullptr;
  bits_before_.clear();
  return Ok();
}

Result<std::unique_ptr<TargetLoad>> ArrayTarget::BeginLoad(std::span<const AnchorFile> files) {
  auto memory = std::make_unique<MemoryTarget>(kernels_, pool_);
  WW_TRY(std::unique_ptr<TargetLoad> load, memory->BeginLoad(files));
  return std::unique_ptr<TargetLoad>(std::make_unique<ArrayLoad>(*this, std::move(memory), std::move(load)));
}

Status ArrayTarget::Verify() {
  if (!state_.held.has_value()) {
    return Error(ErrorCode::kInvalidArgument, "the arrays hold no version yet that could be verified");
  }
  const auto digests = DigestsAs(*state_.layout, places_);
  if (digests.ok() && digests.value() == state_.digests) return Ok();
  return Lose("them");
}

Error ArrayTarget::Lose(const std::string& where) {
  Error differs(ErrorCode::kCorrupt, fmt::format("the arrays no longer hold version {}: something else has written to "
                                                 "{}; the next update loads everything",
                                                 state_.held->version, where));
  state_ = {};
  before_ = {};
  last_change_ = nullptr;
  bits_before_.clear();
  return differs;
}

}  // namespace weightwire
