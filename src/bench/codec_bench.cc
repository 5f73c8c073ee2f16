// weightwire-bench codec OLD NEW: how fast the codec is on this machine, beside the memory's own speed and beside the
// way most other systems go.
#include <fmt/format.h>
#include <zstd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/huge_buffer.h"
#include "base/result.h"
#include "bench/benchmarks.h"
#include "bench/heap_meter.h"
#include "bench/memory_floor.h"
#include "bench/timings.h"
#include "cli/checkpoints.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/peers.h"
#include "cli/state_pair.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "codec/decode/decoder.h"
#include "codec/decode/state_view.h"
#include "codec/decode/write_change.h"
#include "codec/digest/state.h"

namespace weightwire {
namespace {

constexpr std::size_t kMinRepetitions = 7;
constexpr std::size_t kMaxRepetitions = 1'000'000;

struct CodecBenchOptions {
  std::filesystem::path old_path;
  std::filesystem::path new_path;
  std::size_t repeat = kMinRepetitions;
  bool ordinary_pages = false;
  const GlobalOptions* global = nullptr;
};

using Bytes = std::span<const std::uint8_t>;

// A state in memory of our own, one tensor after another, each aligned to a cache line.
class MemoryState {
 public:
  static Result<MemoryState> Copy(const Checkpoint& checkpoint, Pages pages = Pages::kLarge) {
    constexpr std::size_t kLine = 64;
    std::size_t size = 0;
    std::vector<std::size_t> offsets;
    for (std::size_t i = 0; i < checkpoint.layout().size(); ++i) {
      offsets.push_back(size);
      size += (checkpoint.bytes(i).size() + kLine - 1) / kLine * kLine;
    }
    WW_TRY(HugeBuffer buffer, HugeBuffer::Allocate(size, pages));
    MemoryState state(std::move(buffer));
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      const Bytes from = checkpoint.bytes(i);
      const std::span<std::uint8_t> to = state.buffer_.bytes().subspan(offsets[i], from.size());
      std::copy(from.begin(), from.end(), to.begin());
      state.tensors_.push_back(to);
    }
    return state;
  }

  [[nodiscard]] Bytes bytes() const { return buffer_.bytes(); }
  [[nodiscard]] const std::vector<std::span<std::uint8_t>>& tensors() const { return tensors_; }
  [[nodiscard]] std::vector<Bytes> views() const { return {tensors_.begin(), tensors_.end()}; }

 private:
  explicit MemoryState(HugeBuffer buffer) : buffer_(std::move(buffer)) {}

  HugeBuffer buffer_;
  std::vector<std::span<std::uint8_t>> tensors_;
};

struct CodecFigures {
  Timings read2, read_new, encode, read1, apply, write, apply_gaps, apply_cold, digest, xor_encode, xor_apply;
  // A target in memory: staging, without and with the digests of the base; and the write while an engine waits, after
  // a comparison.
  Timings stage, stage_verified, write_checked;
  std::uint64_t encode_peak_bytes = 0;
  std::uint64_t apply_peak_bytes = 0;
  std::uint64_t changed = 0;
  std::uint64_t delta_bytes = 0;
  std::uint64_t gaps_bytes = 0;
  std::uint64_t xor_zstd_bytes = 0;
};

class CodecBench {
 public:
  CodecBench(const Layout& layout, MemoryState old_state, MemoryState new_state, MemoryState work,
             const Compute& compute)
      : layout_(std::make_shared<const Layout>(layout)),
        old_(std::move(old_state)),
        new_(std::move(new_state)),
        work_(std::move(work)),
        compute_(compute),
        pair_{*layout_, *layout_, old_.views(), new_.views()} {}

  [[nodiscard]] const Layout& layout() const { return *layout_; }

  Result<CodecFigures> Run(std::size_t repeat) {
    Progress progress("measuring", repeat);
    WW_RETURN_IF_ERROR(Prepare());
    for (std::size_t i = 0; i < repeat; ++i) {
      WW_RETURN_IF_ERROR(Repetition());
      progress.Add(1);
    }
    return figures_;
  }

 private:
  [[nodiscard]] const Kernels& kernels() const { return *compute_.kernels; }
  [[nodiscard]] ThreadPool& pool() const { return *compute_.pool; }

  // What is known before the clock starts; once through encoder and decoder for the memory they take.
  Status Prepare() {
    for (const std::span<std::uint8_t> tensor : work_.tensors()) places_.push_back({tensor});
    digests_ = DigestTensors(old_.views(), kernels(), pool());
    request_ = RequestFor(pair_, digests_, CodingRequest::kSmallest);
    const EncodeRequest gaps_request = RequestFor(pair_, digests_, CodingRequest::kGaps);
    WW_TRY(EncodedDelta gaps, EncodeDelta(gaps_request, kernels(), pool()));
    gaps_file_ = std::move(gaps.file);
    {
      const HeapMeter heap;
      WW_TRY(EncodedDelta delta, EncodeDelta(request_, kernels(), pool()));
      figures_.encode_peak_bytes = heap.peak_bytes();
      file_ = std::move(delta.file);
      for (std::size_t i = 0; i < delta.reports.size(); ++i) {
        figures_.changed += delta.reports[i].changed;
        if (delta.reports[i].changed != 0) changed_.push_back(i);
      }
    }
    figures_.delta_bytes = file_.size();
    figures_.gaps_bytes = gaps_file_.size();
    {
      const HeapMeter heap;
      WW_TRY(const auto change, Apply(file_, WorkView(digests_)));
      figures_.apply_peak_bytes = heap.peak_bytes();
      WW_RETURN_IF_ERROR(CheckIsNew("the delta"));
      Undo(*change);
    }
    return PrepareXor();
  }

  Status Repetition() {
    WW_RETURN_IF_ERROR(figures_.read2.Time([&] { return ReadBoth(); }));
    WW_RETURN_IF_ERROR(figures_.read_new.Time([&] { return Read(new_.bytes()); }));
    WW_RETURN_IF_ERROR(TimeEncode());
    WW_RETURN_IF_ERROR(figures_.xor_encode.Time([&] { return XorEncode(); }));
    WW_RETURN_IF_ERROR(figures_.read1.Time([&] { return Read(old_.bytes()); }));
    const StateView known = WorkView(digests_);
    WW_RETURN_IF_ERROR(TimeApply(figures_.apply, "the delta", [&] { return Apply(file_, known); }));
    WW_RETURN_IF_ERROR(TimeApply(figures_.apply_gaps, "the gaps delta", [&] { return Apply(gaps_file_, known); }));
    WW_RETURN_IF_ERROR(TimeApply(figures_.apply_cold, "the delta", [&] {
      return Apply(file_, WorkView(DigestTensors(work_.views(), kernels(), pool())));
    }));
    WW_RETURN_IF_ERROR(TimeTarget(known));
    WW_RETURN_IF_ERROR(figures_.digest.Time([&]() -> Status {
      if (DigestTensors(old_.views(), kernels(), pool()) == digests_) return Ok();
      return Error(ErrorCode::kCorrupt, "two digests of the same bytes differ");
    }));
    WW_RETURN_IF_ERROR(figures_.xor_apply.Time([&] { return XorApply(); }));
    WW_RETURN_IF_ERROR(CheckIsNew("XOR"));
    for (const std::size_t i : changed_) {
      std::copy(old_.tensors()[i].begin(), old_.tensors()[i].end(), work_.tensors()[i].begin());
    }
    return Ok();
  }

  // --- ours ---

  Status TimeEncode() {
    const auto delta = figures_.encode.Time([&] { return EncodeDelta(request_, kernels(), pool(), scratch_); });
    if (!delta.ok()) return delta.error();
    if (delta.value().file != file_) return Error(ErrorCode::kCorrupt, "encoding the same twice gave other bytes");
    return Ok();
  }

  // The work copy with what is known of it.
  [[nodiscard]] StateView WorkView(std::vector<Digest> digests) const {
    return {layout_, work_.views(), std::move(digests)};
  }

  Result<std::shared_ptr<const StagedChange>> Stage(Bytes file, const StateView& base) {
    WW_TRY(const DeltaFile delta, DeltaFile::Parse(file));
    return StageDelta(delta, base, kernels(), pool());
  }

  Result<std::shared_ptr<const StagedChange>> Apply(Bytes file, const StateView& base) {
    WW_TRY(auto change, Stage(file, base));
    WW_RETURN_IF_ERROR(figures_.write.Time([&]() -> Status {
      WriteChange(*change, places_, pool());
      return Ok();
    }));
    return change;
  }

  Status TimeTarget(const StateView& known) {
    const auto staged = figures_.stage.Time([&] { return Stage(file_, known); });
    if (!staged.ok()) return staged.error();
    const auto verified = figures_.stage_verified.Time([&]() -> Result<std::shared_ptr<const StagedChange>> {
      if (DigestTensors(work_.views(), kernels(), pool()) != digests_) return Corrupt("two digests of OLD differ");
      return Stage(file_, known);
    });
    if (!verified.ok()) return verified.error();
    const StagedChange& change = *verified.value();
    WW_RETURN_IF_ERROR(figures_.write_checked.Time([&]() -> Status {
      if (FindOtherBits(change, places_, pool()).has_value()) return Corrupt("the old bits of OLD differ");
      WriteChange(change, places_, pool());
      return Ok();
    }));
    WW_RETURN_IF_ERROR(CheckIsNew("the delta"));
    Undo(change);
    return Ok();
  }

  void Undo(const StagedChange& change) {
    for (const StagedTensor& tensor : change.tensors()) tensor.Undo(work_.tensors()[tensor.tensor()]);
  }

  template <typename Function>
  Status TimeApply(Timings& timings, const char* what, Function&& function) {
    const auto change = timings.Time(function);
    if (!change.ok()) return change.error();
    WW_RETURN_IF_ERROR(CheckIsNew(what));
    Undo(*change.value());
    return Ok();
  }

  [[nodiscard]] Status CheckIsNew(const char* what) const {
    const Bytes is = work_.bytes();
    if (std::memcmp(is.data(), new_.bytes().data(), is.size()) == 0) return Ok();
    return Error(ErrorCode::kCorrupt, fmt::format("applying {} did not give NEW", what));
  }

  // --- the memory's own speed ---

  // function(at, size), which sums up what it reads, for all portions of a state.
  template <typename Function>
  Status InPieces(Function&& function) {
    constexpr std::size_t kPortionBytes = std::size_t{1} << 23;
    const std::size_t all = old_.bytes().size();
    std::atomic<std::uint64_t> sum{0};
    pool().ParallelFor((all + kPortionBytes - 1) / kPortionBytes, [&](std::size_t portion, std::size_t) {
      const std::size_t at = portion * kPortionBytes;
      sum += function(at, std::min(kPortionBytes, all - at));
    });
    return Ok();
  }
  Status Read(Bytes state) {
    return InPieces([&](std::size_t at, std::size_t size) { return ReadOnce(state.data() + at, size); });
  }
  Status ReadBoth() {
    return InPieces([&](std::size_t at, std::size_t size) {
      return ReadBothOnce(old_.bytes().data() + at, new_.bytes().data() + at, size);
    });
  }

  // --- XOR and zstd ---

  struct FreeZstd {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  // What one thread works with, made before the clock starts.
  struct XorWorker {
    HugeBuffer xored;
    std::unique_ptr<ZSTD_CCtx, FreeZstd> compressor;
    std::unique_ptr<ZSTD_DCtx, FreeZstd> decompressor;
  };
  struct Compressed {
    std::vector<std::uint8_t> bytes;
    std::size_t size = 0;
  };

  Status PrepareXor() {
    // The largest first, so that no thread is left with one at the end.
    std::stable_sort(changed_.begin(), changed_.end(),
                     [&](std::size_t a, std::size_t b) { return layout_->byte_size(a) > layout_->byte_size(b); });
    const std::size_t largest = changed_.empty() ? 0 : old_.tensors()[changed_.front()].size();
    for (std::size_t i = 0; i < pool().threads(); ++i) {
      WW_TRY(HugeBuffer xored, HugeBuffer::Allocate(largest));
      xor_workers_.push_back({std::move(xored), std::unique_ptr<ZSTD_CCtx, FreeZstd>(ZSTD_createCCtx()),
                              std::unique_ptr<ZSTD_DCtx, FreeZstd>(ZSTD_createDCtx())});
    }
    compressed_.resize(changed_.size());
    for (std::size_t k = 0; k < changed_.size(); ++k) {
      compressed_[k].bytes.resize(ZSTD_compressBound(old_.tensors()[changed_[k]].size()));
    }
    WW_RETURN_IF_ERROR(XorEncode());
    for (const Compressed& compressed : compressed_) figures_.xor_zstd_bytes += compressed.size;
    return Ok();
  }

  Status XorEncode() {
    std::atomic<bool> failed{false};
    pool().ParallelFor(changed_.size(), [&](std::size_t k, std::size_t worker) {
      const Bytes from = old_.tensors()[changed_[k]];
      XorWorker& mine = xor_workers_[worker];
      XorInto(from.data(), new_.tensors()[changed_[k]].data(), mine.xored.bytes().data(), from.size());
      Compressed& to = compressed_[k];
      to.size = ZSTD_compressCCtx(mine.compressor.get(), to.bytes.data(), to.bytes.size(), mine.xored.bytes().data(),
                                  from.size(), kPeerZstdLevel);
      if (ZSTD_isError(to.size) != 0) failed = true;
    });
    if (failed) return Error(ErrorCode::kIo, "zstd could not compress");
    return Ok();
  }

  Status XorApply() {
    std::atomic<bool> failed{false};
    pool().ParallelFor(changed_.size(), [&](std::size_t k, std::size_t worker) {
      const std::span<std::uint8_t> to = work_.tensors()[changed_[k]];
      XorWorker& mine = xor_workers_[worker];
      const std::size_t size = ZSTD_decompressDCtx(mine.decompressor.get(), mine.xored.bytes().data(), to.size(),
                                                   compressed_[k].bytes.data(), compressed_[k].size);
      if (size != to.size()) failed = true;
      XorInto(to.data(), mine.xored.bytes().data(), to.data(), to.size());
    });
    if (failed) return Error(ErrorCode::kIo, "zstd could not decompress");
    return Ok();
  }

  std::shared_ptr<const Layout> layout_;
  MemoryState old_;
  MemoryState new_;
  MemoryState work_;  // the copy that is updated
  TensorPlaces places_;
  const Compute& compute_;
  EncodeScratch scratch_;  // as a publisher keeps one
  StatePair pair_;
  std::vector<Digest> digests_;  // of the old state
  EncodeRequest request_;
  std::vector<std::uint8_t> file_;
  std::vector<std::uint8_t> gaps_file_;
  std::vector<std::size_t> changed_;  // tensors, the largest first
  std::vector<XorWorker> xor_workers_;
  std::vector<Compressed> compressed_;
  CodecFigures figures_;
};

void ReportJson(const CodecFigures& f, const Layout& layout, const Compute& compute, const CodecBenchOptions& options) {
  JsonOutput json;
  json["model_bytes"] = layout.total_bytes();
  json["changed"] = f.changed;
  json["threads"] = compute.pool->threads();
  json["repeat"] = options.repeat;
  json["ordinary_pages"] = options.ordinary_pages;
  json["isa"] = compute.kernels->name;
  json["floor_isa"] = MemoryFloorIsa();
  json["read2_s"] = f.read2.best();
  json["read_new_s"] = f.read_new.best();
  json["encode_s"] = f.encode.best();
  json["read1_s"] = f.read1.best();
  json["apply_s"] = f.apply.best();
  json["write_s"] = f.write.best();
  json["stage_s"] = f.stage.best();
  json["stage_verified_s"] = f.stage_verified.best();
  json["write_checked_s"] = f.write_checked.best();
  json["apply_gaps_s"] = f.apply_gaps.best();
  json["apply_cold_s"] = f.apply_cold.best();
  json["digest_s"] = f.digest.best();
  json["xor_zstd_encode_s"] = f.xor_encode.best();
  json["xor_zstd_apply_s"] = f.xor_apply.best();
  json["encode_over_read2"] = f.encode.best() / f.read2.best();
  json["apply_over_read1"] = f.apply.best() / f.read1.best();
  json["write_over_read1"] = f.write.best() / f.read1.best();
  json["apply_gaps_over_read1"] = f.apply_gaps.best() / f.read1.best();
  json["apply_cold_over_read1"] = f.apply_cold.best() / f.read1.best();
  json["stage_verified_over_stage"] = f.stage_verified.best() / f.stage.best();
  json["write_checked_over_write"] = f.write_checked.best() / f.write.best();
  json["digest_over_read1"] = f.digest.best() / f.read1.best();
  json["encode_vs_xor"] = f.xor_encode.best() / f.encode.best();
  json["apply_vs_xor"] = f.xor_apply.best() / f.apply.best();
  const auto per_changed = [&](std::uint64_t bytes) {
    return f.changed == 0 ? JsonOutput() : JsonOutput(static_cast<double>(bytes) / static_cast<double>(f.changed));
  };
  json["delta_bytes"] = f.delta_bytes;
  json["bytes_per_changed"] = per_changed(f.delta_bytes);
  json["gaps_bytes_per_changed"] = per_changed(f.gaps_bytes);
  json["xor_zstd_bytes_per_changed"] = per_changed(f.xor_zstd_bytes);
  json["peak_extra_bytes"] = std::max(f.encode_peak_bytes, f.apply_peak_bytes);
  json["encode_peak_extra_bytes"] = f.encode_peak_bytes;
  json["apply_peak_extra_bytes"] = f.apply_peak_bytes;
  PrintJson(json);
}

void ReportText(const CodecFigures& f, const Layout& layout, const Compute& compute, const CodecBenchOptions& options) {
  const std::uint64_t model = layout.total_bytes();
  std::uint64_t units = 0;
  for (std::size_t i = 0; i < layout.size(); ++i) units += layout.unit_count(i);
  fmt::print("{} in {} tensors, {} elements changed ({}); {} {}, {} (floors: {}), best of {}\n", HumanBytes(model),
             layout.size(), WithCommas(f.changed), Percent(f.changed, units), compute.pool->threads(),
             compute.pool->threads() == 1 ? "thread" : "threads", compute.kernels->name, MemoryFloorIsa(),
             options.repeat);
  fmt::print(
      "States lie in memory of our own, touched, in 2 MiB pages where the system gives them{}; every repetition "
      "runs each line once.\n\n",
      options.ordinary_pages ? ", but NEW in ordinary ones" : "");
  const auto rate = [](std::uint64_t bytes, const Timings& timings) {
    return fmt::format("{:.1f} GB/s", static_cast<double>(bytes) / timings.best() / 1e9);
  };
  const auto times = [](const Timings& timings, const Timings& floor) {
    return fmt::format("{:.2f} ×", timings.best() / floor.best());
  };
  const auto faster = [](const Timings& timings, const Timings& other) {
    return fmt::format("{:.2f} × as fast", other.best() / timings.best());
  };
  TextTable table("lrrrr");
  table.AddRow({"", "time", "", "to the floor", "to XOR + zstd-1"});
  table.AddRow({"read old and new once (the floor)", HumanSeconds(f.read2.best()), rate(2 * model, f.read2), "1", ""});
  table.AddRow({"encode", HumanSeconds(f.encode.best()), rate(2 * model, f.encode), times(f.encode, f.read2),
                faster(f.encode, f.xor_encode)});
  table.AddRow({"XOR + zstd-1 encode", HumanSeconds(f.xor_encode.best()), rate(2 * model, f.xor_encode),
                times(f.xor_encode, f.read2), "1"});
  table.AddRow({"read old once (the floor)", HumanSeconds(f.read1.best()), rate(model, f.read1), "1", ""});
  const auto add = [&](const char* name, const Timings& timings) {
    table.AddRow({name, HumanSeconds(timings.best()), rate(model, timings), times(timings, f.read1),
                  faster(timings, f.xor_apply)});
  };
  add("apply: decode, verify, stage, write", f.apply);
  add("— of it writing, while an engine pauses", f.write);
  add("— the same, old bits compared first", f.write_checked);
  add("stage: decode and verify the delta", f.stage);
  add("stage, base digested in full too", f.stage_verified);
  add("apply, gaps mode", f.apply_gaps);
  add("apply, base digested in full first", f.apply_cold);
  table.AddRow({"full digest", HumanSeconds(f.digest.best()), rate(model, f.digest), times(f.digest, f.read1), ""});
  table.AddRow({"XOR + zstd-1 apply", HumanSeconds(f.xor_apply.best()), rate(model, f.xor_apply),
                times(f.xor_apply, f.read1), "1"});
  fmt::print("{}\n", table.Render());

  TextTable sizes("lrr");
  sizes.AddRow({"", "bytes", "per changed"});
  const auto add_size = [&](const char* name, std::uint64_t bytes) {
    sizes.AddRow({name, WithCommas(bytes), Ratio(static_cast<double>(bytes), static_cast<double>(f.changed))});
  };
  add_size("weightwire", f.delta_bytes);
  add_size("weightwire, gaps mode", f.gaps_bytes);
  add_size("XOR + zstd-1", f.xor_zstd_bytes);
  fmt::print(
      "{}\nheap beyond the inputs, at most: {} to encode (with the file), {} to apply (with the staged change)\n",
      sizes.Render(), HumanBytes(f.encode_peak_bytes), HumanBytes(f.apply_peak_bytes));
}

Result<CodecBench> Load(const CodecBenchOptions& options, const Compute& compute) {
  WW_TRY(const Checkpoint old_state, OpenCheckpoint(options.old_path));
  WW_TRY(const Checkpoint new_state, OpenCheckpoint(options.new_path));
  if (old_state.layout().tensors() != new_state.layout().tensors()) {
    return Error(ErrorCode::kMismatch,
                 fmt::format("{} and {} differ in the names, types or shapes of their tensors; the benchmark needs two "
                             "states of one layout",
                             options.old_path.string(), options.new_path.string()));
  }
  const Progress progress("loading into memory");
  WW_TRY(MemoryState old_memory, MemoryState::Copy(old_state));
  const Pages new_pages = options.ordinary_pages ? Pages::kOrdinary : Pages::kLarge;
  WW_TRY(MemoryState new_memory, MemoryState::Copy(new_state, new_pages));
  WW_TRY(MemoryState work, MemoryState::Copy(old_state));
  return CodecBench(old_state.layout(), std::move(old_memory), std::move(new_memory), std::move(work), compute);
}

Status RunCodecBench(const CodecBenchOptions& options) {
  WW_TRY(const Compute compute, Compute::Make(options.global->threads));
  WW_TRY(CodecBench bench, Load(options, compute));
  WW_TRY(const CodecFigures figures, bench.Run(options.repeat));
  if (options.global->json) {
    ReportJson(figures, bench.layout(), compute, options);
  } else {
    ReportText(figures, bench.layout(), compute, options);
  }
  return Ok();
}

}  // namespace

Command AddCodecBench(CLI::App& app, const GlobalOptions& global) {
  const auto options = std::make_shared<CodecBenchOptions>();
  options->global = &global;
  CLI::App& sub = *app.add_subcommand("codec", "measure encoding and applying against the speed of memory");
  AddPath(sub, "OLD", options->old_path, "the checkpoint before")->required();
  AddPath(sub, "NEW", options->new_path, "the checkpoint after, with the same tensors")->required();
  AddNumber(sub, "--repeat", options->repeat, "how often to measure; the best counts")
      ->check(CLI::Range(kMinRepetitions, kMaxRepetitions).description(fmt::format("(at least {})", kMinRepetitions)));
  sub.add_flag(
      "--ordinary-pages", options->ordinary_pages,
      "NEW lies in ordinary pages, as most trainers have their weights, and OLD, the base copy, in large ones");
  sub.footer(
      "Both states and a copy are held in memory. Against the floors (reading both states, or one, once, with the "
      "widest\n"
      "loads) stand encoding, applying and digesting, and XOR of whole tensors with zstd level 1, which is what most\n"
      "other systems do. Every result is compared with NEW.\n"
      "\n"
      "Example:\n"
      "  weightwire-bench codec old.safetensors new.safetensors --threads 1 --json");
  return {&sub, [options] { return RunCodecBench(*options); }};
}

}  // namespace weightwire
