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

// Weights are written from the version itself, and our own files are nobody's business.
bool IsOurs(std::string_view name) {
  return name == ".git" || name.starts_with(".weightwire") || name.ends_with(".safetensors") ||
         name.ends_with(".safetensors.index.json") || name == "anchor.json";
}

class ExtraFileFinder {
 public:
  ExtraFileFinder(FileSystem& files, bool include_code) : files_(files), include_code_(include_code) {}

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

  [[nodiscard]] ExtraFiles Take() { return std::move(found_); }

 private:
  Status Take(const FileSystem::Path& path, const std::string& name, int depth) {
    WW_TRY(const auto info, files_.Stat(path));
    if (!info.has_value() || info->kind == FileKind::kOther) return Ok();
    if (CheckFileName(name).ok() && info->kind == FileKind::kDirectory) return Find(path, name + "/", depth + 1);
    // A link to a file is followed (a Hugging Face cache is made of them); other links are passed over.
    if (info->kind == FileKind::kLink && !files_.Map(path).ok()) return Ok();
    if (!CheckFileName(name).ok()) return LeaveOut(name, "its name cannot be carried");
    if (MayBeCode(name) && !include_code_) return LeaveOut(name, "it could run as code");
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
  const bool include_code_;
  ExtraFiles found_;
};

}  // namespace

Result<ExtraFiles> FindExtraFiles(FileSystem& files, const FileSystem::Path& directory, bool include_code) {
  ExtraFileFinder finder(files, include_code);
  WW_RETURN_IF_ERROR(finder.Find(directory, "", 0));
  return finder.Take();
}

AnchorManifest ManifestOf(const Run& run, const AnchorSubject& subject, const Layout& layout) {
  AnchorManifest manifest;
  manifest.run = run.id();
  manifest.name = subject.name;
  manifest.layout = layout.hash();
  manifest.state = subject.state;
  manifest.delta_bytes = subject.delta_bytes;
  return manifest;
}

Result<KnownAnchor> PutManifest(const Run& run, AnchorManifest manifest) {
  const std::string text = ToJson(manifest);
  WW_RETURN_IF_ERROR(run.store().Put(AnchorManifestKey(manifest.name), BytesOf(text)));
  return KnownAnchor{std::move(manifest), Sha256Of(BytesOf(text))};
}

struct AnchorWriter::Sending {
  std::optional<ObjectSender> sender;
  std::optional<FileBytes> bytes;
  std::vector<Digest> digests;  // by the layout
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
  } else if (next_extra_ < options_.extra.size()) {
    done = SendExtra(options_.extra[next_extra_]);
    if (done.ok()) ++next_extra_;
  } else {
    done = Complete();
  }
  if (!done.ok()) return done.error().In(fmt::format("cannot write an anchor of version {}", subject_.name.version));
  return anchor_.has_value();
}

Status AnchorWriter::BeginFile(const PlannedFile& file) {
  auto sending = std::make_unique<Sending>();
  WW_TRY(std::vector<std::uint8_t> header, file.Header());
  std::uint64_t size_bytes = header.size();
  for (const std::size_t tensor : file.sources) size_bytes += source_->layout().byte_size(tensor);
  sending->bytes.emplace(std::move(header), file.sources);
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
    return sending.bytes->Fill(*source_, out, [&](std::size_t tensor, std::uint64_t at, auto bytes) {
      sending.digests[tensor] += DigestOfRange(bytes, at, kernels_);
    });
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

Status AnchorWriter::SendExtra(const ExtraFile& file) {
  // A copy: a file that changes while it is sent must not make its hash wrong.
  WW_TRY(const std::vector<std::uint8_t> bytes, options_.file_system->Read(file.path, kMaxPutBytes));
  return SendWhole(file.name, bytes);
}

Status AnchorWriter::Complete() {
  if (StateDigest(source_->layout(), digests_) != subject_.state) {
    return Error(ErrorCode::kMismatch, "the weights it was to be made from are not those of that version");
  }
  AnchorManifest manifest = ManifestOf(run_, subject_, source_->layout());
  manifest.files = files_;
  WW_TRY(anchor_, PutManifest(run_, std::move(manifest)));
  return Ok();
}

}  // namespace weightwire
