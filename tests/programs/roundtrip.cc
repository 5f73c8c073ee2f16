// roundtrip SOURCE OUTPUT [MAX_SHARD_BYTES]: opens a checkpoint and writes it again, like the source or, with
// MAX_SHARD_BYTES, as a fresh directory. For the tests that load what we write with other libraries.
#include <cstdio>
#include <cstdlib>

#include "runner/error_kinds.h"
#include "support/checkpoints.h"
#include "tensor/checkpoint.h"
#include "tensor/checkpoint_writer.h"

int main(int argc, char** argv) {
  using namespace weightwire;
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: roundtrip SOURCE OUTPUT [MAX_SHARD_BYTES]\n");
    return 1;
  }
  const auto source = Checkpoint::Open(argv[1]);
  if (!source.ok()) {
    std::fprintf(stderr, "%s\n", source.error().message().c_str());
    return KindOf(source.error().code()).exit_status;
  }
  const Checkpoint& checkpoint = source.value();
  Status written;
  if (argc == 4) {
    CheckpointOptions options;
    options.max_shard_bytes = std::strtoull(argv[3], nullptr, 10);
    written = weightwire::testing::WriteCheckpoint(checkpoint, argv[2], options);
  } else {
    const auto like =
        WriteCheckpointLike(checkpoint, checkpoint.layout(), argv[2], weightwire::testing::DataOf(checkpoint));
    if (!like.ok()) written = like.error();
  }
  if (!written.ok()) {
    std::fprintf(stderr, "%s\n", written.error().message().c_str());
    return KindOf(written.error().code()).exit_status;
  }
  return 0;
}
