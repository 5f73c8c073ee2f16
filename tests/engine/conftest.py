"""Real vLLM servers on CPUs, runs that they follow, and what a freshly loaded engine says of a version."""

import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
import weightwire as ww
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import entry_points  # noqa: E402

START_SECONDS = 240
WAIT_SECONDS = 60
# The worker in the engine's process, as it is by default with one GPU. With CPUs it is in another by default, and they
# wait for each other in busy loops, of which two cores cannot stand many.
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
# By torch.compile, as is vLLM's default, but with a backend that needs no C++ compiler, and with the operations that
# are used without it, so that the same bits come out.
COMPILED = ["--compilation-config", json.dumps({"mode": 2, "backend": "eager", "custom_ops": ["all"]})]
PROMPTS = [[1, 2, 3, 4, 5], [700, 3, 3, 90], list(range(100, 140))]


@pytest.fixture(scope="session")
def import_path(tmp_path_factory):
    return make_import_path(tmp_path_factory.mktemp("path"))


def make_import_path(path):
    """What servers import: the package as it lies in the tree, with the entry points that its wheel has, and the tests'
    own plugin."""
    entry_points.install(path, "weightwire", entry_points.of_weightwire())
    plugins = {"plain_layout": "engine_tests:plain_layout", "fault": "engine_tests:fault"}
    entry_points.install(path, "engine-tests", {"vllm.general_plugins": plugins})
    return os.pathsep.join([str(Path(ww.__file__).parents[1]), str(path), str(HERE / "plugin")])


def environment(import_path, **more):
    return {
        **os.environ,
        "PYTHONPATH": import_path,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "HF_HUB_OFFLINE": "1",
        **more,
    }


# --- runs ---


class TrainedRun:
    """A run, its publisher, and every version's weights."""

    def __init__(self, folder, *, tied=False, shape=None, **options):
        self.folder = folder
        self.bucket = folder / "bucket"
        self.mirror = folder / "mirror"
        self.first = folder / "version-0"
        torch.manual_seed(0)
        make_model(tied, shape or {}).to(torch.bfloat16).save_pretrained(self.first)
        self.state = load_file(self.first / "model.safetensors")
        self._random = np.random.default_rng(0)
        self._publisher = ww.Publisher(self.bucket, extra_files=self.first, **options)
        self.version = -1
        self._kept = {}
        self.publish()

    def step(self, names=None, share=50):
        """Changes one in `share` elements of each of these tensors, all by default."""
        for name in names or self.state:
            flat = self.state[name].view(-1)
            chosen = self._random.choice(flat.numel(), max(1, flat.numel() // share), replace=False)
            chosen = torch.from_numpy(chosen)
            flat[chosen] = (flat[chosen].float() * 1.1 + 0.02 * torch.randn(len(chosen))).to(flat.dtype)
        return self.publish()

    def go_back(self, version):
        """Has the next step begin with the weights of an older version."""
        for name, tensor in self._kept[version].items():
            self.state[name].copy_(tensor)

    def publish(self):
        """The weights as they are; the version's number."""
        ticket = self._publisher.publish(self.version + 1, model=self.state)
        ticket.result(WAIT_SECONDS)
        self.version += 1
        assert ticket.status.version == self.version
        self._kept[self.version] = {name: tensor.clone() for name, tensor in self.state.items()}
        return self.version

    def checkpoint(self, version):
        """A directory with that version's weights."""
        folder = self.folder / f"version-{version}"
        if not folder.exists():
            folder.mkdir()
            shutil.copy(self.first / "config.json", folder)
            save_file(self._kept[version], folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    def make_mirror(self):
        with ww.Follower(self.bucket, self.mirror) as follower:
            follower.poll().apply()
        return self.mirror

    def close(self):
        self._publisher.close()


def damage(file, name):
    """Flips a bit of a tensor in a safetensors file."""
    with file.open("r+b") as opened:
        size = int.from_bytes(opened.read(8), "little")
        place = 8 + size + json.loads(opened.read(size))[name]["data_offsets"][0]
        opened.seek(place)
        (byte,) = opened.read(1)
        opened.seek(place)
        opened.write(bytes([byte ^ 1]))


def make_model(tied, shape):
    """With experts if the shape says how many."""
    has_experts = "num_experts" in shape
    make_config = transformers.Qwen3MoeConfig if has_experts else transformers.Qwen3Config
    config = make_config(
        **{
            "vocab_size": 1000,  # not a multiple of 64: there is padding
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "tie_word_embeddings": tied,
            "max_position_embeddings": 2048,
            **shape,
        }
    )
    return (transformers.Qwen3MoeForCausalLM if has_experts else transformers.Qwen3ForCausalLM)(config)


# --- servers ---


class Server:
    def __init__(self, model, import_path, log, *, arguments=(), compiled=False, **variables):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = log
        self._threads = concurrent.futures.ThreadPoolExecutor(8)
        command = [
            *(str(Path(sys.executable).parent / "vllm"), "serve", str(model), "--port", str(self.port)),
            *("--host", "127.0.0.1", "--dtype", "bfloat16", "--max-model-len", "1024"),
            *(COMPILED if compiled else ["--enforce-eager"]),
            *("--gpu-memory-utilization", "0.05", "--skip-tokenizer-init", "--enable-scale-out"),
            *("--disable-uvicorn-access-log", *arguments),
        ]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                env=environment(import_path, **variables),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_up(self):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            with contextlib.suppress(OSError, urllib.error.URLError):
                self.get("/health", raw=True)
                return self
            time.sleep(0.2)
        raise TimeoutError(self.log.read_text()[-4000:])

    def request(self, path, body=None, timeout=120):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"content-type": "application/json"}
        )
        return urllib.request.urlopen(request, timeout=timeout)

    def get(self, path, raw=False):
        with self.request(path) as answer:
            return answer.read() if raw else json.load(answer)

    def post(self, path, body):
        with self.request(path, body) as answer:
            return json.load(answer)

    @property
    def status(self):
        return self.get("/weightwire/status")

    @property
    def metrics(self):
        """Those of ours, by name; of several values under one name, the last."""
        lines = self.get("/metrics", raw=True).decode().splitlines()
        found = [re.fullmatch(r"(weightwire_\w+)(?:{.*})? (\S+)", line) for line in lines]
        return {match[1]: float(match[2]) for match in found if match}

    def wait_for(self, condition, what):
        """Until a condition holds of the status; the server says when, not the clock."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition(status := self.status):
            assert time.monotonic() < deadline, f"{what} did not come: {status}\n{self.log.read_text()[-3000:]}"
            time.sleep(0.02)
        return status

    def wait_for_version(self, version):
        return self.wait_for(lambda status: status["version"] == version, f"version {version}")

    def generate(self, tokens, count=24):
        """Tokens, their log-probabilities, the spans of versions, and the header that says the same."""
        sampling = {"max_tokens": count, "temperature": 0, "logprobs": 0, "ignore_eos": True}
        with self.request("/inference/v1/generate", {"token_ids": tokens, "sampling_params": sampling}) as answer:
            header = answer.headers.get("weightwire-version-spans")
            (choice,) = json.load(answer)["choices"]
        logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        spans = [(int(s["version"].partition("-")[0]), s["start"], s["end"]) for s in choice["weight_versions"] or ()]
        return choice["token_ids"], logprobs, spans, header

    def answers(self):
        return [self.generate(prompt)[:2] for prompt in PROMPTS]

    def generate_in_background(self, tokens, count):
        """Starts; what it returns waits for the result, or raises what went wrong."""
        return self._threads.submit(self.generate, tokens, count).result

    def generate_across_an_update(self, run, tokens, count):
        """The next version, and what was generated while it came. Either may be the quicker one, so it is tried again
        until one falls into the other."""
        for _ in range(20):
            result = self.generate_in_background(tokens, count)
            version = run.step()
            self.wait_for_version(version)
            made = result()
            if len(made[2]) > 1:
                return version, made
        raise AssertionError("no update came while tokens were generated")

    def pid(self, name):
        """Of a process of the server, by the name that its lines in the log have."""
        return int(re.findall(rf"\({name} pid=(\d+)\)", self.log.read_text())[-1])

    def stop(self, how=signal.SIGTERM):
        """Ends all of its processes; those that clean up after others come last. Who is told to end does so without
        complaint."""
        was_up = self.process.poll() is None
        with contextlib.suppress(ProcessLookupError):
            if how == signal.SIGTERM:
                self.process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(20)
                deadline = time.monotonic() + 10
                while time.monotonic() < deadline:
                    os.killpg(self.process.pid, 0)
                    time.sleep(0.05)
            os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait()
        assert how != signal.SIGTERM or not was_up or status == 0, self.log.read_text()[-4000:]
        return status


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = TrainedRun(tmp_path_factory.mktemp("run"))
    yield run
    run.close()


@pytest.fixture(scope="module")
def start(import_path, tmp_path_factory):
    """Starts servers that follow; they end with the module."""
    servers = []

    def start_server(model, run, *, plugins=(), arguments=(), compiled=False, **variables):
        log = tmp_path_factory.mktemp("server") / "log"
        server = Server(
            model,
            import_path,
            log,
            arguments=arguments,
            compiled=compiled,
            WEIGHTWIRE_RUN=str(run),
            VLLM_PLUGINS=",".join(["weightwire", *plugins]),
            **{"WEIGHTWIRE_POLL_INTERVAL": "50ms", "WEIGHTWIRE_VERIFY_INTERVAL": "0", **variables},
        )
        servers.append(server)
        return server

    yield start_server
    for server in servers:
        server.stop()


def failures_of(server, code):
    """The metric of failed attempts with this kind of error."""
    text = server.get("/metrics", raw=True).decode()
    return float(re.search(rf'^weightwire_update_failures_total{{code="{code}"}} (\S+)$', text, re.M)[1])


# --- what a fresh engine says ---


class Reference:
    def __init__(self, import_path, log):
        self._process = subprocess.Popen(
            [sys.executable, HERE / "reference.py"],
            env=environment(import_path, VLLM_PLUGINS=""),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )
        self._log = log

    def generate(self, checkpoint, requests, *, plain):
        """[(tokens, log-probabilities)] for each (prompt, count), from a load of that checkpoint."""
        question = {"model": str(checkpoint), "plain": plain, "requests": requests}
        print(json.dumps(question), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, self._log.read_text()[-4000:]
        return [tuple(result) for result in json.loads(line)]

    def answers(self, checkpoint, *, plain):
        return self.generate(checkpoint, [(prompt, 24) for prompt in PROMPTS], plain=plain)

    def close(self):
        self._process.stdin.close()
        self._process.wait(30)


@pytest.fixture(scope="session", autouse=True)  # it starts while the first server does
def reference(import_path, tmp_path_factory):
    process = Reference(import_path, tmp_path_factory.mktemp("reference") / "log")
    yield process
    process.close()
