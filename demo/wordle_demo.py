"""A model learns Wordle, and its weights go through a bucket only.

Processes of their own: the environment, the trainer (TRL), two servers that follow by themselves, and a balancer before
them. Called by ./dev demo, which installs and builds first.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "tools")]

import entry_points  # noqa: E402
from s3_admin import administer  # noqa: E402
from wordle import report  # noqa: E402
from wordle.model import STEPS as WARM_STEPS  # noqa: E402
from wordle.play import evaluate  # noqa: E402
from wordle.processes import Failed, Processes, free_port, get  # noqa: E402

WEIGHTWIRE = os.environ.get("WEIGHTWIRE", str(ROOT / "build/weightwire"))
PACKAGE = os.environ.get("WEIGHTWIRE_PACKAGE", str(ROOT / "build/python"))
EVALUATION_TASKS = 10**9  # where training does not come
SERVERS = ("server a", "server b")
FOLLOWER = "follower"  # of a mirror alone; there to be killed
UP_SECONDS = 300
COLUMNS = (
    f"{'step':>5}  {'reward':>6}  {'changed':>8}  {'bytes':>9}  {'of model':>8}  {'held for':>8}"
    f"  {'a: version, lag, pause':>24}  {'b: version, lag, pause':>24}"
)
ROWS = 16
S3_ENDPOINT = "WEIGHTWIRE_TEST_S3_ENDPOINT"  # as tests/store/with_rgw says where it is
BUCKETS = {"directory": "the bucket a directory", "s3": "the bucket in a Ceph RGW"}
SAVE_STEPS = 5  # between checkpoints that a killed trainer goes on from
BUCKET_FAILS_SECONDS = 8
POLL_SECONDS = 0.2


class Table:
    """Steps as they come: drawn again and again on a terminal, line by line in a pipe."""

    def __init__(self):
        self.steps = []
        self.model_bytes = 0
        self.status = {name: {} for name in SERVERS}
        self.pauses = {name: {} for name in SERVERS}  # by version
        self._drawn = 0
        self._live = sys.stdout.isatty()

    def take_status(self, name, status):
        self.status[name] = status
        update = status.get("last_update")
        if update:
            self.pauses[name][update["version"]] = update["seconds_in_loop"]

    def take_step(self, said):
        step = {
            "step": said["step"],
            "reward": said["reward"],
            "version": said["weightwire/version"],
            "bytes": said["weightwire/bytes"] or 0,
            "deltas": said["weightwire/deltas"] or 0,  # those that were still being read come with the next step
            "changed": said["weightwire/changed_share"] or 0.0,
            "publish_s": said["weightwire/publish_seconds"] or 0.0,
            "staleness": said["sample/staleness_mean"],
        }
        step["servers"] = "  ".join(self._server(name) for name in SERVERS)
        self.steps.append(step)
        self.show()

    def _server(self, name):
        status = self.status[name]
        if not status:
            return f"{'does not answer':>24}"
        pause = status.get("last_update") or {}
        milliseconds = f"{1e3 * pause['seconds_in_loop']:.1f} ms" if pause else "-"
        return f"{status['version']:>10} {status.get('versions_behind') or 0:>3} {milliseconds:>9}"

    def say(self, text):
        """A line between the steps."""
        if self._live and self._drawn:
            print(f"\x1b[{self._drawn}F\x1b[J", end="")
            self._drawn = 0
        print(f"-- {text}", flush=True)

    def _line(self, step):
        cost = f"{'-':>8}  {'-':>9}  {'-':>8}"
        if step["deltas"]:
            size = step["bytes"] // step["deltas"]
            cost = f"{100 * step['changed']:>6.2f} %  {size:>9,}  {100 * size / max(1, self.model_bytes):>6.2f} %"
        held = f"{1e3 * step['publish_s']:>5.0f} ms"
        return f"{step['step']:>5}  {step['reward']:>6.3f}  {cost}  {held}  {step['servers']}"

    def show(self):
        if not self._live:
            if len(self.steps) == 1:
                print(COLUMNS)
            print(self._line(self.steps[-1]), flush=True)
            return
        rows = [COLUMNS, *(self._line(step) for step in self.steps[-ROWS:])]
        up = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""
        print(up + "\n".join(rows), flush=True)
        self._drawn = len(rows)


class Chaos:
    """What goes wrong, and when: once each, at steps that the seed chooses."""

    BUCKET = "the bucket"

    def __init__(self, options, closed):
        chance = random.Random(options.seed)
        victims = ["trainer", FOLLOWER, chance.choice(SERVERS), *([self.BUCKET] if options.store == "s3" else [])]
        chance.shuffle(victims)
        part = options.steps / (len(victims) + 1)
        self._left = [(int(part * (i + chance.uniform(0.5, 1))), victim) for i, victim in enumerate(victims)]
        self._closed = closed
        self._open_at = None

    def turn(self, steps):
        """Whom it hits now, if anyone. The bucket fails by itself; others are to be killed, and started again."""
        if self._open_at is not None and time.monotonic() > self._open_at:
            self.end()
        if not self._left or not steps or steps[-1]["step"] < self._left[0][0]:
            return None
        _, victim = self._left.pop(0)
        if victim == self.BUCKET:
            self._closed.touch()
            self._open_at = time.monotonic() + BUCKET_FAILS_SECONDS
        return victim

    def end(self):
        self._closed.unlink(missing_ok=True)
        self._open_at = None


class Demo:
    def __init__(self, options, folder, processes):
        self._options = options
        self._folder = folder
        self._processes = processes
        self._variables_of_store = {}
        self._run = str(folder / "bucket") if options.store == "directory" else self._open_s3()
        self._chaos = Chaos(options, self._closed) if options.chaos else None
        self._model = str(Path(options.model).resolve()) if options.model else str(folder / "model")
        self._urls = {name: f"http://127.0.0.1:{free_port()}" for name in SERVERS}
        self._environment_url = f"http://127.0.0.1:{free_port()}"
        self._balancer_url = f"http://127.0.0.1:{free_port()}"
        self._said = []  # by the trainer; a thread of its own reads it, and this one draws
        self._end = {}
        self._table = Table()

    def _python(self, module, *arguments):
        return [sys.executable, "-m", module, *map(str, arguments)]

    def _variables(self, **more):
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([PACKAGE, str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONUNBUFFERED": "1",
            "WEIGHTWIRE_DEMO": str(self._folder),  # whose process it is
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TRL_EXPERIMENTAL_SILENCE": "1",
            **self._variables_of_store,
            **more,
        }

    def _port(self, url):
        return url.rpartition(":")[2]

    def _open_s3(self):
        """A new bucket of the service that was started for this."""
        endpoint = os.environ[S3_ENDPOINT]
        key, secret = (os.environ[f"WEIGHTWIRE_TEST_S3_{name}_KEY"] for name in ("ACCESS", "SECRET"))
        administer("PUT", "wordle")
        if self._options.chaos:
            port = free_port()
            to = ["--to", endpoint.removeprefix("http://"), "--closed", self._closed]
            self._processes.start("gate", self._python("wordle.gate", "--port", port, *to), self._variables())
            endpoint = f"http://127.0.0.1:{port}"
        self._variables_of_store = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
        }
        return "s3://wordle/run"

    @property
    def _closed(self):
        """While this file is there, the bucket fails."""
        return self._folder / "closed"

    def run(self):
        start = time.monotonic()
        options = self._options
        self._processes.start(
            "environment",
            self._python(
                *("wordle.service", "--port", self._port(self._environment_url)),
                *("--words", options.words, "--guesses", options.guesses),
            ),
            self._variables(),
        )
        what = "publishing" if options.model else "making a model, and warm-starting it on games of a mediocre player"
        print(f"{what} …", flush=True)
        begin = time.monotonic()
        self._processes.start(
            "model",
            self._python(
                *("wordle.model", self._model, "--run", self._run, "--words", options.words),
                *("--guesses", options.guesses, "--seed", options.seed, "--steps", options.warm_steps),
            ),
            self._variables(),
        )
        self._processes.finish("model")
        print(f"… took {time.monotonic() - begin:.0f} s", flush=True)
        begin = time.monotonic()
        print(f"starting two servers ({options.engine}) from the bucket …", flush=True)
        for name in SERVERS:
            self._start_server(name)
        self._processes.start(
            "balancer",
            self._python("wordle.balancer", "--port", self._port(self._balancer_url), *self._urls.values()),
            self._variables(),
        )
        for name in SERVERS:
            self._processes.wait_until_up(name, f"{self._urls[name]}/weightwire/status", UP_SECONDS)
        self._processes.wait_until_up("balancer", f"{self._balancer_url}/v1/models", UP_SECONDS)
        print(f"… took {time.monotonic() - begin:.0f} s", flush=True)
        if self._chaos:
            self._start(FOLLOWER)
        before = self._evaluate("before")
        self._train()
        self._wait_for_servers()
        after = self._evaluate("after")
        return self._result(before, after, time.monotonic() - start)

    def _start(self, name):
        """A process that may be killed; it goes on from what it has on its disk."""
        if name == "trainer":
            self._start_trainer()
        elif name == FOLLOWER:
            command = [WEIGHTWIRE, "follow", self._run, self._mirror(FOLLOWER), "--poll", f"{1e3 * POLL_SECONDS:.0f}ms"]
            self._processes.start(FOLLOWER, command, self._variables())
        else:
            self._start_server(name)

    def _mirror(self, name):
        return self._folder / f"mirror of {name}".replace(" ", "-")

    def _start_server(self, name):
        mirror = self._mirror(name)
        if not mirror.exists():
            subprocess.run(
                [WEIGHTWIRE, "follow", self._run, mirror, "--once"],
                **{"check": True, "stdout": subprocess.DEVNULL, "env": self._variables()},
            )
        port = self._port(self._urls[name])
        if self._options.engine == "torch":
            command = self._python(
                "wordle.torch_engine", "--port", port, "--run", self._run, "--name", self._model, mirror
            )
            self._processes.start(name, command, self._variables())
            return
        command = [
            *(Path(sys.executable).parent / "vllm", "serve", mirror, "--port", port, "--host", "127.0.0.1"),
            *("--served-model-name", self._model, "--dtype", "bfloat16", "--max-model-len", 256, "--enforce-eager"),
            *("--gpu-memory-utilization", "0.05", "--disable-uvicorn-access-log"),
        ]
        variables = self._variables(
            WEIGHTWIRE_RUN=self._run,
            WEIGHTWIRE_POLL=str(POLL_SECONDS),
            WEIGHTWIRE_CHECK_INTERVAL="1",
            VLLM_PLUGINS="weightwire",
            VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_CPU_OMP_THREADS_BIND="nobind",
            # The worker in the engine's process: two processes would wait for each other in busy loops.
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_NO_USAGE_STATS="1",
        )
        installed = self._folder / "entry-points"
        if not installed.exists():
            entry_points.install(installed, "weightwire", entry_points.of_weightwire())
        variables["PYTHONPATH"] += os.pathsep + str(installed)
        self._processes.start(name, command, variables)

    def _evaluate(self, when):
        print(f"evaluation {when}: {self._options.games} games …", flush=True)
        solved, reward = asyncio.run(
            evaluate(
                self._environment_url, self._balancer_url, self._model, self._options.games, first_task=EVALUATION_TASKS
            )
        )
        print(f"… reward {reward:.3f}, solved {solved:.1%}", flush=True)
        return {"solved": solved, "reward": reward}

    def _poll_servers(self):
        for name, url in self._urls.items():
            self._table.take_status(name, get(f"{url}/weightwire/status") or {})

    def _start_trainer(self):
        options = self._options
        self._processes.start(
            "trainer",
            self._python(
                *("wordle.trainer", "--model", self._model, "--run", self._run, "--state", self._folder / "state"),
                *("--server", self._balancer_url, "--environment", self._environment_url),
                *("--steps", options.steps, "--lr", options.lr, "--seed", options.seed),
                *("--save-steps", SAVE_STEPS if options.chaos else 0),
            ),
            self._variables(),
            take=self._said.append,
        )

    def _train(self):
        self._table.model_bytes = weights_size(self._mirror(SERVERS[0]))
        self._start("trainer")
        while True:
            ended = self._processes.has_ended("trainer")
            self._processes.check()
            self._poll_servers()
            while self._said:
                event = self._said.pop(0)
                if event["what"] == "step":
                    self._table.take_step(event)
                elif event["what"] == "end":
                    self._end = event
            if ended and self._end:
                break
            victim = self._chaos.turn(self._table.steps) if self._chaos else None
            if victim == Chaos.BUCKET:
                self._table.say(f"{victim} fails for {BUCKET_FAILS_SECONDS} s")
            elif victim:
                self._table.say(f"{victim} is killed, and started again")
                self._processes.kill(victim)
                self._start(victim)
            time.sleep(0.1)
        if self._chaos:
            self._chaos.end()

    def _wait_for_servers(self):
        """Until all hold the last version and have compared what they hold with it; one that was killed may still be on
        its way up."""
        deadline = time.monotonic() + UP_SECONDS
        while True:
            self._processes.check()
            self._poll_servers()
            behind = [
                name
                for name, status in self._table.status.items()
                if (status.get("last_check") or {}).get("version") != self._end["version"]
            ]
            if not behind:
                return
            if time.monotonic() > deadline:
                raise Failed(
                    f"{behind[0]} did not come to version {self._end['version']}:\n{self._processes.tail(behind[0])}"
                )
            time.sleep(0.1)

    def _digest(self, directory):
        said = subprocess.run([WEIGHTWIRE, "digest", directory, "--json"], check=True, capture_output=True, text=True)
        return json.loads(said.stdout)["state"]

    def _digest_of_mirror(self, name, expected):
        """As soon as it is what is expected, or what it is after long."""
        deadline = time.monotonic() + UP_SECONDS
        while (digest := self._digest(self._mirror(name))) != expected and time.monotonic() < deadline:
            self._processes.check()
            time.sleep(0.1)
        return digest

    def _result(self, before, after, seconds):
        digest = self._digest(self._end["weights"])
        digests = {f"the trainer's weights, version {self._end['version']}": digest}
        for name, status in self._table.status.items():
            # A vLLM server compares its engine with its mirror; the other one has its weights digested where they are.
            held = status["digest"] if self._options.engine == "torch" else self._digest(self._mirror(name))
            digests[f"{name}, version {status['version']}"] = held
        if self._chaos:
            digests["the follower's mirror"] = self._digest_of_mirror(FOLLOWER, digest)
        options = self._options
        return {
            "setting": f"{options.words} words, {options.guesses} guesses, {options.steps} steps at a learning rate of "
            f"{options.lr:g}, two {options.engine} servers, {BUCKETS[options.store]}; seed {options.seed}"
            + ("; trainer, follower and a server were killed on the way" if options.chaos else ""),
            "seconds": seconds,
            "games": options.games,
            "before": before,
            "after": after,
            "steps": self._table.steps,
            "model_bytes": self._table.model_bytes,
            "pauses": {name: list(pauses.values()) for name, pauses in self._table.pauses.items()},
            "digests": digests,
            "compared": {name: status["last_check"]["elements"] for name, status in self._table.status.items()},
            "exact": len(set(digests.values())) == 1,
        }


def weights_size(mirror):
    """What sending the model costs."""
    return sum(path.stat().st_size for path in mirror.glob("*.safetensors"))


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
