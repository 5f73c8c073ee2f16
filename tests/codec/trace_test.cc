// What real RL steps cost: bytes of the whole file per changed element. Bounds are what we reach with one per cent to
// spare, so that a change that makes files larger is seen.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <optional>

#include "base/file.h"
#include "codec/models.h"
#include "support/owned_tensor.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

// All tensors of a file whose names contain `part`.
std::vector<OwnedTensor> TensorsOf(const std::filesystem::path& path, std::string_view part = "") {
  const auto file = MappedFile::Open(path);
  if (!file.ok()) {
    ADD_FAILURE() << file.error().message();
    return {};
  }
  const auto view = SafetensorsView::Parse(file.value().bytes());
  EXPECT_TRUE(view.ok());
  std::vector<OwnedTensor> tensors;
  for (const TensorView& tensor : view.value().tensors()) {
    if (tensor.spec.name.find(part) == std::string::npos) continue;
    tensors.push_back({tensor.spec, Bytes(tensor.bytes.begin(), tensor.bytes.end())});
  }
  return tensors;
}

// Encodes, checks that it applies, and gives the bytes per changed element.
double BytesPerChanged(const Model& before, const Model& after) {
  ThreadPool pool(2);
  const EncodedDelta delta = MustEncode(WholeRequest(before, after), BestKernels(), pool);
  EXPECT_EQ(MustApply(delta.file, before, BestKernels(), pool), after);
  std::uint64_t changed = 0;
  for (const EntryReport& report : delta.reports) changed += report.changed;
  const double cost = static_cast<double>(delta.file.size()) / static_cast<double>(changed);
  std::printf("%llu bytes for %llu changed elements: %.4f each\n", static_cast<unsigned long long>(delta.file.size()),
              static_cast<unsigned long long>(changed), cost);
  return cost;
}

// --- slices in the repository ---

struct Slice {
  const char* name;
  double bound;
};
class SliceTest : public ::testing::TestWithParam<Slice> {};
INSTANTIATE_TEST_SUITE_P(Data, SliceTest,
                         ::testing::Values(Slice{"tiny-47", 1.257}, Slice{"596m-master-10", 0.979},
                                           Slice{"596m-pure-10", 0.687}, Slice{"596m-fp8-ue8m0-10", 1.788},
                                           Slice{"596m-fp8-f32-10", 2.326}),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(SliceTest, DeltaOfTheSliceStaysBelowItsSize) {
  const std::filesystem::path data = std::filesystem::path(WEIGHTWIRE_SOURCE_DIR) / "tests/data" / GetParam().name;
  const Model before = ModelOf(TensorsOf(data.string() + ".old.safetensors"));
  const Model after = ModelOf(TensorsOf(data.string() + ".new.safetensors"));
  EXPECT_LE(BytesPerChanged(before, after), GetParam().bound);
}

// --- the full traces, where they are ---

struct Trace {
  const char* name;
  const char* folder;
  const char* part;  // of the names of the tensors that count
  int step;
  double bound;
};
class TraceTest : public ::testing::TestWithParam<Trace> {};
INSTANTIATE_TEST_SUITE_P(Shared, TraceTest,
                         ::testing::Values(Trace{"Master", "596m-master", "", 10, 0.84},
                                           Trace{"Pure", "596m-pure", "", 10, 0.53},
                                           Trace{"Tiny", "tiny", "", 47, 0.95},
                                           Trace{"Fp8PowersOfTwo", "596m-fp8", "ue8m0", 10, 1.15}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(TraceTest, DeltasOfTheTracesReachTheirTargets) {
  const std::filesystem::path folder =
      std::filesystem::path(WEIGHTWIRE_SOURCE_DIR) / ".." / "shared" / "trace" / GetParam().folder;
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no full trace at " << folder << "; the slices were tested";
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the slices are enough under the sanitizers";
#endif
  Model after = ModelOf(TensorsOf(folder / "base.safetensors", GetParam().part));
  // NNN/<name>/idx and NNN/<name>/val of every step, by step and name.
  std::map<std::pair<int, std::string>, std::pair<Bytes, Bytes>> deltas;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("deltas_")) files.push_back(entry.path());
  }
  for (const auto& path : files) {
    for (OwnedTensor& tensor : TensorsOf(path)) {
      const std::string& key = tensor.spec.name;
      const std::size_t first = key.find('/');
      const std::size_t last = key.rfind('/');
      auto& [positions, values] = deltas[{std::stoi(key.substr(0, first)), key.substr(first + 1, last - first - 1)}];
      (key.substr(last) == "/idx" ? positions : values) = std::move(tensor.bytes);
    }
  }
  std::optional<Model> before;
  for (const auto& [key, delta] : deltas) {
    const auto& [step, name] = key;
    if (step > GetParam().step) break;
    if (step == GetParam().step && !before.has_value()) before = after;
    const auto index = after.layout->Find(name);
    if (!index.has_value()) continue;
    const auto width = static_cast<std::size_t>(UnitBytes(after.layout->tensors()[*index].dtype));
    for (std::size_t k = 0; k < delta.first.size() / 4; ++k) {
      const std::size_t at = LoadU32(delta.first.data() + 4 * k);
      std::memcpy(after.tensors[*index].data() + at * width, delta.second.data() + k * width, width);
    }
  }
  ASSERT_TRUE(before.has_value());
  EXPECT_LE(BytesPerChanged(*before, after), GetParam().bound);
}

}  // namespace
}  // namespace weightwire
