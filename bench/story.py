"""The whole way, from an optimizer step to an exact copy elsewhere, beside shipping the full model the same way. Called
by ./dev bench story.

A trainer with fp32 weights of a model shaped like Qwen3-0.6B publishes every step as bf16; `weightwire follow`, a
process of its own, keeps a mirror. Measured are the bytes of a step, how long publishing holds the trainer, and the
time until the mirror has the version, readable and crash-safe. The trainer is held by a publish() that returns when the
weights have been read, and by one whose optimizer waits for that (optimizer=) while products of matrices, on all cores,
stand for the next forward and backward pass. Shipping the full model is a run of one version, loaded into an empty
mirror by the same code.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
import weightwire as ww
from s3_admin import administer
from training import Training

COMMAND = os.environ.get("WEIGHTWIRE", "weightwire")
POLL = "20ms"


class Mirror:
    """`weightwire follow` as a process."""

    def __init__(self, run: str, directory: Path) -> None:
        self.directory = directory
        self._process = subprocess.Popen(
            [COMMAND, "follow", run, directory, "--wait-for-run", "--json", "--poll-interval", POLL, "--name", "story"],
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, version: int) -> dict:
        """What it said when it had the version."""
        for line in self._process.stdout:
            event = json.loads(line)
            if event["event"] == "retrying":
                raise RuntimeError(event["message"])
            if event["event"] == "version" and event["version"] >= version:
                return event
        raise RuntimeError("the follower has ended")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def digest(directory: Path) -> str:
    ran = subprocess.run([COMMAND, "digest", directory, "--json"], check=True, capture_output=True, text=True)
    return json.loads(ran.stdout)["digest"]


def reading_once(training: Training) -> float:
    """Seconds that torch takes to look at all weights, with as many threads as it likes."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for tensor in training.master.values():
            tensor.view(torch.int32).max()
        best = min(best, time.perf_counter() - start)
    return best


class Compute:
    """What a trainer does between two steps: about a second of it."""

    def __init__(self) -> None:
        self._matrix = torch.randn(1024, 1024)
        self._products = 1
        while (seconds := self()) < 0.5:
            self._products *= 2
        self._products = int(self._products / seconds)

    def __call__(self) -> float:
        """Seconds."""
        start = time.perf_counter()
        for _ in range(self._products):
            self._matrix @ self._matrix
        return time.perf_counter() - start


class Steps(torch.optim.Optimizer):
    """The training's steps, as an optimizer takes them."""

    def __init__(self, training: Training) -> None:
        super().__init__(list(training.master.values()), {})
        self._training = training

    def step(self) -> None:
        self._training.step()


def full_model(training: Training, run: str, folder: Path) -> dict:
    """A run of one version, into an empty mirror."""
    start = time.perf_counter()
    with ww.Publisher(run, training.master, dtype=torch.bfloat16) as publisher:
        publisher.publish(0)
        held = time.perf_counter() - start
        mirror = Mirror(run, folder / "full")
        try:
            mirror.wait_for(0)
            seconds = time.perf_counter() - start - held
        finally:
            mirror.close()
        sent = publisher.status.bytes_sent
    shutil.rmtree(folder / "full")
    return {"bytes": sent, "held_s": held, "to_mirror_s": seconds}


def deltas(training: Training, run: str, folder: Path, steps: int) -> tuple[list[dict], bool]:
    """Each step's figures, and whether the mirror is exact at the end."""
    figures = []
    compute, optimizer = Compute(), Steps(training)
    with ww.Publisher(
        run, training.master, dtype=torch.bfloat16, anchor_every=None, anchor_percent=None, optimizer=optimizer
    ) as publisher:
        publisher.publish(0)
        publisher.flush()
        mirror = Mirror(run, folder / "mirror")
        try:
            mirror.wait_for(0)
            optimizer.step()
            for step in range(1, steps + 1):
                start = time.perf_counter()
                ticket = publisher.publish(2 * step - 1, background=False)
                held = time.perf_counter() - start
                event = mirror.wait_for(2 * step - 1)
                seconds = time.perf_counter() - start - held
                status = ticket.result()
                alone = compute()
                optimizer.step()
                held_before = publisher.status.blocked_seconds
                publisher.publish(2 * step)
                beside = compute()
                optimizer.step()
                beside_held = publisher.status.blocked_seconds - held_before
                event = mirror.wait_for(2 * step)
                figures.append(
                    {
                        "bytes": status.delta_bytes,
                        "changed": status.changed_elements,
                        "held_s": held,
                        "to_mirror_s": seconds,
                        "held_beside_s": beside_held,
                        "compute_s": alone,
                        "compute_beside_s": beside,
                    }
                )
            publisher.publish(2 * steps + 1)
            event = mirror.wait_for(2 * steps + 1)
        finally:
            mirror.close()
    state = ww.load(run, framework="torch")
    exact = all(
        torch.equal(tensor.to(torch.bfloat16).view(torch.int16), state[name].view(torch.int16))
        for name, tensor in training.master.items()
    )
    return figures, exact and digest(folder / "mirror") == event["digest"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=28, help="28 makes 1.2 GB of bf16")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    training = Training(options.layers)
    elements = sum(tensor.numel() for tensor in training.master.values())
    read_s = reading_once(training)
    buckets = {"directory": None}
    if "WW_TEST_S3_ENDPOINT" in os.environ:
        buckets["Ceph RGW"] = "s3://story"
        os.environ["AWS_ENDPOINT_URL"] = os.environ["WW_TEST_S3_ENDPOINT"]
        os.environ["AWS_ACCESS_KEY_ID"] = os.environ["WW_TEST_S3_ACCESS_KEY"]
        os.environ["AWS_SECRET_ACCESS_KEY"] = os.environ["WW_TEST_S3_SECRET_KEY"]
        administer("PUT", "story")
    results = {}
    for name, bucket in buckets.items():
        with tempfile.TemporaryDirectory() as folder:
            place = bucket or folder
            full = full_model(training, f"{place}/full-run", Path(folder))
            if bucket is None:
                shutil.rmtree(f"{place}/full-run")
            steps, exact = deltas(training, f"{place}/run", Path(folder), options.steps)
        middle = {key: statistics.median(step[key] for step in steps) for key in steps[0]}
        results[name] = {"full": full, "delta": middle, "exact": exact, "steps": len(steps)}
    if options.json:
        print(json.dumps({"elements": elements, "read_once_s": read_s, "buckets": results}, indent=2))
        return
    print(f"{elements / 1e6:.0f} million weights, kept in fp32, published as bf16; medians of {options.steps} steps.")
    print(f"To read them once takes torch {read_s:.2f} s with {torch.get_num_threads()} threads.\n")
    print(
        "| bucket | what is sent | changed | bytes | trainer held | with optimizer= | then to an exact mirror | exact |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, result in results.items():
        full, delta = result["full"], result["delta"]
        print(
            f"| {name} | the full model | | {full['bytes'] / 1e6:.0f} MB | {full['held_s']:.2f} s | "
            f"| {full['to_mirror_s']:.2f} s | |"
        )
        print(
            f"| {name} | deltas | {delta['changed'] / elements:.2%} | {delta['bytes'] / 1e6:.2f} MB "
            f"| {delta['held_s']:.2f} s | {delta['held_beside_s']:.3f} s | {delta['to_mirror_s']:.2f} s "
            f"| {'yes' if result['exact'] else 'NO'} |"
        )
    print()
    for name, result in results.items():
        delta = result["delta"]
        print(
            f"{name}: computing takes {delta['compute_s']:.2f} s, and {delta['compute_beside_s']:.2f} s while the same "
            "cores read the weights."
        )
    if not all(result["exact"] for result in results.values()):
        raise SystemExit("a mirror is not exact")


if __name__ == "__main__":
    main()
