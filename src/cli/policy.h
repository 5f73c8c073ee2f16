// The timeouts, intervals and retries of src/cli. ARCHITECTURE.md, "Timeouts, retries and limits", lists them with
// those of the other folders; ./dev lint compares the two.
#pragma once

#include <chrono>
#include <cstddef>

namespace weightwire {

// RetryTransient: the pauses between the attempts at one step.
inline constexpr std::chrono::milliseconds kFirstRetryWait{500};
inline constexpr std::chrono::seconds kLastRetryWait{8};

// How long weightwire publish waits for work of which it does not know when it is due.
inline constexpr std::chrono::milliseconds kPublishIdlePause{100};
// weightwire gc removes this many objects at a time, because removing mostly waits for the store.
inline constexpr std::size_t kGcRemoveThreads = 16;
// weightwire gc waits for the grace period in steps of this length, and shows what is left of it.
inline constexpr std::chrono::seconds kGcWaitStep{1};
// weightwire log --watch looks for new versions this often.
inline constexpr std::chrono::seconds kWatchInterval{1};
// weightwire follow --exec calls the follower this often while the command runs, to keep its lease.
inline constexpr std::chrono::seconds kChildLookInterval{10};
// weightwire follow --vllm: a server that loads a large model says nothing for minutes.
inline constexpr std::chrono::minutes kVllmTimeout{15};
// weightwire follow --metrics: threads that answer, how long a connection may take, how many bytes of a request are
// read, how many connections wait in the kernel, and the pause after an error of the system, such as no descriptors.
inline constexpr std::size_t kServerThreads = 2;
inline constexpr std::chrono::seconds kServerConnectionTime{10};
inline constexpr std::size_t kMaxServerRequestBytes = std::size_t{16} << 10;
inline constexpr int kServerBacklog = 16;
inline constexpr std::chrono::milliseconds kServerErrorPause{200};
// Progress is shown for what takes longer, and then this often.
inline constexpr std::chrono::milliseconds kProgressDelay{700};
inline constexpr std::chrono::milliseconds kProgressInterval{200};
// With --log-format json, progress is printed at most this often.
inline constexpr std::chrono::seconds kJsonProgressInterval{1};
// An outage of the store is told once it has lasted this long.
inline constexpr std::chrono::seconds kOutageNotice{2};

}  // namespace weightwire
