// The timeouts, retries and size thresholds of src/store. ARCHITECTURE.md, "Timeouts, retries and limits", lists them
// with those of the other folders; ./dev lint compares the two.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace weightwire {

// --- sizes and parallel requests ---

// A single PUT up to this size, because it is one request instead of three; above it a multipart upload.
inline constexpr std::uint64_t kSinglePutBytes = std::uint64_t{16} << 20;
// The most that one call of Put takes.
inline constexpr std::uint64_t kMaxPutBytes = std::uint64_t{1} << 30;
// Parts of an upload: of S3, and of other stores. S3's grow for objects of more than 10,000 parts.
inline constexpr std::uint64_t kS3PartBytes = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kOtherPartBytes = std::uint64_t{8} << 20;
// A ParallelStore's part is several of the inner store's, up to this size, because its writer holds one in memory.
inline constexpr std::uint64_t kMaxParallelPartBytes = std::uint64_t{64} << 20;
// A ranged read.
inline constexpr std::uint64_t kRangedReadBytes = std::uint64_t{8} << 20;
// Requests at a time for one object.
inline constexpr std::size_t kTransferThreads = 4;

// --- retries ---

// RetryStore: pauses between the attempts at one call, and how long it tries at all. A caller that waits longer makes
// the call again, by its own policy.
inline constexpr std::chrono::milliseconds kFirstRetryPause{200};
inline constexpr std::chrono::seconds kLastRetryPause{20};
inline constexpr std::chrono::seconds kRetryDeadline{30};
// Redirects followed for one request.
inline constexpr int kMaxRedirects = 4;
// FileStore: attempts at a write, because another process may remove a folder while it is empty, between our making and
// using it.
inline constexpr int kFolderAttempts = 100;

// --- timeouts ---

inline constexpr std::chrono::seconds kConnectTimeout{10};
// For a whole request, plus one second for each kMinBytesPerSecond of its body.
inline constexpr std::chrono::seconds kRequestTimeout{60};
inline constexpr std::uint64_t kMinBytesPerSecond = 100'000;
// A transfer in which no byte moves ends after this time.
inline constexpr std::chrono::seconds kStallTimeout{60};
// Metadata services answer at once or do not exist.
inline constexpr std::chrono::seconds kMetadataConnectTimeout{2};
inline constexpr std::chrono::seconds kMetadataRequestTimeout{5};
inline constexpr std::chrono::minutes kCredentialProcessTimeout{1};
// Credentials are fetched again this long before they expire, as the AWS tools do.
inline constexpr std::chrono::minutes kCredentialRefreshBefore{5};
// How old an answer may be whose date serves as the store's clock.
inline constexpr std::chrono::minutes kMaxServerDateAge{1};
// FileStore takes the writer of a temporary file for dead once the file has not changed for this long.
inline constexpr std::chrono::hours kTemporaryFileAge{24};

}  // namespace weightwire
