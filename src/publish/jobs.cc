#include "publish/jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/object_hash.h"
#include "publish/record_commit.h"

namespace weightwire {
namespace {

void ExecuteSpool(SpoolJob& job, const JobTools& tools) {
  Record& record = job.record;
  std::optional<std::span<const std::uint8_t>> part;
  record.delta_bytes = job.delta_bytes_before;
  if (job.part != nullptr) {
    part = job.part->Sealed();
    const Sha256Digest hash = ObjectHash(*part);
    const Sha256Digest in_key = tools.bugs.part_key_without_hash ? Sha256Digest{} : hash;
    record.delta->push_back({PartKey(record.version - 1, record.version, in_key), part->size(), hash});
    record.delta_bytes += part->size();
  }
  job.record_json = ToJson(record);
  if (tools.spool != nullptr) {
    job.status = tools.spool->Write(record.version, job.record_json, part, job.new_layout.get());
  }
}

Status PutParts(const UploadJob& job, const JobTools& tools) {
  if (job.new_layout != nullptr) WW_RETURN_IF_ERROR(tools.run.PutLayout(*job.new_layout));
  const Record& record = job.known.record;
  for (const PartRef& part : record.delta.value_or(std::vector<PartRef>())) {
    if (job.part != nullptr) {
      WW_RETURN_IF_ERROR(PutPart(tools.run.store(), part, job.part->Sealed(), job.again));
    } else {
      WW_TRY(const std::unique_ptr<FileMap> map, tools.spool->OpenPart(record.version));
      WW_RETURN_IF_ERROR(PutPart(tools.run.store(), part, map->bytes(), job.again));
    }
  }
  return Ok();
}

void ExecuteUpload(UploadJob& job, const JobTools& tools) {
  const Version version = job.known.record.version;
  const auto fail = [&](const Error& error) {
    job.outcome = UploadJob::Outcome::kError;
    job.error = error.In(fmt::format("cannot publish version {}", version));
  };
  if (!tools.bugs.record_before_parts) {
    if (const Status put = PutParts(job, tools); !put.ok()) return fail(put.error());
  }
  if (tools.bugs.lost_answer_is_failure) {
    const std::span bytes = BytesOf(job.record_json);
    const auto put = tools.run.store().PutIfAbsent(RecordKey(version), bytes);
    if (!put.ok() && put.error().code() == ErrorCode::kUnknownOutcome) {
      job.outcome = UploadJob::Outcome::kTakenForFailed;
      job.error = put.error();
      return;
    }
  }
  const auto committed = CommitRecord(tools.run, version, job.record_json);
  if (!committed.ok()) return fail(committed.error());
  if (committed.value() == CommitOutcome::kConflict) {
    job.outcome = UploadJob::Outcome::kStopped;
    job.error = AnotherWriterWon(tools.run, version, tools.spool != nullptr);
    return;
  }
  if (tools.bugs.record_before_parts) {
    if (const Status put = PutParts(job, tools); !put.ok()) return fail(put.error());
  }
  job.outcome = UploadJob::Outcome::kCommitted;
  // If this fails, the entry is found committed at the next start.
  if (tools.spool != nullptr) static_cast<void>(tools.spool->Remove(version));
}

void ExecuteAnchor(AnchorJob& job) {
  if (job.give_up) {
    job.writer.reset();
    return;
  }
  const auto step = job.writer->Step();
  if (step.ok()) {
    job.complete = step.value();
  } else {
    job.error = step.error();
  }
}

}  // namespace

Status PutPart(Store& store, const PartRef& part, std::span<const std::uint8_t> bytes, bool again) {
  // The key holds the hash: what is there, complete, is the same. Asking is worth a request only if we may have put it.
  if (again) {
    const auto there = store.Stat(part.key);
    if (there.ok() && there.value().size_bytes == part.size_bytes) return Ok();
    if (!there.ok() && there.error().code() != ErrorCode::kNotFound) return there.error();
  }
  if (bytes.size() <= kMaxPutBytes) return store.Put(part.key, bytes);
  WW_TRY(const std::unique_ptr<Upload> upload, store.StartUpload(part.key, bytes.size()));
  for (std::uint64_t i = 0; i < upload->part_count(); ++i) {
    WW_RETURN_IF_ERROR(upload->WritePart(i, bytes.subspan(i * upload->part_bytes(), upload->PartSize(i))));
  }
  return upload->Finish();
}

void Execute(Job& job, const JobTools& tools) {
  if (auto* spool = std::get_if<SpoolJob>(&job)) {
    ExecuteSpool(*spool, tools);
  } else if (auto* upload = std::get_if<UploadJob>(&job)) {
    ExecuteUpload(*upload, tools);
  } else {
    ExecuteAnchor(std::get<AnchorJob>(job));
  }
}

}  // namespace weightwire
