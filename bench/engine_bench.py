"""What an update costs a real vLLM server that follows by itself. Called by ./dev bench engine.

A small model with the layout that a GPU has, on CPUs; each version changes about 84,000 elements in all of its tensors.
Measured while the server has nothing else to do, and while it generates. With --large, a model shaped like Qwen3-0.6B,
kept in fp32 and published as bf16, of which each version changes about 1.3 %; the server has nothing else to do.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
import weightwire as ww
from conftest import PROMPTS, WAIT_SECONDS, Server, TrainedRun, make_import_path, make_model

SHAPE = {
    "vocab_size": 4000,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
LARGE_SHAPE = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
SHARE = 43


class LargeRun:
    """A run of a model in fp32, whose steps move each weight there and back again."""

    def __init__(self, folder: Path) -> None:
        self.bucket = folder / "bucket"
        self.mirror = folder / "mirror"
        torch.manual_seed(0)
        self._model = make_model(True, LARGE_SHAPE)
        self._publisher = ww.Publisher(
            self.bucket, self._model, dtype=torch.bfloat16, anchor_every=None, anchor_percent=None
        )
        self._rate = 2.5e-7
        self.sent = self._publisher.publish(0).result(WAIT_SECONDS)
        with ww.Follower(self.bucket, self.mirror) as follower:
            follower.poll().apply()

    def step(self) -> float:
        """Publishes a step; when publish() returned."""
        with torch.no_grad():
            for parameter in self._model.parameters():
                parameter += self._rate
        self._rate = -self._rate
        ticket = self._publisher.publish()
        returned = time.perf_counter()
        self.sent = ticket.result(WAIT_SECONDS)
        return returned

    def close(self) -> None:
        self._publisher.close()


def large(folder: Path, count: int) -> None:
    run = LargeRun(folder)
    server = Server(
        run.mirror,
        make_import_path(folder / "path"),
        folder / "log",
        arguments=("--gpu-memory-utilization", "0.2"),
        WEIGHTWIRE_RUN=str(run.bucket),
        WEIGHTWIRE_POLL_INTERVAL="50ms",
        VLLM_PLUGINS="weightwire,plain_layout",
    )
    try:
        server.wait_until_up()
        said = []
        for turn in range(count + 1):
            returned = run.step()
            status = server.wait_for_version(run.sent.version)
            if turn > 0:  # what is done for the first time takes longer
                said.append({**status["last_update"], "seen_seconds": time.perf_counter() - returned})
        share = run.sent.changed_elements / run.sent.elements
        print(f"{run.sent.elements:,} weights, {share:.2%} changed, {run.sent.delta_bytes:,} bytes")
        show("idle", said, "from the return of publish() to the version seen")
    finally:
        server.stop()
        run.close()


def updates(server: Server, run: TrainedRun, count: int) -> list[dict]:
    """What the server says of each, and how long it took from publish() to the version it says it holds."""
    said = []
    for _ in range(count):
        start = time.perf_counter()
        version = run.step(share=SHARE)
        status = server.wait_for_version(version)
        said.append({**status["last_update"], "seen_seconds": time.perf_counter() - start})
    return said


def show(name: str, said: list[dict], seen: str = "from a step of the trainer to the version seen") -> None:
    elements = statistics.median(update["elements"] for update in said)
    print(f"{name}: {len(said)} updates of {elements:,.0f} elements")
    for key, what in (
        ("commit_seconds", "in the engine's loop"),
        ("write_seconds", "of it, writing and reading back"),
        ("prepare_seconds", "preparing, while steps run"),
        ("mirror_seconds", "moving the mirror, while steps run"),
        ("seen_seconds", seen),
    ):
        times = sorted(1e3 * update[key] for update in said)
        print(f"  {what:48} median {statistics.median(times):8.2f} ms   worst {times[-1]:8.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--large", action="store_true", help="a model of 1.2 GB (10 GB of memory)")
    options = parser.parse_args()
    count = options.updates
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "path").mkdir()
        if options.large:
            large(folder, count)
            return
        run = TrainedRun(folder, shape=SHAPE)
        server = Server(
            run.make_mirror(),
            make_import_path(folder / "path"),
            folder / "log",
            WEIGHTWIRE_RUN=str(run.bucket),
            WEIGHTWIRE_POLL_INTERVAL="50ms",
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
