#include "follow/targets/memory_target.h"

#include <gtest/gtest.h>

#include "codec/models.h"
#include "support/owned_tensor.h"
#include "support/safetensors_file.h"

namespace weightwire {
namespace {

using testing::BestKernels;
using testing::Bytes;
using testing::DeltaBetween;
using testing::DigestsOf;
using testing::Model;
using testing::ModelOf;
using testing::OneThread;
using testing::Stage;

Held HeldAt(Version version, const Model& model) {
  Held held;
  held.version = version;
  held.layout = model.layout->hash();
  held.state = StateDigest(*model.layout, DigestsOf(model));
  return held;
}

void Load(MemoryTarget& target, const Model& model) {
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    views.push_back({model.layout->tensors()[i], model.tensors[i]});
  }
  const Bytes bytes = testing::WriteSafetensors(views, {}).value();
  AnchorFile file;
  file.name = "model.safetensors";
  file.size_bytes = bytes.size();
  auto load = target.BeginLoad({&file, 1});
  ASSERT_TRUE(load.ok());
  ASSERT_TRUE(load.value()->WriteAt(0, 0, bytes).ok());
  ASSERT_TRUE(load.value()->Prepare(HeldAt(0, model), *model.layout).ok());
  ASSERT_TRUE(load.value()->Commit(nullptr, HeldAt(0, model)).ok());
}

TEST(MemoryTarget, ASizeBeyondAllMemoryIsRefused) {
  MemoryTarget target(BestKernels(), OneThread());
  AnchorFile file;
  file.name = "model.safetensors";
  file.size_bytes = std::uint64_t{1} << 63;
  const auto load = target.BeginLoad({&file, 1});
  ASSERT_FALSE(load.ok());
  EXPECT_EQ(load.error().code(), ErrorCode::kLimit);
}

// The tensor that comes has the name, type and shape of the one that went, so it could have its place; but then nobody
// would have the old bits any more.
TEST(MemoryTarget, ATensorRemovedAndAddedAgainIsTakenBack) {
  const OwnedTensor stays{{"a", DType::kBF16, {32}}, Bytes(64, 1)};
  const TensorSpec returns{"x", DType::kBF16, {32}};
  const Model first = ModelOf({stays, {returns, Bytes(64, 2)}});
  const Model without = ModelOf({stays});
  const Model last = ModelOf({stays, {returns, Bytes(64, 3)}});
  MemoryTarget target(BestKernels(), OneThread());
  Load(target, first);
  const Bytes removes = DeltaBetween(first, without);
  const Bytes adds = DeltaBetween(without, last);
  const StateView view = target.View().value();
  const auto removed = Stage(removes, view).value();
  const auto added = Stage(adds, view.After(removed)).value();
  const std::vector<std::shared_ptr<const StagedChange>> both = {removed, added};
  const auto change = StagedChange::Fold(both, OneThread());
  ASSERT_TRUE(target.Apply(change, HeldAt(2, last)).ok());
  EXPECT_TRUE(target.Verify().ok());
  EXPECT_EQ(target.bytes(1)[0], 3);
  ASSERT_TRUE(target.Undo().ok());
  EXPECT_EQ(target.held()->version, 0u);
  EXPECT_TRUE(target.Verify().ok());
  EXPECT_EQ(target.bytes(1)[0], 2);
}

}  // namespace
}  // namespace weightwire
