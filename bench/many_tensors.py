"""The cost of many tensors: the same weights in few and in many. Part of ./dev bench python.

Few and many are measured in turn, so that a busy minute slows both. The best of several rounds counts.
"""

import os
import subprocess
import tempfile
import time
from pathlib import Path

import torch
import weightwire as ww

ELEMENTS = 80_000_000
COUNTS = (200, 20_000, 100_000)
CHANGED = 100  # one weight of this many, in each tensor
ROUNDS = 5
FOLLOW_ROUNDS = 3


class ManyTensors:
    """One run with the weights in `count` tensors."""

    def __init__(self, count: int, threads: int, folder: Path) -> None:
        self.count = count
        self.bucket = folder / f"{count}"
        size = ELEMENTS // count
        self._tensors = [torch.randn(size).mul_(0.02).to(torch.bfloat16) for _ in range(count)]
        model = {f"layers.{number}.weight": tensor for number, tensor in enumerate(self._tensors)}
        self.publisher = ww.Publisher(self.bucket, model, threads=threads, anchor_every=None, anchor_percent=None)
        self.publisher.publish()
        self.publisher.flush()
        self.best: dict[str, float] = {}

    def change(self) -> None:
        for tensor in self._tensors:
            bits = tensor.view(torch.int16)
            bits[torch.randint(0, len(bits), (max(1, len(bits) // CHANGED),))] += 1

    def publish(self, what: str, **options) -> None:
        start = time.perf_counter()
        ticket = self.publisher.publish(**options)
        self.best[what] = min(self.best.get(what, 1e9), time.perf_counter() - start)
        ticket.result()

    def round(self) -> None:
        self.change()
        self.publish("changed")
        self.publish("same")
        self.publish("background", background=True)

    def follow(self, program: str) -> None:
        """A first load into an empty mirror, by the command."""
        with tempfile.TemporaryDirectory(dir=self.bucket.parent) as folder:
            command = [program, "follow", str(self.bucket), f"{folder}/mirror", "--once"]
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            self.best["follow"] = min(self.best.get("follow", 1e9), time.perf_counter() - start)


def measure(threads: int) -> dict[int, dict[str, float]]:
    """{number of tensors: {what: seconds}}"""
    program = str(Path(os.environ["WW_BENCH"]).parent / "weightwire")
    with tempfile.TemporaryDirectory() as folder:
        models = [ManyTensors(count, threads, Path(folder)) for count in COUNTS]
        for _ in range(ROUNDS):
            for model in models:
                model.round()
        for model in models:
            model.publisher.close()
        for _ in range(FOLLOW_ROUNDS):
            for model in models:
                model.follow(program)
        return {model.count: model.best for model in models}


def rows(measured: dict[int, dict[str, float]]) -> list[str]:
    few, many, most = (measured[count] for count in COUNTS)
    lines = []
    for what, words, must in (
        ("changed", "`publish()`, 1 % changed", "≤ 4"),
        ("same", "`publish()`, nothing changed", "≤ 2"),
        ("follow", "`weightwire follow --once` into an empty mirror", "≤ 1.5"),
    ):
        lines.append(
            f"| {words}: {COUNTS[1]:,} tensors ({many[what] * 1e3:.0f} ms) against {COUNTS[0]} with the same "
            f"{ELEMENTS / 1e6:.0f} million weights ({few[what] * 1e3:.0f} ms) | {must} "
            f"| {many[what] / few[what]:.2f} |"
        )
    lines.append(
        f"| `publish(background=True)` of {COUNTS[1]:,} tensors | ≤ 5 ms | {many['background'] * 1e3:.1f} ms |"
    )
    lines.append(
        f"| {COUNTS[2]:,} tensors: `publish()` with 1 % changed, nothing changed, in the background; `follow --once` | "
        f"| {most['changed'] * 1e3:.0f}, {most['same'] * 1e3:.0f}, {most['background'] * 1e3:.1f}; "
        f"{most['follow'] * 1e3:.0f} ms |"
    )
    return lines
