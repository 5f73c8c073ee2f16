// Writing an anchor: the files of a Hugging Face directory, streamed to the store portion by portion, then anchor.json.
//
// Everything that is sent is digested on the way. Only if that gives the state of the version is anchor.json put, so an
// anchor that exists is a correct one, whoever wrote it from whatever source. Memory: one portion.
//
// A step function: Step does one bounded thing, so that whoever runs it can do others in between.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/filesystem.h"
#include "base/object_hash.h"
#include "base/result.h"
#include "codec/digest/digest.h"
#include "codec/kernels/kernels.h"
#include "log/run.h"
#include "publish/anchor_source.h"
#include "tensor/checkpoint_plan.h"

namespace weightwire {

// A file that lies beside the weights and goes along (configuration, tokenizer).
struct ExtraFile {
  std::string name;  // within the anchor; CheckFileName has passed
  FileSystem::Path path;
};

struct ExtraFiles {
  std::vector<ExtraFile> files;
  std::vector<std::string> left_out;  // one sentence for each file that does not go along although it might be missed
};

// The files beside the weights in a checkpoint directory. Files whose names cannot be carried are left out, and so is
// what could run as code when loaded, unless `include_code`.
Result<ExtraFiles> FindExtraFiles(FileSystem& files, const FileSystem::Path& directory, bool include_code);

// What anchor.json says of the version, as its record does or will.
struct AnchorSubject {
  AnchorName name;
  Sha256Digest state{};
  std::uint64_t delta_bytes = 0;
};

struct AnchorOptions {
  CheckpointOptions files;  // shards and metadata
  std::vector<ExtraFile> extra;
  FileSystem* file_system = nullptr;  // to read those; may be none if there are none
};

// Makes the anchor.json of a version with this layout. The caller adds the files.
[[nodiscard]] AnchorManifest ManifestOf(const Run& run, const AnchorSubject& subject, const Layout& layout);
// Puts anchor.json, which completes the anchor. Its id is the caller's alone, so that putting the same bytes again
// after a lost answer is harmless.
Result<KnownAnchor> PutManifest(const Run& run, AnchorManifest manifest);

class AnchorWriter final : public AnchorShare {
 public:
  // `kernels` must outlive it.
  AnchorWriter(Run run, AnchorSubject subject, std::shared_ptr<AnchorSource> source, AnchorOptions options,
               const Kernels& kernels);
  ~AnchorWriter() override;

  // Sends a block, a small file or anchor.json.
  Result<bool> Step() override;

  [[nodiscard]] const AnchorSubject& subject() const { return subject_; }
  [[nodiscard]] std::uint64_t bytes_sent() const { return bytes_sent_; }
  // REQUIRES: complete.
  [[nodiscard]] const KnownAnchor& anchor() const { return *anchor_; }

 private:
  // A file on its way.
  struct Sending;

  [[nodiscard]] std::string KeyOf(const std::string& name) const;
  Status SendWeights(const PlannedFile& file);
  Status BeginFile(const PlannedFile& file);
  Status SendWhole(const std::string& name, std::span<const std::uint8_t> bytes);
  Status SendExtra(const ExtraFile& file);
  Status Complete();

  const Run run_;
  const AnchorSubject subject_;
  const std::shared_ptr<AnchorSource> source_;
  const AnchorOptions options_;
  const Kernels& kernels_;
  const CheckpointPlan plan_;

  std::size_t next_weights_ = 0;
  bool index_sent_ = false;
  std::size_t next_extra_ = 0;
  std::unique_ptr<Sending> sending_;
  std::vector<Digest> digests_;  // of the files that are sent
  std::vector<AnchorFile> files_;
  std::uint64_t bytes_sent_ = 0;
  std::optional<KnownAnchor> anchor_;
};

}  // namespace weightwire
