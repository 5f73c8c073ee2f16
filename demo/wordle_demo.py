"""A model learns Wordle, and its weights go through a bucket only.

Each of these is a process: the environment, the trainer (TRL), two servers that follow the run, and a load balancer.
Called by ./dev demo, which installs and builds first.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "tools")]

from wordle import report  # noqa: E402
from wordle.demo import BUCKETS, S3_ENDPOINT, Demo  # noqa: E402
from wordle.model import STEPS as WARM_STEPS  # noqa: E402
from wordle.processes import Failed, Processes  # noqa: E402


def write_out(result, out):
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    picture = "reward.png"
    try:
        report.plot(result, out / picture)
    except ImportError:
        picture = None
        print("no plot: matplotlib is not installed")
    (out / "index.html").write_text(report.page(result, picture))
    print(f"report: {out / 'index.html'}")


def stop(number, frame):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__)
    parser.add_argument("--engine", choices=["vllm", "torch"], default="vllm", help="what serves; default: vllm")
    parser.add_argument(
        "--store", choices=[*BUCKETS], help="where the bucket is; default: directory; with --chaos s3, a Ceph RGW"
    )
    parser.add_argument(
        "--chaos", action="store_true", help="kill the trainer, a server and a follower; with s3, let the bucket fail"
    )
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps; default: 100")
    parser.add_argument("--lr", type=float, default=1e-4, help="learning rate; default: 1e-4")
    parser.add_argument("--model", help="a Hugging Face directory that knows the game, instead of one made on the spot")
    parser.add_argument("--words", type=int, default=48, help="how many words there are; default: 48")
    parser.add_argument("--guesses", type=int, default=3, help="guesses a game; default: 3")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--games", type=int, default=512, help="games of each evaluation; default: 512")
    parser.add_argument("--warm-steps", type=int, default=WARM_STEPS, help=f"warm start; default: {WARM_STEPS} steps")
    parser.add_argument("--out", type=Path, default=HERE / "out", help="where the report goes; default: demo/out")
    parser.add_argument("--keep", type=Path, help="a new directory for bucket, mirrors and logs, which then stays")
    options = parser.parse_args()
    options.store = options.store or ("s3" if options.chaos else "directory")
    if options.store == "s3" and S3_ENDPOINT not in os.environ:
        with_rgw = str(ROOT / "tests/store/with_rgw")
        os.execv(with_rgw, [with_rgw, sys.executable, __file__, *sys.argv[1:]])
    signal.signal(signal.SIGTERM, stop)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="weightwire-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with Processes(folder) as processes:
            result = Demo(options, folder.resolve(), processes).run()
        print()
        for line in report.lines(result):
            print(line)
        write_out(result, options.out)
        return 0 if result["exact"] else 1
    except Failed as failed:
        print(f"demo: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
