"""Whether the demo's model learns: the demo once for each of several seeds, each with a model and games of its own.
Called by ./dev bench demo; options that are not named below go to the demo."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

DEMO = Path(__file__).resolve().parents[1] / "demo/wordle_demo.py"


def run_demo(seed: int, options: list[str], out: Path) -> dict:
    """What it says at its end."""
    command = [sys.executable, str(DEMO), "--seed", str(seed), "--out", str(out), *options]
    with (out.with_suffix(".log")).open("w+") as log:
        status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
        if status != 0:
            log.seek(0)
            sys.exit(f"the demo with seed {seed} ended with status {status}:\n{log.read()[-4000:]}")
    return json.loads((out / "result.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench demo", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="how many; default: 3")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps of each; default: 60")
    arguments, options = parser.parse_known_args()
    print(f"{'seed':>4}  {'reward before':>13}  {'after':>6}  {'solved before':>13}  {'after':>6}  {'gain':>6}  took")
    gains = []
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory() as folder:
            result = run_demo(seed, ["--steps", str(arguments.steps), *options], Path(folder) / "out")
        before, after = result["before"], result["after"]
        gains.append(after["reward"] - before["reward"])
        print(
            f"{seed:>4}  {before['reward']:>13.3f}  {after['reward']:>6.3f}  {before['solved']:>13.1%}"
            f"  {after['solved']:>6.1%}  {gains[-1]:>+6.3f}  {result['seconds']:>2.0f} s",
            flush=True,
        )
    error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
    print(f"the reward rises by {statistics.mean(gains):.3f} (standard error over {len(gains)} seeds: {error:.3f})")
    print(f"{result['setting'].partition('; seed')[0]}; {result['games']} games before and after")


if __name__ == "__main__":
    main()
