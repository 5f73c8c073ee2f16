"""What publishing from Python costs, against what the core alone takes on the same data. Called by ./dev bench python.

The model is shaped like Qwen3-0.6B. Each step moves every fp32 weight a little, so that about 1 % of the bf16 weights
change, as optimizer steps do. Everything is on one machine, in one run; the best of several repetitions counts.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

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


def core_alone(command: str, old: dict, new: dict, threads: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        save_file(old, f"{folder}/old.safetensors")
        save_file(new, f"{folder}/new.safetensors")
        arguments = [f"{folder}/old.safetensors", f"{folder}/new.safetensors", "--threads", str(threads)]
        # torch takes ordinary pages for its tensors, so the states lie in such here too; the base copy has large ones.
        arguments += ["--ordinary-pages", "--repeat", "7", "--json"]
        ran = subprocess.run([command, "bench", "codec", *arguments], check=True, capture_output=True)
    return json.loads(ran.stdout)


def publishing(training: Training, threads: int, states: list[dict], **options) -> tuple[float, int, int]:
    """The best time of publish(), the most memory it took beyond what was there, and how many elements changed."""
    best, extra, changed = float("inf"), 0, 0
    with (
        tempfile.TemporaryDirectory() as bucket,
        ww.Publisher(bucket, threads=threads, anchor_every=0, anchor_percent=0, **options) as publisher,
    ):
        publisher.publish(0, states[0])
        publisher.drain()
        os.sync()  # the anchor's pages are not written to the disk beside what is measured
        for turn in range(REPEAT):
            if len(states) == 1:
                training.step()
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins here
            before = memory_kib("VmRSS")
            state = states[(turn + 1) % len(states)]
            start = time.perf_counter()
            ticket = publisher.publish(turn + 1, state)
            best = min(best, time.perf_counter() - start)
            extra = max(extra, memory_kib("VmHWM") - before)
            ticket.wait()
            changed = ticket.stats.changed
    return best, extra * 1024, changed


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
            held += timed(lambda step=step: publisher.publish(step + 1, training.master))
    return time.perf_counter() - start, held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=28, help="28 makes 1.2 GB of bf16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    command = os.environ["WEIGHTWIRE"]
    torch.set_num_threads(options.threads)

    training = Training(options.layers)
    old = training.published()
    training.step()
    new = training.published()
    elements = sum(tensor.numel() for tensor in old.values())
    core = core_alone(command, old, new, options.threads)
    bf16_s, bf16_extra, changed = publishing(training, options.threads, [old, new])
    del old, new
    fp32_s, fp32_extra, _ = publishing(training, options.threads, [training.master], dtype=torch.bfloat16)
    # fp32 has twice the bytes of the new state as bf16.
    read_fp32_s = 2 * core["read_new_s"] + core["read1_s"]

    steps = 6
    alone_s = min(loop(training, steps, None)[0] for _ in range(2))
    with tempfile.TemporaryDirectory() as bucket:
        # The first anchor, of the whole model, is not what is measured: the run is made before the bucket is slow.
        settings = {"dtype": torch.bfloat16, "threads": options.threads, "anchor_every": 0, "anchor_percent": 0}
        with ww.Publisher(bucket, **settings) as publisher:
            publisher.publish(0, training.master)
        publisher = ww.Publisher(bucket, bytes_per_second=10_000_000, **settings)
        with_s, held_s = loop(training, steps, publisher)
        waiting = publisher.stats.bytes_waiting
        publisher.drain()
        with_s, held_s = min((with_s, held_s), loop(training, steps, publisher))
        publisher.close()

    allowed = (128 << 20) + 16 * changed
    figures = {
        "elements": elements,
        "changed_share": changed / elements,
        "threads": options.threads,
        "core_encode_s": core["encode_s"],
        "publish_s": bf16_s,
        "publish_over_core": bf16_s / core["encode_s"],
        "read_fp32_and_base_s": read_fp32_s,
        "publish_fp32_s": fp32_s,
        "publish_fp32_over_read": fp32_s / read_fp32_s,
        "extra_bytes": bf16_extra,
        "extra_bytes_fp32": fp32_extra,
        "extra_bytes_allowed": allowed,
        "loop_s": alone_s,
        "loop_with_publishing_s": with_s,
        "loop_held_s": held_s,
        "loop_bytes_still_to_send": waiting,
    }
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    mebibyte = 2**20
    print(f"{elements / 1e6:.0f} million elements, {changed / elements:.2%} changed, threads: {options.threads}\n")
    print("| what | must | is |")
    print("|---|---|---|")
    print(
        f"| `publish()` from bf16 ({bf16_s * 1e3:.0f} ms), against the core's encode ({core['encode_s'] * 1e3:.0f} ms) "
        f"| ≤ 1.1 | {bf16_s / core['encode_s']:.2f} |"
    )
    print(
        f"| from fp32 ({fp32_s * 1e3:.0f} ms), against reading fp32 and base once ({read_fp32_s * 1e3:.0f} ms) "
        f"| ≤ 2.0 | {fp32_s / read_fp32_s:.2f} |"
    )
    print(
        f"| memory beyond the base copy, from bf16 / from fp32 | ≤ {allowed / mebibyte:.0f} MiB "
        f"| {bf16_extra / mebibyte:.0f} / {fp32_extra / mebibyte:.0f} MiB |"
    )
    print(
        f"| {steps} training steps, bucket at 10 MB/s: with publishing less without ({with_s:.2f} - {alone_s:.2f} s), "
        f"against the time in publish() ({held_s:.2f} s) | 1 | {(with_s - alone_s) / held_s:.2f} |"
    )
    print(f"\n{waiting / mebibyte:.1f} MiB were still to be sent when the loop with publishing had ended.")


if __name__ == "__main__":
    main()
