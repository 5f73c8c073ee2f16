"""Starts the demo's processes, follows the training, and collects the result."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import entry_points
from s3_admin import administer

from wordle.chaos import FOLLOWER, OUTAGE_SECONDS, Chaos
from wordle.play import evaluate
from wordle.processes import Failed, free_port, get
from wordle.step_table import SERVERS, StepTable

DEMO = Path(__file__).resolve().parents[1]
WEIGHTWIRE = os.environ.get("WEIGHTWIRE", str(DEMO.parent / "build/weightwire"))
PACKAGE = os.environ.get("WW_DEMO_PACKAGE", str(DEMO.parent / "build/python"))
EVALUATION_TASKS = 10**9  # the first task of evaluations; training does not reach it
UP_SECONDS = 300
S3_ENDPOINT = "WW_TEST_S3_ENDPOINT"  # set by tests/store/with_rgw
BUCKETS = {"directory": "the bucket a directory", "s3": "the bucket in a Ceph RGW"}
SAVE_STEPS = 5  # between checkpoints, from which a killed trainer resumes
POLL_SECONDS = 0.2


class Demo:
    def __init__(self, options, folder, processes):
        self._options = options
        self._folder = folder
        self._processes = processes
        self._variables_of_store = {}
        self._run = str(folder / "bucket") if options.store == "directory" else self._open_s3()
        self._chaos = Chaos(options, self._outage_file) if options.chaos else None
        self._model = str(Path(options.model).resolve()) if options.model else str(folder / "model")
        self._urls = {name: f"http://127.0.0.1:{free_port()}" for name in SERVERS}
        self._environment_url = f"http://127.0.0.1:{free_port()}"
        self._balancer_url = f"http://127.0.0.1:{free_port()}"
        self._events = []  # of the trainer: a thread adds them, and this one prints them
        self._end = {}
        self._table = StepTable()

    def _python(self, module, *arguments):
        return [sys.executable, "-m", module, *map(str, arguments)]

    def _variables(self, **more):
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([PACKAGE, str(DEMO), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONUNBUFFERED": "1",
            "WW_DEMO": str(self._folder),  # marks the processes of this demo
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TRL_EXPERIMENTAL_SILENCE": "1",
            **self._variables_of_store,
            **more,
        }

    def _port(self, url):
        return url.rpartition(":")[2]

    def _open_s3(self):
        """Makes a bucket in the Ceph RGW that was started for the demo."""
        endpoint = os.environ[S3_ENDPOINT]
        key, secret = (os.environ[f"WW_TEST_S3_{name}_KEY"] for name in ("ACCESS", "SECRET"))
        administer("PUT", "wordle")
        if self._options.chaos:
            port = free_port()
            to = ["--to", endpoint.removeprefix("http://"), "--while", self._outage_file]
            self._processes.start(
                "outage proxy", self._python("wordle.outage_proxy", "--port", port, *to), self._variables()
            )
            endpoint = f"http://127.0.0.1:{port}"
        self._variables_of_store = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
        }
        return "s3://wordle/run"

    @property
    def _outage_file(self):
        """While this file exists, the bucket fails."""
        return self._folder / "outage"

    def run(self):
        start = time.monotonic()
        options = self._options
        self._processes.start(
            "environment",
            self._python(
                *("wordle.environment_server", "--port", self._port(self._environment_url)),
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
        """Starts a process that may be killed. It resumes from its files."""
        if name == "trainer":
            self._start_trainer()
        elif name == FOLLOWER:
            command = [
                WEIGHTWIRE,
                "follow",
                self._run,
                self._mirror(FOLLOWER),
                "--wait-for-run",
                "--poll-interval",
                f"{1e3 * POLL_SECONDS:.0f}ms",
            ]
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
            WEIGHTWIRE_POLL_INTERVAL=f"{POLL_SECONDS}s",
            WEIGHTWIRE_VERIFY_INTERVAL="1s",
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
            self._table.set_status(name, get(f"{url}/weightwire/status") or {})

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
            take=self._events.append,
        )

    def _train(self):
        self._table.model_bytes = weights_size(self._mirror(SERVERS[0]))
        self._start("trainer")
        while True:
            ended = self._processes.has_ended("trainer")
            self._processes.check()
            self._poll_servers()
            while self._events:
                event = self._events.pop(0)
                if event["what"] == "step":
                    self._table.add_step(event)
                elif event["what"] == "end":
                    self._end = event
            if ended and self._end:
                break
            victim = self._chaos.next_victim(self._table.steps) if self._chaos else None
            if victim == Chaos.BUCKET:
                self._table.print_line(f"{victim} fails for {OUTAGE_SECONDS} s")
            elif victim:
                self._table.print_line(f"{victim} is killed, and started again")
                self._processes.kill(victim)
                self._start(victim)
            time.sleep(0.1)
        if self._chaos:
            self._chaos.end()

    def _wait_for_servers(self):
        """Waits until all servers hold the last version and have compared their weights with it. A server that was
        killed may still be starting."""
        deadline = time.monotonic() + UP_SECONDS
        while True:
            self._processes.check()
            self._poll_servers()
            behind = [
                name
                for name, status in self._table.status.items()
                if (status.get("last_verify") or {}).get("version") != self._end["version"]
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
        return json.loads(said.stdout)["digest"]

    def _digest_of_mirror(self, name, expected):
        """Waits for the expected digest. Returns the last one on timeout."""
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
            "compared": {name: status["last_verify"]["elements"] for name, status in self._table.status.items()},
            "exact": len(set(digests.values())) == 1,
        }


def weights_size(mirror):
    """The bytes of the whole model."""
    return sum(path.stat().st_size for path in mirror.glob("*.safetensors"))
