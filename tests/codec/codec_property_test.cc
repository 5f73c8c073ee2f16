// Whatever the states are, a delta leads from one to the other, bit for bit: random layouts, types, densities,
// patterns, boxes, modes, threads and instruction sets.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <atomic>
#include <deque>

#include "codec/format/units.h"
#include "codec/models.h"
#include "support/owned_tensor.h"
#include "support/random_tensors.h"
#include "support/safetensors_file.h"

namespace weightwire {
namespace {

using namespace weightwire::testing;

constexpr CodingRequest kRequests[] = {CodingRequest::kSmallest, CodingRequest::kConditioned, CodingRequest::kUniform,
                                       CodingRequest::kGaps,     CodingRequest::kDense,       CodingRequest::kWhole};

enum class Pattern : std::uint8_t { kNoise, kWeights, kSpecials, kAlternating, kEqual, kLast };

// Bits that floats treat specially, for a unit of any width: zeros, infinities, NaNs, subnormals, largest numbers.
std::uint64_t SpecialUnit(Random& random, int width) {
  const std::uint64_t ones = width == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * width)) - 1;
  const std::uint64_t top = (ones >> 1) + 1;
  const std::uint64_t infinity = width == 1   ? 0x7c
                                 : width == 2 ? (random() & 1 ? 0x7f80 : 0x7c00)
                                 : width == 4 ? 0x7f800000
                                              : 0x7ff0000000000000;
  const std::uint64_t choices[] = {
      0, 1, 2, ones, top - 1, infinity, infinity + 1, infinity - 1, random() & infinity, infinity | random()};
  return (choices[Below(random, std::size(choices))] | (random() & 1 ? top : 0)) & ones;
}

void FillUnits(Random& random, Pattern pattern, int width, std::span<std::uint8_t> bytes) {
  const auto step = static_cast<std::size_t>(width);
  const std::uint64_t first = SpecialUnit(random, width);
  const std::uint64_t second = random();
  for (std::size_t u = 0; u * step < bytes.size(); ++u) {
    std::uint64_t unit = random();
    switch (pattern) {
      case Pattern::kWeights:  // a float near one, of any width
        unit = (width == 1   ? 0x38
                : width == 2 ? 0x3f80
                : width == 4 ? 0x3f800000
                             : 0x3ff0000000000000) -
               Below(random, 1 + (std::uint64_t{1} << std::min(8 * width - 2, static_cast<int>(Below(random, 60)))));
        unit |= (random() & 1) << (8 * width - 1);
        break;
      case Pattern::kSpecials:
        unit = SpecialUnit(random, width);
        break;
      case Pattern::kAlternating:
        unit = u % 2 == 0 ? first : second;
        break;
      case Pattern::kEqual:
        unit = first;
        break;
      default:
        break;
    }
    std::memcpy(bytes.data() + u * step, &unit, step);
  }
}

// New units for about a share of the old ones: neighbours, special bits, or anything.
void ChangeUnits(Random& random, int width, std::uint64_t per_thousand, std::span<std::uint8_t> bytes) {
  const auto step = static_cast<std::size_t>(width);
  const std::uint64_t kind = Below(random, 4);
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    if (Below(random, 1000) >= per_thousand) continue;
    std::uint64_t unit = 0;
    std::memcpy(&unit, bytes.data() + at, step);
    switch (kind == 3 ? Below(random, 3) : kind) {
      case 0:
        unit += random() & 1 ? 1 : ~std::uint64_t{0};
        break;
      case 1:
        unit = SpecialUnit(random, width);
        break;
      default:
        unit = random();
    }
    std::memcpy(bytes.data() + at, &unit, step);
  }
}

TensorSpec AnySpec(Random& random, const std::string& name, std::uint64_t most_units) {
  TensorSpec spec{name, testing::AllDTypes()[Below(random, testing::AllDTypes().size())], {}};
  switch (Below(random, 8)) {
    case 0:  // a scalar
      break;
    case 1:  // empty
      spec.shape = {Below(random, 3), 0};
      break;
    case 2:
      spec.shape = {1 + Below(random, 3), 1 + Below(random, 5), 1 + Below(random, 40)};
      break;
    default:
      spec.shape = {1 + Below(random, most_units)};
  }
  if (IsPacked(spec.dtype)) {
    if (spec.shape.empty()) spec.shape = {1};
    spec.shape.back() *= 4;
  }
  return spec;
}

OwnedTensor AnyTensor(Random& random, TensorSpec spec) {
  Bytes bytes(CheckedByteSize(spec).value());
  FillUnits(random, static_cast<Pattern>(Below(random, static_cast<std::uint64_t>(Pattern::kLast))),
            UnitBytes(spec.dtype), bytes);
  return {std::move(spec), std::move(bytes)};
}

std::uint64_t AnyDensity(Random& random) {
  constexpr std::uint64_t kPerThousand[] = {0, 1, 5, 20, 100, 300, 600, 900, 1000};
  return kPerThousand[Below(random, std::size(kPerThousand))];
}

struct Pair {
  Model before;
  Model after;
};

// Two states; with `layout_changes`, of different layouts.
Pair AnyPair(Random& random, bool layout_changes, std::uint64_t most_units = 3000) {
  std::vector<OwnedTensor> before;
  std::vector<OwnedTensor> after;
  const std::uint64_t count = Below(random, 7);
  for (std::uint64_t t = 0; t < count; ++t) {
    const std::string name = "t" + std::to_string(t);
    OwnedTensor old_tensor = AnyTensor(random, AnySpec(random, name, most_units));
    OwnedTensor new_tensor = old_tensor;
    ChangeUnits(random, UnitBytes(old_tensor.spec.dtype), AnyDensity(random), new_tensor.bytes);
    switch (layout_changes ? Below(random, 6) : 5) {
      case 0:  // removed
        before.push_back(old_tensor);
        continue;
      case 1:  // added
        after.push_back(new_tensor);
        continue;
      case 2:  // another type, another shape, or both
        new_tensor = AnyTensor(random, AnySpec(random, name, most_units));
        break;
      default:
        break;
    }
    before.push_back(old_tensor);
    after.push_back(new_tensor);
  }
  return {ModelOf(std::move(before)), ModelOf(std::move(after))};
}

Random AnySource() { return Random(*rc::gen::arbitrary<std::uint64_t>()); }

// --- whole deltas ---

RC_GTEST_PROP(Delta, LeadsFromAnyStateToAnyOther, ()) {
  Random random = AnySource();
  const Pair pair = AnyPair(random, true);
  for (const CodingRequest coding : kRequests) {
    const EncodedDelta delta = MustEncode(WholeRequest(pair.before, pair.after, coding));
    const auto change = Stage(delta.file, ViewOf(pair.before));
    RC_ASSERT(change.ok());
    RC_ASSERT(Written(pair.before, *change.value()) == pair.after);
    RC_ASSERT(delta.digests_after == DigestsOf(pair.after));
    RC_ASSERT(change.value()->digests_after() == delta.digests_after);
    RC_ASSERT(change.value()->state_before() == StateDigest(*pair.before.layout, DigestsOf(pair.before)));
    RC_ASSERT(change.value()->state_after() == StateDigest(*pair.after.layout, DigestsOf(pair.after)));
  }
}

RC_GTEST_PROP(Delta, OfLargeTensorsWithOneSample, ()) {
  // Above 16384 units tables are made from a part, and the rest may hold anything.
  Random random = AnySource();
  const TensorSpec spec{
      "t", testing::AllDTypes()[Below(random, testing::AllDTypes().size())], {4 * (5000 + Below(random, 12'000))}};
  OwnedTensor old_tensor = AnyTensor(random, spec);
  OwnedTensor new_tensor = old_tensor;
  const auto width = static_cast<std::size_t>(UnitBytes(spec.dtype));
  // A different density in each stretch, most of them with none.
  for (std::size_t at = 0; at < new_tensor.bytes.size(); at += 1000 * width) {
    const std::size_t size = std::min(1000 * width, new_tensor.bytes.size() - at);
    if (Below(random, 3) == 0) {
      ChangeUnits(random, static_cast<int>(width), AnyDensity(random), std::span(new_tensor.bytes).subspan(at, size));
    }
  }
  const Model before = ModelOf({old_tensor});
  const Model after = ModelOf({new_tensor});
  for (const CodingRequest coding : kRequests) {
    if (Rounds(100) < 100 && Below(random, 5) != 0) continue;  // slow under the sanitizers
    RC_ASSERT(MustApply(DeltaBetween(before, after, coding), before) == after);
  }
}

RC_GTEST_PROP(Delta, HasTheSameBytesForEveryThreadCountAndInstructionSet, ()) {
  Random random = AnySource();
  const Pair pair = AnyPair(random, true, static_cast<std::uint64_t>(Rounds(30'000)));
  const CodingRequest coding = kRequests[Below(random, std::size(kRequests))];
  const EncodeRequest request = WholeRequest(pair.before, pair.after, coding);
  const Bytes truth = MustEncode(request, *ScalarKernels()).file;
  static ThreadPool two(2);
  static ThreadPool five(5);
  for (const Kernels* kernels : AllKernels()) {
    RC_ASSERT(MustEncode(request, *kernels).file == truth);
    RC_ASSERT(MustApply(truth, pair.before, *kernels) == pair.after);
  }
  for (ThreadPool* pool : {&two, &five}) {
    RC_ASSERT(MustEncode(request, BestKernels(), *pool).file == truth);
    RC_ASSERT(MustApply(truth, pair.before, BestKernels(), *pool) == pair.after);
  }
}

RC_GTEST_PROP(Delta, ReportsWhatItDid, ()) {
  Random random = AnySource();
  const Pair pair = AnyPair(random, false);
  const EncodedDelta delta = MustEncode(WholeRequest(pair.before, pair.after));
  const std::vector<Digest> digests = DigestsOf(pair.after);
  RC_ASSERT(delta.reports.size() == pair.after.layout->size());
  for (std::size_t i = 0; i < delta.reports.size(); ++i) {
    const EntryReport& report = delta.reports[i];
    std::uint64_t changed = 0;
    const auto width = static_cast<std::size_t>(UnitBytes(pair.after.layout->tensors()[i].dtype));
    for (std::size_t at = 0; at < pair.after.tensors[i].size(); at += width) {
      changed += std::memcmp(&pair.after.tensors[i][at], &pair.before.tensors[i][at], width) != 0;
    }
    RC_ASSERT(report.units == pair.after.layout->unit_count(i));
    RC_ASSERT(report.changed == changed);
    RC_ASSERT(report.single_steps <= changed);
    RC_ASSERT(report.after == digests[i]);
    RC_ASSERT((report.mode == std::string_view("unchanged")) == (changed == 0));
  }
}

RC_GTEST_PROP(Delta, UpdatesTheBaseCopyAndTakesItBack, ()) {
  Random random = AnySource();
  const Pair pair = AnyPair(random, false, 20'000);
  const CodingRequest coding = kRequests[Below(random, std::size(kRequests))];
  const Bytes truth = DeltaBetween(pair.before, pair.after, coding);
  Model copy = pair.before;
  EncodeRequest request = WholeRequest(copy, pair.after, coding);
  for (std::size_t i = 0; i < request.entries.size(); ++i) request.entries[i].update = copy.tensors[i].data();
  request.keep_old = true;
  static ThreadPool pool(3);
  static EncodeScratch scratch;  // what one case leaves there must not reach the next
  const auto delta = EncodeDelta(request, BestKernels(), pool, scratch);
  RC_ASSERT(delta.ok());
  RC_ASSERT(delta.value().file == truth);
  RC_ASSERT(copy == pair.after);
  RestoreReplaced(delta.value().replaced, request.entries, *pair.after.layout);
  RC_ASSERT(copy == pair.before);
}

// --- readers ---

// Gives a tensor's units as one that makes them would, and fails when it has been asked too often.
class BytesReader final : public UnitReader {
 public:
  BytesReader(std::span<const std::uint8_t> bytes, int unit_bytes, bool small_pieces, std::atomic<int>& calls_left)
      : bytes_(bytes), unit_bytes_(unit_bytes), small_pieces_(small_pieces), calls_left_(calls_left) {}

  Status Read(std::span<const std::uint64_t> firsts, std::uint32_t count, std::uint8_t* out) const override {
    if (--calls_left_ < 0) return Error(ErrorCode::kIo, "the weights are gone");
    const std::size_t size = count * static_cast<std::size_t>(unit_bytes_);
    for (const std::uint64_t first : firsts) {
      const auto stretch = bytes_.subspan(first * static_cast<std::size_t>(unit_bytes_), size);
      out = std::copy(stretch.begin(), stretch.end(), out);
    }
    return Ok();
  }
  [[nodiscard]] bool reads_small_batches() const override { return small_pieces_; }

 private:
  std::span<const std::uint8_t> bytes_;
  int unit_bytes_;
  bool small_pieces_;
  std::atomic<int>& calls_left_;
};

// Some of the new bits come from readers.
std::deque<BytesReader> ReadersFor(Random& random, const Pair& pair, EncodeRequest& request,
                                   std::atomic<int>& calls_left) {
  std::deque<BytesReader> readers;
  for (EncodeEntry& entry : request.entries) {
    if (Below(random, 4) == 0) continue;
    const int unit_bytes = UnitBytes(pair.after.layout->tensors()[entry.tensor].dtype);
    entry.reader = &readers.emplace_back(entry.new_bytes, unit_bytes, Below(random, 2) == 0, calls_left);
    entry.new_bytes = {};
  }
  return readers;
}

RC_GTEST_PROP(Delta, IsTheSameWhenNewBitsComeFromReaders, ()) {
  Random random = AnySource();
  const Pair pair = AnyPair(random, true);
  const CodingRequest coding = kRequests[Below(random, std::size(kRequests))];
  EncodeRequest request = WholeRequest(pair.before, pair.after, coding);
  std::atomic<int> calls_left = 1 << 30;
  const std::deque<BytesReader> readers = ReadersFor(random, pair, request, calls_left);
  static ThreadPool pool(3);
  RC_ASSERT(MustEncode(request, BestKernels(), pool).file == DeltaBetween(pair.before, pair.after, coding));
}

RC_GTEST_PROP(Delta, LeavesTheBaseCopyAsItWasWhenAReaderFails, ()) {
  Random random = AnySource();
  const Pair pair = AnyPair(random, false, 20'000);
  const CodingRequest coding = kRequests[Below(random, std::size(kRequests))];
  Model copy = pair.before;
  EncodeRequest request = WholeRequest(copy, pair.after, coding);
  for (std::size_t i = 0; i < request.entries.size(); ++i) request.entries[i].update = copy.tensors[i].data();
  request.keep_old = true;
  std::atomic<int> calls_left = static_cast<int>(Below(random, 12));
  const std::deque<BytesReader> readers = ReadersFor(random, pair, request, calls_left);
  static ThreadPool pool(3);
  static EncodeScratch scratch;  // of all cases, those that failed too
  const auto delta = EncodeDelta(request, BestKernels(), pool, scratch);
  RC_CLASSIFY(!delta.ok(), "a reader failed");
  if (delta.ok()) RC_ASSERT(delta.value().file == DeltaBetween(pair.before, pair.after, coding));
  RC_ASSERT(copy == (delta.ok() ? pair.after : pair.before));
  if (!delta.ok()) RC_ASSERT(delta.error().message() == "the weights are gone");
}

// Each reading of a unit gives its bits in one of three states, of which the base's is one: an owner who does not wait.
class MovingReader final : public UnitReader {
 public:
  MovingReader(std::vector<std::span<const std::uint8_t>> states, int unit_bytes, bool small_pieces)
      : states_(std::move(states)), width_(static_cast<std::size_t>(unit_bytes)), small_pieces_(small_pieces) {}

  Status Read(std::span<const std::uint64_t> firsts, std::uint32_t count, std::uint8_t* out) const override {
    for (const std::uint64_t first : firsts) {
      for (std::uint64_t unit = first; unit < first + count; ++unit) {
        const std::uint64_t turn = readings_.fetch_add(1) * 0x9e3779b97f4a7c15;
        const auto& state = states_[(turn >> 32) % states_.size()];
        out = std::copy_n(state.begin() + static_cast<std::ptrdiff_t>(unit * width_), width_, out);
      }
    }
    return Ok();
  }
  [[nodiscard]] bool reads_small_batches() const override { return small_pieces_; }

 private:
  std::vector<std::span<const std::uint8_t>> states_;
  std::size_t width_;
  bool small_pieces_;
  mutable std::atomic<std::uint64_t> readings_ = 0;
};

RC_GTEST_PROP(Delta, OfAStateThatChangesDuringTheReadIsOneState, ()) {
  Random random = AnySource();
  const Pair pair = AnyPair(random, false, 20'000);
  const CodingRequest coding = kRequests[Below(random, std::size(kRequests))];
  Model copy = pair.before;
  Model later = pair.after;
  for (Bytes& bytes : later.tensors) {
    for (std::uint8_t& byte : bytes) byte ^= Below(random, 30) == 0 ? 1 : 0;
  }
  EncodeRequest request = WholeRequest(copy, pair.after, coding);
  request.keep_old = true;
  request.may_move = true;
  std::deque<MovingReader> readers;
  for (std::size_t i = 0; i < request.entries.size(); ++i) {
    EncodeEntry& entry = request.entries[i];
    entry.update = copy.tensors[i].data();
    const int unit_bytes = UnitBytes(pair.after.layout->tensors()[entry.tensor].dtype);
    std::vector<std::span<const std::uint8_t>> states = {pair.before.tensors[i], pair.after.tensors[i],
                                                         later.tensors[i]};
    entry.reader = &readers.emplace_back(std::move(states), unit_bytes, Below(random, 2) == 0);
    entry.new_bytes = {};
  }
  static ThreadPool pool(3);
  const EncodedDelta delta = MustEncode(request, BestKernels(), pool);
  RC_ASSERT(delta.digests_after == DigestsOf(copy));
  RC_ASSERT(MustApply(delta.file, pair.before) == copy);
  RestoreReplaced(delta.replaced, request.entries, *pair.after.layout);
  RC_ASSERT(copy == pair.before);
}

// --- parts ---

// Cuts a box in two, again and again, at positions that packed types allow.
std::vector<Box> AnyPartition(Random& random, const TensorSpec& spec) {
  std::vector<Box> boxes = {{std::vector<std::uint64_t>(spec.shape.size(), 0), spec.shape}};
  for (std::uint64_t cuts = Below(random, 6); cuts > 0; --cuts) {
    const std::size_t which = Below(random, boxes.size());
    const std::size_t d = Below(random, spec.shape.size());
    const std::uint64_t grain = IsPacked(spec.dtype) && d + 1 == spec.shape.size() ? 4 : 1;
    const std::uint64_t steps = boxes[which].extent[d] / grain;
    if (steps < 2) continue;
    const std::uint64_t at = (1 + Below(random, steps - 1)) * grain;
    Box rest = boxes[which];
    rest.start[d] += at;
    rest.extent[d] -= at;
    boxes[which].extent[d] = at;
    boxes.push_back(rest);
  }
  return boxes;
}

RC_GTEST_PROP(Parts, OfBoxesMakeUpTheDeltaInAnyOrder, ()) {
  Random random = AnySource();
  std::vector<OwnedTensor> old_tensors;
  std::vector<OwnedTensor> new_tensors;
  for (int t = 0; t < 3; ++t) {
    TensorSpec spec{"t" + std::to_string(t), testing::AllDTypes()[Below(random, testing::AllDTypes().size())], {}};
    spec.shape = {1 + Below(random, 9), 1 + Below(random, 30), 4 * (1 + Below(random, 10))};
    old_tensors.push_back(AnyTensor(random, spec));
    new_tensors.push_back(old_tensors.back());
    ChangeUnits(random, UnitBytes(spec.dtype), AnyDensity(random), new_tensors.back().bytes);
  }
  const Model before = ModelOf(old_tensors);
  const Model after = ModelOf(new_tensors);
  // Boxes are dealt out to ranks; what lies in one file may be all of a tensor, or a part of it.
  const std::size_t ranks = 1 + Below(random, 3);
  struct BoxBits {
    Bytes before;
    Bytes after;
  };
  std::vector<std::vector<BoxBits>> boxes_of(ranks);  // keeps what requests point to
  std::vector<EncodeRequest> requests(ranks);
  for (EncodeRequest& request : requests) {
    request.layout_before = before.layout.get();
    request.layout_after = after.layout.get();
    request.coding = kRequests[Below(random, std::size(kRequests))];
  }
  for (std::size_t r = 0; r < ranks; ++r) boxes_of[r].reserve(64);
  for (std::size_t t = 0; t < before.layout->size(); ++t) {
    const TensorSpec& spec = before.layout->tensors()[t];
    Digest sum;
    for (const Box& box : AnyPartition(random, spec)) {
      const std::size_t r = Below(random, ranks);
      boxes_of[r].push_back({Gathered(spec, box, before.tensors[t]), Gathered(spec, box, after.tensors[t])});
      EncodeEntry entry;
      entry.tensor = t;
      entry.box = box;
      entry.old_bytes = boxes_of[r].back().before;
      entry.new_bytes = boxes_of[r].back().after;
      entry.before = BoxDigest(spec, box, before.tensors[t]);
      sum += entry.before;
      requests[r].entries.push_back(entry);
    }
    RC_ASSERT(sum == DigestsOf(before)[t]);
  }
  std::vector<Bytes> files;
  for (const EncodeRequest& request : requests) files.push_back(MustEncode(request).file);
  std::shuffle(files.begin(), files.end(), random);

  // All at once, as followers do it.
  std::vector<DeltaFile> parts;
  for (const Bytes& file : files) parts.push_back(DeltaFile::Parse(file).value());
  const auto together = StageParts(parts, std::nullopt, ViewOf(before), BestKernels(), OneThread());
  RC_ASSERT(together.ok());
  RC_ASSERT(Written(before, *together.value()) == after);
  for (const StagedTensor& tensor : together.value()->tensors()) {
    std::uint64_t next = 0;  // the first unit that may come
    for (const StagedChunk& chunk : tensor.chunks()) {
      RC_ASSERT(!chunk.offsets.empty());
      for (const std::uint32_t offset : chunk.offsets) {
        RC_ASSERT(chunk.first_unit + offset >= next);
        next = chunk.first_unit + offset + 1;
      }
    }
  }

  // One after another, written each time.
  Model state = before;
  for (const Bytes& file : files) state = MustApply(file, state);
  RC_ASSERT(state == after);

  // Stacked without touching the base, then folded into one.
  StateView view = ViewOf(before);
  std::vector<std::shared_ptr<const StagedChange>> changes;
  for (const Bytes& file : files) {
    const auto change = Stage(file, view);
    RC_ASSERT(change.ok());
    changes.push_back(change.value());
    view = view.After(change.value());
  }
  RC_ASSERT(view.digests() == DigestsOf(after));
  RC_ASSERT(Written(before, *StagedChange::Fold(changes, OneThread())) == after);
}

// --- staged changes ---

RC_GTEST_PROP(StagedChange, IsUndone, ()) {
  Random random = AnySource();
  const Pair pair = AnyPair(random, false);
  const auto change = Stage(DeltaBetween(pair.before, pair.after, kRequests[Below(random, 5)]), ViewOf(pair.before));
  RC_ASSERT(change.ok());
  Model state = Written(pair.before, *change.value());
  RC_ASSERT(state == pair.after);
  for (const StagedTensor& staged : change.value()->tensors()) staged.Undo(state.tensors[staged.tensor()]);
  RC_ASSERT(state == pair.before);
}

RC_GTEST_PROP(StagedChange, HoldsExactlyWhatDiffers, ()) {
  Random random = AnySource();
  const Pair pair = AnyPair(random, false);
  const auto change = Stage(DeltaBetween(pair.before, pair.after, kRequests[Below(random, 5)]), ViewOf(pair.before));
  RC_ASSERT(change.ok());
  for (std::size_t i = 0; i < pair.after.layout->size(); ++i) {
    const auto width = static_cast<std::size_t>(UnitBytes(pair.after.layout->tensors()[i].dtype));
    const std::uint64_t units = pair.after.layout->unit_count(i);
    const std::uint64_t begin = Below(random, units + 1);
    const std::uint64_t end = begin + Below(random, units - begin + 1);
    std::vector<std::uint64_t> truth;
    for (std::uint64_t u = begin; u < end; ++u) {
      if (std::memcmp(&pair.after.tensors[i][u * width], &pair.before.tensors[i][u * width], width) != 0) {
        truth.push_back(u);
      }
    }
    std::vector<std::uint64_t> found;
    const StagedTensor* staged = change.value()->Find(i);
    if (staged != nullptr) {
      staged->ForEachChanged(begin, end,
                             [&](std::uint64_t u, const std::uint8_t* new_unit, const std::uint8_t* old_unit) {
                               found.push_back(u);
                               RC_ASSERT(std::memcmp(new_unit, &pair.after.tensors[i][u * width], width) == 0);
                               RC_ASSERT(std::memcmp(old_unit, &pair.before.tensors[i][u * width], width) == 0);
                             });
    }
    RC_ASSERT(found == truth);
  }
}

// A further state after `model`: some tensors changed, some added, removed or replaced; some changes are taken back.
Model NextModel(Random& random, const Model& model, const Model& earlier, int step) {
  std::vector<OwnedTensor> tensors;
  for (std::size_t i = 0; i < model.layout->size(); ++i) {
    OwnedTensor tensor{model.layout->tensors()[i], model.tensors[i]};
    switch (Below(random, 8)) {
      case 0:
        continue;
      case 1:
        tensor = AnyTensor(random, AnySpec(random, tensor.spec.name, 500));
        break;
      case 2:
        if (const auto origin = OriginIn(earlier, tensor.spec)) tensor.bytes = earlier.tensors[*origin];
        break;
      default:
        ChangeUnits(random, UnitBytes(tensor.spec.dtype), AnyDensity(random), tensor.bytes);
    }
    tensors.push_back(std::move(tensor));
  }
  // A name that was removed may come back.
  const std::string name = "t" + std::to_string(Below(random, 2) == 0 ? step + 20 : Below(random, 7));
  if (!std::any_of(tensors.begin(), tensors.end(), [&](const OwnedTensor& t) { return t.spec.name == name; })) {
    tensors.push_back(AnyTensor(random, AnySpec(random, name, 500)));
  }
  return ModelOf(std::move(tensors));
}

RC_GTEST_PROP(StagedChange, StacksAndFoldsOverLayoutChanges, ()) {
  Random random = AnySource();
  std::vector<Model> states = {AnyPair(random, false, 1000).before};
  const int steps = 1 + static_cast<int>(Below(random, 5));
  for (int s = 0; s < steps; ++s) {
    states.push_back(NextModel(random, states.back(), states[Below(random, states.size())], s));
  }
  StateView view = ViewOf(states[0]);
  std::vector<std::shared_ptr<const StagedChange>> changes;
  for (int s = 0; s < steps; ++s) {
    const Bytes file = DeltaBetween(states[s], states[s + 1], kRequests[Below(random, 5)]);
    const auto change = Stage(file, view);
    RC_ASSERT(change.ok());
    changes.push_back(change.value());
    view = view.After(change.value());
    RC_ASSERT(view.layout() == *states[s + 1].layout);
    RC_ASSERT(view.digests() == DigestsOf(states[s + 1]));
    // The view holds the new bits, in any window.
    for (std::size_t i = 0; i < view.layout().size(); ++i) {
      const std::uint64_t units = view.layout().unit_count(i);
      const auto width = static_cast<std::size_t>(UnitBytes(view.layout().tensors()[i].dtype));
      const std::uint64_t first = Below(random, units + 1);
      const std::uint64_t count = Below(random, units - first + 1);
      Bytes scratch;
      const auto seen = view.Units(i, first, count, scratch);
      RC_ASSERT(seen.size() == count * width);
      RC_ASSERT(std::equal(seen.begin(), seen.end(), states[s + 1].tensors[i].data() + first * width));
    }
  }
  const std::shared_ptr<const StagedChange> fold = StagedChange::Fold(changes, OneThread());
  const StagedChange& folded = *fold;
  RC_ASSERT(folded.digests_after() == DigestsOf(states.back()));
  RC_ASSERT(Written(states[0], folded) == states.back());
  // Folding some first makes no difference.
  if (steps > 1) {
    const auto part = StagedChange::Fold(std::span(changes).first(2), OneThread());
    std::vector<std::shared_ptr<const StagedChange>> rest = {part};
    rest.insert(rest.end(), changes.begin() + 2, changes.end());
    RC_ASSERT(Written(states[0], *StagedChange::Fold(rest, OneThread())) == states.back());
  }
}

}  // namespace
}  // namespace weightwire
