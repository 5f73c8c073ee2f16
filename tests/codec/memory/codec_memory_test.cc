// Memory beyond the inputs, in both directions: at most 64 MiB and 8 bytes per changed element of a 16-bit type. Every
// allocation of this program is counted.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <optional>

#include "codec/models.h"

namespace {

std::atomic<std::int64_t> live_bytes = 0;
std::atomic<std::int64_t> peak_bytes = 0;

void* Counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const std::int64_t live = live_bytes += static_cast<std::int64_t>(malloc_usable_size(memory));
  std::int64_t peak = peak_bytes.load();
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
  }
  return memory;
}

void Uncounted(void* memory) {
  if (memory != nullptr) live_bytes -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) { return Counted(std::malloc(size)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return Counted(std::aligned_alloc(static_cast<std::size_t>(alignment),
                                    (size + static_cast<std::size_t>(alignment) - 1) /
                                        static_cast<std::size_t>(alignment) * static_cast<std::size_t>(alignment)));
}
void operator delete(void* memory) noexcept { Uncounted(memory); }
void operator delete(void* memory, std::size_t) noexcept { Uncounted(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Uncounted(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { Uncounted(memory); }

namespace weightwire {
namespace {

using namespace weightwire::testing;

constexpr std::size_t kUnits = std::size_t{32} << 20;

// The most that a call holds beyond what was there before it, results included.
template <typename Call>
std::int64_t PeakOf(Call&& call) {
  const std::int64_t before = live_bytes.load();
  peak_bytes = before;
  call();
  return peak_bytes.load() - before;
}

class CodecMemory : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Random random(1);
    base_ = new Model(ModelOf({{{"t", DType::kBF16, {kUnits}}, WeightLikeBf16(random, kUnits)}}));
  }
  static void TearDownTestSuite() {
    delete base_;
    base_ = nullptr;
  }

  // Encodes, with the old bits kept or not, and stages; both must stay within the limit.
  static void Check(const char* name, const Model& after, CodingRequest coding, std::size_t threads, bool keep_old) {
    ThreadPool pool(threads);
    EncodeRequest request = WholeRequest(*base_, after, coding);
    request.keep_old = keep_old;
    std::optional<EncodedDelta> delta;
    const std::int64_t encode = PeakOf([&] { delta = MustEncode(request, BestKernels(), pool); });
    const std::uint64_t changed = delta->reports[0].changed;
    const StateView view = ViewOf(*base_);
    std::shared_ptr<const StagedChange> change;
    const std::int64_t decode = PeakOf([&] { change = Stage(delta->file, view, BestKernels(), pool).value(); });
    EXPECT_EQ(Written(*base_, *change), after) << name;
    const auto limit = static_cast<std::int64_t>((std::uint64_t{64} << 20) + 8 * changed);
    std::printf("%-34s %zu thread%s %9llu changed: encode %6.1f MiB, decode %6.1f MiB, limit %6.1f MiB\n", name,
                threads, threads == 1 ? " " : "s", static_cast<unsigned long long>(changed),
                static_cast<double>(encode) / (1 << 20), static_cast<double>(decode) / (1 << 20),
                static_cast<double>(limit) / (1 << 20));
    EXPECT_LE(encode, limit) << name;
    EXPECT_LE(decode, limit) << name;
  }

  static Model Changed(std::uint64_t one_in) {
    Random random(2);
    Model after = *base_;
    StepBf16(random, after.tensors[0], one_in);
    return after;
  }

  static Model* base_;
};
Model* CodecMemory::base_ = nullptr;

TEST_F(CodecMemory, OfAUsualStep) {
  const Model after = Changed(70);
  for (const std::size_t threads : {1, 2, 4}) {
    Check("1.4 %, smallest", after, CodingRequest::kSmallest, threads, false);
    Check("1.4 %, gaps", after, CodingRequest::kGaps, threads, false);
  }
  Check("1.4 %, smallest, old bits kept", after, CodingRequest::kSmallest, 2, true);
}

TEST_F(CodecMemory, OfAFewChanges) {
  const Model after = Changed(50'000);
  Check("0.002 %, smallest", after, CodingRequest::kSmallest, 1, false);
  Check("0.002 %, smallest", after, CodingRequest::kSmallest, 4, false);
  Check("0.002 %, gaps", after, CodingRequest::kGaps, 4, false);
  Check("0.002 %, dense on demand", after, CodingRequest::kDense, 1, false);
}

TEST_F(CodecMemory, OfManyChanges) {
  const Model after = Changed(3);
  Check("33 %, smallest", after, CodingRequest::kSmallest, 2, false);
  Check("33 %, smallest, old bits kept", after, CodingRequest::kSmallest, 2, true);
  Check("33 %, dense", after, CodingRequest::kDense, 2, false);
  Check("33 %, whole", after, CodingRequest::kWhole, 2, false);
}

TEST_F(CodecMemory, OfColumnsThatRanksShare) {
  // Stretches of 256 units: neither rank's changes lie together.
  constexpr std::size_t kRanks = 4;
  constexpr std::size_t kColumns = 1024;
  const TensorSpec spec{"t", DType::kBF16, {kUnits / kColumns, kColumns}};
  const Model before = ModelOf({{spec, base_->tensors[0]}});
  const Model after = ModelOf({{spec, Changed(70).tensors[0]}});
  std::vector<DeltaFile> parts;
  std::vector<Bytes> files;
  std::uint64_t changed = 0;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const Box box{{0, rank * kColumns / kRanks}, {spec.shape[0], kColumns / kRanks}};
    const Bytes old_bytes = Gathered(spec, box, before.tensors[0]);
    const Bytes new_bytes = Gathered(spec, box, after.tensors[0]);
    EncodeRequest request;
    request.layout_before = before.layout.get();
    request.layout_after = after.layout.get();
    EncodeEntry entry;
    entry.box = box;
    entry.old_bytes = old_bytes;
    entry.new_bytes = new_bytes;
    entry.before = BoxDigest(spec, box, before.tensors[0]);
    request.entries = {entry};
    EncodedDelta delta = MustEncode(request);
    changed += delta.reports[0].changed;
    files.push_back(std::move(delta.file));
  }
  for (const Bytes& file : files) parts.push_back(DeltaFile::Parse(file).value());
  ThreadPool pool(2);
  std::shared_ptr<const StagedChange> change;
  const StateView view = ViewOf(before);
  const std::int64_t decode =
      PeakOf([&] { change = StageParts(parts, std::nullopt, view, BestKernels(), pool).value(); });
  EXPECT_EQ(Written(before, *change), after);
  // While the ranks' changes are put in order, those of one tensor are there twice.
  EXPECT_LE(decode, static_cast<std::int64_t>((std::uint64_t{64} << 20) + 2 * 8 * changed));
  const std::int64_t with_change = live_bytes.load();
  change.reset();
  EXPECT_LE(with_change - live_bytes.load(), static_cast<std::int64_t>((std::uint64_t{1} << 20) + 8 * changed));
}

TEST_F(CodecMemory, OfChangesThatTheSampleDoesNotSee) {
  // One stretch in which everything changes, and nothing elsewhere: tiles were chosen for hardly any changes.
  Model after = *base_;
  for (std::size_t unit = 10'000'000; unit < 14'000'000; ++unit) after.tensors[0][2 * unit] ^= 1;
  Check("a stretch of 12 %, smallest", after, CodingRequest::kSmallest, 1, false);
  Check("a stretch of 12 %, smallest", after, CodingRequest::kSmallest, 4, false);
}

}  // namespace
}  // namespace weightwire
