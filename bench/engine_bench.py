"""What an update costs a real vLLM server that follows by itself. Called by ./dev bench engine.

A small model with the layout that a GPU has, on CPUs; each version changes about 84,000 elements in all of its tensors.
Measured while the server has nothing else to do, and while it generates.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from conftest import PROMPTS, Server, TrainedRun, make_import_path

SHAPE = {
    "vocab_size": 4000,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
SHARE = 43


def updates(server: Server, run: TrainedRun, count: int) -> list[dict]:
    """What the server says of each, and how long it took from publish() to the version it says it holds."""
    said = []
    for _ in range(count):
        start = time.perf_counter()
        version = run.step(share=SHARE)
        status = server.wait_for_version(version)
        said.append({**status["last_update"], "seconds_until_seen": time.perf_counter() - start})
    return said


def show(name: str, said: list[dict]) -> None:
    elements = statistics.median(update["elements"] for update in said)
    print(f"{name}: {len(said)} updates of {elements:,.0f} elements")
    for key, what in (
        ("seconds_in_loop", "in the engine's loop"),
        ("seconds_writing", "of it, writing and reading back"),
        ("seconds_preparing", "preparing, while steps run"),
        ("seconds_moving_mirror", "moving the mirror, while steps run"),
        ("seconds_until_seen", "from a step of the trainer to the version seen"),
    ):
        times = sorted(1e3 * update[key] for update in said)
        print(f"  {what:48} median {statistics.median(times):8.2f} ms   worst {times[-1]:8.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=30)
    count = parser.parse_args().updates
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "path").mkdir()
        run = TrainedRun(folder, shape=SHAPE)
        server = Server(
            run.make_mirror(),
            make_import_path(folder / "path"),
            folder / "log",
            WEIGHTWIRE_RUN=str(run.bucket),
            WEIGHTWIRE_POLL="0.05",
            VLLM_PLUGINS="weightwire,plain_layout",
        )
        try:
            server.wait_until_up()
            updates(server, run, 3)  # what is done for the first time takes longer
            show("idle", updates(server, run, count))
            generating = [server.generate_in_background(PROMPTS[0], 900) for _ in range(4)]
            said = updates(server, run, count)
            show("generating", said)
            for wait in generating:
                wait()
        finally:
            server.stop()
            run.close()


if __name__ == "__main__":
    main()
