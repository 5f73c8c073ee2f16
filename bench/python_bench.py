"""What publishing from Python costs, against what the core alone takes on the same data. Called by ./dev bench python.

The model is shaped like Qwen3-0.6B. Each step moves every fp32 weight a little, so that about 1 % of the bf16 weights
change, as optimizer steps do. Everything is on one machine, in one run; the best of several repetitions counts.
"""

import argparse
import ctypes
import json
import os
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import many_tensors
import torch
import weightwire as ww
from safetensors.torch import save_file
from training import Training

REPEAT = 9


def memory_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise KeyError(field)


def timed(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class Core:
    """The core alone on two states, measured as often as is asked for: a machine's memory is faster in one minute and
    slower in the next, so what is compared with it is measured between two looks at it."""

    def __init__(self, program: str, folder: str, old: dict, new: dict, threads: int) -> None:
        save_file(old, f"{folder}/old.safetensors")
        save_file(new, f"{folder}/new.safetensors")
        self._command = [program, "codec", f"{folder}/old.safetensors", f"{folder}/new.safetensors"]
        # torch takes ordinary pages for its tensors, so the states lie in such here too; the base copy has large ones.
        self._command += ["--ordinary-pages", "--threads", str(threads), "--repeat", "7", "--json"]

    def measure(self) -> dict:
        return json.loads(subprocess.run(self._command, check=True, capture_output=True).stdout)


class Memory:
    """Reads tensors where they lie as fast as the machine can, and does nothing else."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)
        self._read = ctypes.CDLL(Path(os.environ["WW_BENCH"]).parent / "libmemory_floor.so").weightwire_read_once
        self._read.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._read.restype = ctypes.c_uint64

    def read_once(self, tensors: dict) -> None:
        list(self._pool.map(lambda thread: self._read_share(tensors, thread), range(self._threads)))

    def _read_share(self, tensors: dict, thread: int) -> None:
        for tensor in tensors.values():
            begin, end = (tensor.nbytes * share // self._threads // 64 * 64 for share in (thread, thread + 1))
            self._read(tensor.data_ptr() + begin, end - begin)


def least(runs: list[dict], figure: str) -> float:
    return min(run[figure] for run in runs)


class Published(NamedTuple):
    seconds: float
    """Of publish(), the best."""
    read_s: float
    """To read the same tensors once, where they lie, with as many threads: the best, measured in turn with it."""
    extra: int
    """The most memory it took beyond what was there, in bytes."""
    changed: int


def publishing(training: Training, threads: int, states: list[dict], **options) -> Published:
    best, read_s, extra, changed = float("inf"), float("inf"), 0, 0
    memory = Memory(threads)
    with (
        tempfile.TemporaryDirectory() as bucket,
        ww.Publisher(bucket, threads=threads, anchor_every=None, anchor_percent=None, **options) as publisher,
    ):
        publisher.publish(0, model=states[0])
        publisher.flush()
        os.sync()  # the anchor's pages are not written to the disk beside what is measured
        for turn in range(REPEAT):
            if len(states) == 1:
                training.step()
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins here
            before = memory_kib("VmRSS")
            state = states[(turn + 1) % len(states)]
            read_s = min(read_s, timed(lambda state=state: memory.read_once(state)))
            start = time.perf_counter()
            ticket = publisher.publish(turn + 1, model=state)
            best = min(best, time.perf_counter() - start)
            extra = max(extra, memory_kib("VmHWM") - before)
            ticket.result()
            changed = ticket.status.changed_elements
    return Published(best, read_s, extra * 1024, changed)


def loop(training: Training, steps: int, publisher: ww.Publisher | None) -> tuple[float, float]:
    """Seconds of a training loop, and of them in publish()."""
    work = torch.randn(1500, 1500)
    held = 0.0
    start = time.perf_counter()
    for step in range(steps):
        for _ in range(8):
            work = torch.nn.functional.normalize(work @ work)
        training.step()
        if publisher is not None:
            held += timed(lambda step=step: publisher.publish(step + 1, model=training.master))
    return time.perf_counter() - start, held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=28, help="28 makes 1.2 GB of bf16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--many", action="store_true", help="only the rows about many tensors, with all cores")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.many:
        print("| what | must | is |\n|---|---|---|")
        print("\n".join(many_tensors.rows(many_tensors.measure(os.cpu_count() or 1))))
        return
    program = os.environ["WW_BENCH"]
    torch.set_num_threads(options.threads)

    training = Training(options.layers)
    old = training.published()
    training.step()
    new = training.published()
    elements = sum(tensor.numel() for tensor in old.values())
    with tempfile.TemporaryDirectory() as folder:
        core = Core(program, folder, old, new, options.threads)
        looks = [core.measure()]
        bf16 = publishing(training, options.threads, [old, new])
        looks.append(core.measure())
        del old, new
        fp32 = publishing(training, options.threads, [training.master], dtype=torch.bfloat16)
        looks.append(core.measure())
    changed = bf16.changed
    encode_s = least(looks[:2], "encode_s")
    # The base copy is the core's own, and lies in memory like that of the core's benchmark.
    read_fp32_s = fp32.read_s + least(looks[1:], "read1_s")

    steps = 6
    alone_s = min(loop(training, steps, None)[0] for _ in range(2))
    with tempfile.TemporaryDirectory() as bucket:
        # The first anchor, of the whole model, is not what is measured: the run is made before the bucket is slow.
        settings = {"dtype": torch.bfloat16, "threads": options.threads, "anchor_every": None, "anchor_percent": None}
        with ww.Publisher(bucket, **settings) as publisher:
            publisher.publish(0, model=training.master)
        publisher = ww.Publisher(bucket, max_bytes_per_second=10_000_000, **settings)
        with_s, held_s = loop(training, steps, publisher)
        waiting = publisher.status.pending_bytes
        publisher.flush()
        with_s, held_s = min((with_s, held_s), loop(training, steps, publisher))
        publisher.close()

    many = many_tensors.measure(options.threads)
    allowed = (128 << 20) + 16 * changed
    figures = {
        "elements": elements,
        "changed_ratio": changed / elements,
        "threads": options.threads,
        "core_encode_s": encode_s,
        "publish_s": bf16.seconds,
        "publish_over_core": bf16.seconds / encode_s,
        "read_fp32_and_base_s": read_fp32_s,
        "publish_fp32_s": fp32.seconds,
        "publish_fp32_over_read": fp32.seconds / read_fp32_s,
        "extra_bytes": bf16.extra,
        "extra_bytes_fp32": fp32.extra,
        "extra_bytes_allowed": allowed,
        "loop_s": alone_s,
        "loop_with_publishing_s": with_s,
        "loop_held_s": held_s,
        "loop_bytes_still_to_send": waiting,
        "many_tensors_s": many,
    }
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    mebibyte = 2**20
    print(f"{elements / 1e6:.0f} million elements, {changed / elements:.2%} changed, threads: {options.threads}\n")
    print("| what | must | is |")
    print("|---|---|---|")
    print(
        f"| `publish()` from bf16 ({bf16.seconds * 1e3:.0f} ms), against the core's encode ({encode_s * 1e3:.0f} ms) "
        f"| ≤ 1.1 | {bf16.seconds / encode_s:.2f} |"
    )
    print(
        f"| from fp32 ({fp32.seconds * 1e3:.0f} ms), against reading fp32 and base once ({read_fp32_s * 1e3:.0f} ms) "
        f"| ≤ 2.0 | {fp32.seconds / read_fp32_s:.2f} |"
    )
    print(
        f"| memory beyond the base copy, from bf16 / from fp32 | ≤ {allowed / mebibyte:.0f} MiB "
        f"| {bf16.extra / mebibyte:.0f} / {fp32.extra / mebibyte:.0f} MiB |"
    )
    print(
        f"| {steps} training steps, bucket at 10 MB/s: with publishing less without ({with_s:.2f} - {alone_s:.2f} s), "
        f"against the time in publish() ({held_s:.2f} s) | 1 | {(with_s - alone_s) / held_s:.2f} |"
    )
    print("\n".join(many_tensors.rows(many)))
    print(f"\n{waiting / mebibyte:.1f} MiB were still to be sent when the loop with publishing had ended.")


if __name__ == "__main__":
    main()
