// The XML of S3: what we read out of answers, and the one document we write.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "store/store.h"

namespace weightwire {

struct S3Page {
  // Full keys of the bucket; not checked.
  std::vector<ObjectInfo> objects;
  // Folders, with their "/" behind; only of lists with a delimiter.
  std::vector<std::string> folders;
  bool truncated = false;
};

// The answer of ListObjectsV2. kCorrupt when it is none.
Result<S3Page> ParseS3Page(std::string_view xml);

struct S3Error {
  std::string code;     // "NoSuchKey"; empty when the text is no such error
  std::string message;  // for people; printable, shortened
};

S3Error ParseS3Error(std::string_view xml);

// The id in the answer of CreateMultipartUpload.
Result<std::string> ParseS3UploadId(std::string_view xml);

// The request of CompleteMultipartUpload, for the ETags of parts 1, 2, ….
std::string WriteS3PartList(const std::vector<std::string>& etags);

}  // namespace weightwire
