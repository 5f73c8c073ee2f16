// Replays a journal: completes an update in place, or undoes it, wherever a crash stopped it.
#pragma once

#include "base/filesystem.h"
#include "base/result.h"
#include "base/threads.h"
#include "follow/in_place/journal.h"

namespace weightwire {

// Writes the journal's new bits (or its old ones, for kBack) into its files in `directory`, and returns once they are
// durable. The journal must stay until then, because a replay that a crash stops is repeated from the start.
//
// Opens and checks every file before it writes the first byte. kIo means that the disk failed: replay again. After any
// other error nothing was written: a file is missing (kNotFound), is not a regular file (kInvalidArgument), or holds
// bits that are neither old nor new (kMismatch).
Status ReplayJournal(FileSystem& files, const FileSystem::Path& directory, const Journal& journal,
                     Journal::Direction direction, ThreadPool& pool);

}  // namespace weightwire
