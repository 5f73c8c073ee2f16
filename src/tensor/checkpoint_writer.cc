#include "tensor/checkpoint_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/file.h"
#include "tensor/checkpoint_plan.h"
#include "tensor/extra_files.h"

namespace weightwire {
namespace {

namespace fs = std::filesystem;

Status WriteFile(const PlannedFile& file, const Layout& layout, const fs::path& path, const TensorSource& data) {
  WW_TRY(SafetensorsWriter writer, SafetensorsWriter::Create(path, file.specs, file.metadata));
  const TensorSink sink = [&](std::span<const std::uint8_t> bytes) { return writer.Append(bytes); };
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < file.specs.size(); ++i) {
    WW_RETURN_IF_ERROR(data(file.sources[i], sink));
    expected += layout.byte_size(file.sources[i]);
    // A source that gives too little of one tensor and too much of the next would shift everything between.
    WW_CHECK(writer.position() == expected);
  }
  return writer.Finish();
}

Status WriteText(const fs::path& path, std::string_view text) {
  WW_TRY(const File file, File::Create(path));
  WW_RETURN_IF_ERROR(file.WriteAt(0, BytesOf(text)));
  return file.Sync();
}

// "out/" and "out" mean the same directory, but only the second has "out" for its last component.
fs::path WithoutTrailingSlash(const fs::path& path) {
  return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

// Whether the planned files hold tensors of the same names as those they are like.
bool NamesStay(const Checkpoint& like, const CheckpointPlan& plan) {
  return std::ranges::equal(like.files(), plan, [](const CheckpointFile& held, const PlannedFile& planned) {
    return std::ranges::equal(held.tensors, planned.specs, {}, {}, &TensorSpec::name);
  });
}

// Something under a temporary name beside the output, removed unless it gets the output's name.
class StagedOutput {
 public:
  explicit StagedOutput(fs::path output) : output_(std::move(output)), temporary_(TemporarySibling(output_)) {}
  StagedOutput(const StagedOutput&) = delete;
  StagedOutput& operator=(const StagedOutput&) = delete;
  ~StagedOutput() {
    std::error_code ignored;
    if (pending_) fs::remove_all(temporary_, ignored);
  }

  [[nodiscard]] const fs::path& path() const { return temporary_; }

  // Early, so that hours of writing do not end in a refusal; Commit decides.
  [[nodiscard]] Status CheckNameIsFree() const {
    std::error_code ignored;
    if (fs::symlink_status(output_, ignored).type() == fs::file_type::not_found) return Ok();
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} already exists; remove it or choose another name", output_.string()));
  }

  [[nodiscard]] Status CreateDirectory() const {
    std::error_code error;
    if (fs::create_directory(temporary_, error)) return Ok();
    return SystemError("create", output_, error.value());
  }

  Status Commit() {
    WW_RETURN_IF_ERROR(Rename(temporary_, output_, Existing::kRefuse));
    pending_ = false;
    return Ok();
  }

 private:
  fs::path output_;
  fs::path temporary_;
  bool pending_ = true;
};

}  // namespace

Result<std::vector<std::string>> WriteCheckpointLike(const Checkpoint& like, const Layout& layout,
                                                     const fs::path& output, const TensorSource& data) {
  const CheckpointPlan plan = PlanLike(like, layout);
  StagedOutput staged(WithoutTrailingSlash(output));
  WW_RETURN_IF_ERROR(staged.CheckNameIsFree());
  if (like.directory().empty()) {
    const Status written = WriteFile(plan.front(), layout, staged.path(), data);
    if (!written.ok()) return written.error().In("cannot write " + output.string());
    WW_RETURN_IF_ERROR(staged.Commit());
    return std::vector<std::string>();
  }
  WW_RETURN_IF_ERROR(staged.CreateDirectory());
  std::set<std::string> own = {kIndexFileName};
  for (const CheckpointFile& file : like.files()) own.insert(file.name);
  WW_TRY(std::vector<std::string> left_out, CopyExtraFiles(like.directory(), own, staged.path()));
  for (const PlannedFile& file : plan) WW_RETURN_IF_ERROR(WriteFile(file, layout, staged.path() / file.name, data));
  if (like.has_index() && (plan.empty() || !like.files().empty())) {
    // The same tensors in the same shards: the index still holds, with whatever else it says.
    const bool unchanged = like.layout() == layout && NamesStay(like, plan);
    WW_RETURN_IF_ERROR(unchanged ? CopyFile(like.directory() / kIndexFileName, staged.path() / kIndexFileName)
                                 : WriteText(staged.path() / kIndexFileName, IndexText(plan)));
  }
  WW_RETURN_IF_ERROR(SyncDirectory(staged.path()));
  WW_RETURN_IF_ERROR(staged.Commit());
  return left_out;
}

}  // namespace weightwire
