"""A trainer and two inference servers that share nothing but a bucket. Called by ./dev demo, which builds first.

The publisher replays a real RL run, step by step, at its own pace; two followers keep mirrors of it; the second one
joins late. All are processes of their own, and the bucket is a directory. At the end the digests are compared.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import make_trace_slice as trace  # noqa: E402

WEIGHTWIRE = os.environ.get("WEIGHTWIRE", str(ROOT / "build/weightwire"))
FULL_TRACE = ROOT.parent / "shared/trace/tiny"
SECONDS_A_STEP = 0.5
SECOND_FOLLOWER_JOINS_AT = 8


def states():
    """Consecutive states of a real run, or of the slice in the repository: (step, state)."""
    if FULL_TRACE.exists():
        state = {
            name: (dtype, bits.copy()) for name, (dtype, bits) in trace.read(FULL_TRACE / "base.safetensors").items()
        }
        yield 0, state
        for path in sorted(FULL_TRACE.glob("deltas_*.safetensors")):
            deltas = trace.read(path)
            for number in sorted({key.split("/")[0] for key in deltas}):
                for name, (_, bits) in state.items():
                    if f"{number}/{name}/idx" in deltas:
                        bits.reshape(-1)[deltas[f"{number}/{name}/idx"][1]] = deltas[f"{number}/{name}/val"][1]
                yield int(number) + 1, state
        return
    # One real step, there and back.
    pair = [trace.read(ROOT / f"tests/data/tiny-47.{which}.safetensors") for which in ("old", "new")]
    for step in range(40):
        yield step, pair[step % 2]


def publish_all(folder: Path, seconds: float) -> None:
    """The trainer's process: writes a checkpoint a step and publishes it; a line of JSON for each version."""
    checkpoint = folder / "trainer"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text('{"model_type": "qwen3"}\n')
    begin = time.monotonic()
    for count, (step, state) in enumerate(states()):
        if time.monotonic() - begin > seconds:
            break
        trace.write(checkpoint / "model.safetensors", state)
        arguments = [
            "publish",
            folder / "bucket",
            checkpoint,
            "--step",
            step,
            "--state-dir",
            folder / "publisher",
            "--json",
        ]
        done = subprocess.run([WEIGHTWIRE, *map(str, arguments)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(done.stderr)
        print(json.dumps({**json.loads(done.stdout), "time": time.time()}), flush=True)
        pause = begin + (count + 1) * SECONDS_A_STEP - time.monotonic()
        if pause > 0:
            time.sleep(pause)


class Table:
    """What is known, as lines; drawn again and again on a terminal, line by line in a pipe."""

    HEAD = (
        f"{'version':>7}  {'step':>5}  {'changed':>8}  {'bytes':>10}  {'of model':>8}  {'lag of a':>9}  {'lag of b':>9}"
    )

    def __init__(self):
        self.lock = threading.Lock()
        self.versions = {}  # by number: what publish said
        self.held = {"a": {}, "b": {}}  # by version: when a follower had it
        self.started = set()
        self.drawn = 0  # lines on the terminal
        self.printed = -1
        self.live = sys.stdout.isatty()

    def lag(self, follower, version):
        """Seconds from the commit until the follower held it, or something newer."""
        times = [at for held, at in self.held[follower].items() if held >= version]
        return max(0.0, min(times) - self.versions[version]["time"]) if times else None

    def line(self, version):
        v = self.versions[version]
        lags = []
        for follower in "ab":
            lag = self.lag(follower, version)
            joined_later = version < min(self.held[follower], default=version)
            waits = "…" if follower in self.started else ""
            lags.append("" if joined_later else waits if lag is None else f"{lag:.2f} s")
        changed = "all" if version == 0 else f"{100 * v['changed'] / v['elements']:.2f} %"
        share = 100 * v["bytes"] / v["model_bytes"]
        what = f"{version:>7}  {v['step']:>5}  {changed:>8}  {v['bytes']:>10,}  {share:>6.2f} %"
        return f"{what}  {lags[0]:>9}  {lags[1]:>9}"

    def show(self, last=False):
        with self.lock:
            if self.live:
                rows = [self.line(version) for version in sorted(self.versions)[-16:]]
                text = "\n".join([self.HEAD, *rows])
                up = f"\x1b[{self.drawn}F\x1b[J" if self.drawn else ""
                print(up + text, flush=True)
                self.drawn = 1 + len(rows)
                return
            if not self.drawn and self.versions:
                print(self.HEAD)
                self.drawn = 1
            for version in sorted(self.versions):
                done = self.lag("a", version) is not None and (self.lag("b", version) is not None or not self.held["b"])
                if version > self.printed and (done or last):
                    print(self.line(version), flush=True)
                    self.printed = version
                elif version > self.printed:
                    break


def read_lines(process, take):
    def read():
        for line in process.stdout:
            take(json.loads(line))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def main(seconds: float) -> int:
    with tempfile.TemporaryDirectory(prefix="weightwire-demo-") as name:
        folder = Path(name)
        whole = FULL_TRACE.exists()
        what = "a real RL run of 6.4 M weights" if whole else "a slice of a real RL step, there and back"
        print(f"bucket: a directory; trainer: {what}")
        table = Table()
        processes, threads = [], []
        finished = threading.Event()

        def published(event):
            with table.lock:
                table.versions[event["version"]] = event
            table.show()

        def follow(follower):
            command = [
                WEIGHTWIRE,
                "follow",
                str(folder / "bucket"),
                str(folder / follower),
                "--wait-for-run",
                "--json",
                "--poll-interval",
                "200ms",
                "--name",
                follower,
            ]
            # Not to the terminal, which is the table's.
            with open(folder / f"{follower}.errors", "w") as errors:
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)

            def took(event):
                if event["event"] == "version":
                    with table.lock:
                        table.held[follower][event["version"]] = time.time()
                    table.show()

            table.started.add(follower)
            processes.append(process)
            threads.append(read_lines(process, took))

        try:
            publisher = subprocess.Popen(
                [sys.executable, __file__, "--publisher", str(folder), "--seconds", str(seconds)],
                stdout=subprocess.PIPE,
                text=True,
            )
            publishing = read_lines(publisher, published)
            subprocess.run([WEIGHTWIRE, "init", str(folder / "bucket")], check=True, stdout=subprocess.DEVNULL)
            follow("a")
            while publisher.poll() is None and len(table.versions) < SECOND_FOLLOWER_JOINS_AT:
                finished.wait(0.1)
            follow("b")
            publishing.join()
            if publisher.wait() != 0:
                return 1
            newest = max(table.versions)
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and any(table.lag(f, newest) is None for f in "ab"):
                finished.wait(0.1)
            table.show(last=True)
        finally:
            for process in processes:
                process.send_signal(signal.SIGINT)
            for process in processes:
                process.wait()
            for errors in sorted(folder.glob("*.errors")):
                sys.stderr.write(errors.read_text())
        return compare(folder, table)


def compare(folder: Path, table: Table) -> int:
    def digest(directory):
        return json.loads(subprocess.check_output([WEIGHTWIRE, "digest", str(folder / directory), "--json"]))["digest"]

    print()
    digests = {name: digest(name) for name in ("trainer", "a", "b")}
    for name, state in digests.items():
        print(f"{name if name == 'trainer' else 'mirror ' + name:<9} {state}")
    if len(set(digests.values())) != 1:
        print("demo: a mirror differs from the trainer's weights", file=sys.stderr)
        return 1
    deltas = [v for v in table.versions.values() if v["version"] > 0]
    sent, whole = sum(v["bytes"] for v in deltas), sum(v["model_bytes"] for v in deltas)
    if deltas:
        print(f"Equal, bit for bit. {len(deltas)} versions took {sent:,} bytes as deltas;", end=" ")
        print(f"as checkpoints they would have taken {whole:,}.")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--publisher", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=22, help="how long the publisher goes on")
    given = parser.parse_args()
    if given.publisher:
        publish_all(given.publisher, given.seconds)
    else:
        sys.exit(main(given.seconds))
