#include "publish/anchor_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/limits.h"
#include "codec/digest/state.h"
#include "log/limits.h"
#include "store/object_sender.h"
#include "store/store.h"

namespace weightwire {
namespace {

// How much is read from the source at a time: a publisher's caller may have to wait for it.
constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 20;

// Weights are written from the version itself, and our own files are nobody's business.
bool IsOurs(std::string_view name) {
  return name == ".git" || name.starts_with(".weightwire") || name.ends_with(".safetensors") ||
         name.ends_with(".safetensors.index.json") || name == "anchor.json";
}

class CarriedFinder {
 public:
  CarriedFinder(FileSystem& files, bool carry_code) : files_(files), carry_code_(carry_code) {}

  Status Find(const FileSystem::Path& directory, const std::string& prefix, int depth) {
    if (depth > kMaxDirectoryDepth) {
      return Error(ErrorCode::kLimit,
                   fmt::format("{} is nested more than {} directories deep", directory.string(), kMaxDirectoryDepth));
    }
    WW_TRY(const std::vector<std::string> names, files_.List(directory));
    for (const std::string& name : names) {
      if (IsOurs(name)) continue;
      WW_RETURN_IF_ERROR(Take(directory / name, prefix + name, depth));
    }
    return Ok();
  }

  [[nodiscard]] CarriedFiles Take() { return std::move(found_); }

 private:
  Status Take(const FileSystem::Path& path, const std::string& name, int depth) {
    WW_TRY(const auto info, files_.Stat(path));
    if (!info.has_value() || info->kind == FileKind::kOther) return Ok();
    if (CheckFileName(name).ok() && info->kind == FileKind::kDirectory) return Find(path, name + "/", depth + 1);
    // A link to a file is followed (a Hugging Face cache is made of them); other links are passed over.
    if (info->kind == FileKind::kLink && !files_.Map(path).ok()) return Ok();
    if (!CheckFileName(name).ok()) return LeaveOut(name, "its name cannot be carried");
    if (MayBeCode(name) && !carry_code_) return LeaveOut(name, "it could run as code");
    if (found_.files.size() == kMaxAnchorFiles / 2) {
      return Error(ErrorCode::kLimit, fmt::format("more than {} files beside the weights", kMaxAnchorFiles / 2));
    }
    found_.files.push_back({name, path});
    return Ok();
  }

  Status LeaveOut(const std::string& name, std::string_view why) {
    if (found_.left_out.size() < kMaxExtraFiles) {
      found_.left_out.push_back(fmt::format("{} is left out of the anchor: {}", name, why));
    }
    return Ok();
  }

  FileSystem& files_;
  const bool carry_code_;
  CarriedFiles found_;
};

}  // namespace

Result<CarriedFiles> FindCarriedFiles(FileSystem& files, const FileSystem::Path& directory, bool carry_code) {
  CarriedFinder finder(files, carry_code);
  WW_RETURN_IF_ERROR(finder.Find(directory, "", 0));
  return finder.Take();
}

// Bytes come in order: the header, then the tensors.
struct AnchorWriter::Sending {
  std::vector<std::uint8_t> header;
  std::optional<ObjectSender> sender;
  std::vector<Digest> digests;  // by the layout

  // Where in the file the next byte comes from.
  std::uint64_t header_done = 0;
  std::size_t tensor = 0;  // in PlannedFile::sources
  std::uint64_t tensor_done = 0;

  Status Fill(const PlannedFile& file, AnchorSource& source, const Kernels& kernels, std::span<std::uint8_t> out) {
    std::span<std::uint8_t> rest = out;
    while (!rest.empty()) {
      if (header_done < header.size()) {
        const std::size_t size = std::min<std::size_t>(rest.size(), header.size() - header_done);
        std::copy_n(header.begin() + static_cast<std::ptrdiff_t>(header_done), size, rest.begin());
        header_done += size;
        rest = rest.subspan(size);
        continue;
      }
      const std::size_t index = file.sources[tensor];
      const std::uint64_t left = source.layout().byte_size(index) - tensor_done;
      if (left == 0) {
        ++tensor;
        tensor_done = 0;
        continue;
      }
      const std::uint64_t size = std::min({std::uint64_t{rest.size()}, left, kReadBytes});
      WW_RETURN_IF_ERROR(source.ReadAt(index, tensor_done, rest.first(size)));
      digests[index] += DigestOfRange(rest.first(size), tensor_done, kernels);
      tensor_done += size;
      rest = rest.subspan(size);
    }
    return Ok();
  }
};

AnchorWriter::AnchorWriter(Run run, AnchorSubject subject, std::shared_ptr<AnchorSource> source, AnchorOptions options,
                           const Kernels& kernels)
    : run_(std::move(run)),
      subject_(subject),
      source_(std::move(source)),
      options_(std::move(options)),
      kernels_(kernels),
      plan_(PlanFresh(source_->layout(), options_.files)),
      index_sent_(plan_.size() == 1),
      digests_(source_->layout().size()) {}

AnchorWriter::~AnchorWriter() = default;

std::string AnchorWriter::KeyOf(const std::string& name) const { return AnchorFolder(subject_.name) + name; }

Result<bool> AnchorWriter::Step() {
  if (anchor_.has_value()) return true;
  Status done;
  if (next_weights_ < plan_.size()) {
    done = SendWeights(plan_[next_weights_]);
    // What was sent of the file is given up: the store may not know the upload any more.
    if (!done.ok()) sending_.reset();
  } else if (!index_sent_) {
    done = SendWhole(kIndexFileName, BytesOf(IndexText(plan_)));
    index_sent_ = done.ok();
  } else if (next_carried_ < options_.carried.size()) {
    done = SendCarried(options_.carried[next_carried_]);
    if (done.ok()) ++next_carried_;
  } else {
    done = Complete();
  }
  if (!done.ok()) return done.error().In(fmt::format("cannot write an anchor of version {}", subject_.name.version));
  return anchor_.has_value();
}

Status AnchorWriter::BeginFile(const PlannedFile& file) {
  auto sending = std::make_unique<Sending>();
  WW_TRY(sending->header, file.Header());
  std::uint64_t size_bytes = sending->header.size();
  for (const std::size_t tensor : file.sources) size_bytes += source_->layout().byte_size(tensor);
  sending->digests.resize(source_->layout().size());
  sending->sender.emplace(run_.store(), KeyOf(file.name), size_bytes);
  WW_RETURN_IF_ERROR(sending->sender->Begin());
  sending_ = std::move(sending);
  return Ok();
}

Status AnchorWriter::SendWeights(const PlannedFile& file) {
  if (sending_ == nullptr) WW_RETURN_IF_ERROR(BeginFile(file));
  Sending& sending = *sending_;
  const std::uint64_t before = sending.sender->bytes_sent();
  WW_TRY(const bool complete, sending.sender->Step([&](std::span<std::uint8_t> out) {
    return sending.Fill(file, *source_, kernels_, out);
  }));
  bytes_sent_ += sending.sender->bytes_sent() - before;
  if (!complete) return Ok();
  for (std::size_t i = 0; i < digests_.size(); ++i) digests_[i] += sending.digests[i];
  files_.push_back({file.name, sending.sender->size_bytes(), sending.sender->Hash()});
  sending_.reset();
  ++next_weights_;
  return Ok();
}

Status AnchorWriter::SendWhole(const std::string& name, std::span<const std::uint8_t> bytes) {
  WW_RETURN_IF_ERROR(run_.store().Put(KeyOf(name), bytes));
  files_.push_back({name, bytes.size(), ObjectHash(bytes)});
  bytes_sent_ += bytes.size();
  return Ok();
}

Status AnchorWriter::SendCarried(const CarriedFile& file) {
  WW_TRY(const std::unique_ptr<FileMap> map, options_.file_system->Map(file.path));
  if (map->bytes().size() > kMaxPutBytes) {
    return Error(ErrorCode::kLimit, fmt::format("{} has more than {} bytes", file.path.string(), kMaxPutBytes));
  }
  // A copy: a file that changes while it is sent must not make its hash wrong.
  const std::vector<std::uint8_t> bytes(map->bytes().begin(), map->bytes().end());
  return SendWhole(file.name, bytes);
}

Status AnchorWriter::Complete() {
  if (StateDigest(source_->layout(), digests_) != subject_.state) {
    return Error(ErrorCode::kMismatch, "the weights it was to be made from are not those of that version");
  }
  AnchorManifest manifest;
  manifest.run = run_.id();
  manifest.name = subject_.name;
  manifest.layout = source_->layout().hash();
  manifest.state = subject_.state;
  manifest.delta_bytes = subject_.delta_bytes;
  manifest.files = files_;
  const std::string text = ToJson(manifest);
  // The id is ours alone: putting the same bytes again after a lost answer is harmless.
  WW_RETURN_IF_ERROR(run_.store().Put(AnchorManifestKey(subject_.name), BytesOf(text)));
  anchor_ = KnownAnchor{std::move(manifest), Sha256Of(BytesOf(text))};
  return Ok();
}

Result<KnownAnchor> WriteAnchor(AnchorWriter& writer, const std::function<void(std::uint64_t)>& progress) {
  for (;;) {
    WW_TRY(const bool complete, writer.Step());
    if (progress) progress(writer.bytes_sent());
    if (complete) return writer.anchor();
  }
}

}  // namespace weightwire
