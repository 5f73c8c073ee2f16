"""The demo, shortened: every process of it, and none left behind."""

import asyncio
import contextlib
import http.server
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import ROOT
from safetensors.torch import load_file

sys.path.insert(0, str(ROOT / "demo"))

import aiohttp
from aiohttp import web
from wordle import balancer, model, trainer

SHORT = ["--engine", "torch", "--warm-steps", "20", "--games", "24"]


def start_demo(folder, *more):
    command = [sys.executable, ROOT / "demo/wordle_demo.py", *SHORT, "--keep", folder, *more]
    return subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Who runs the tests in the background may have told everybody below to ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def processes_of(folder):
    """Those that have it among their arguments or variables; the demo's environment of a process names its folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(str(folder).encode() in (process / what).read_bytes() for what in ("cmdline", "environ")):
                found.append(int(process.name))
    return found


def test_it_ends_exact_though_its_processes_are_killed(tmp_path):
    """Also a trainer that has a checkpoint to go on from: seed 7 kills it last, after six steps."""
    folder, out = tmp_path / "kept", tmp_path / "out"
    demo = start_demo(folder, "--chaos", "--store", "directory", "--seed", "7", "--steps", "10", "--out", out)
    said, errors = demo.communicate(timeout=400)
    assert demo.returncode == 0, errors + said
    assert re.findall("-- (.+) is killed", said) == ["server b", "follower", "trainer"]
    assert "the digests are equal" in said
    assert "digests are equal" in (out / "index.html").read_text()
    result = json.loads((out / "result.json").read_text())
    assert len(set(result["digests"].values())) == 1 and len(result["digests"]) == 4
    assert len(result["compared"]) == 2 and all(result["compared"].values())
    steps, versions = ([step[key] for step in result["steps"]] for key in ("step", "version"))
    # It goes on with the step after the checkpoint, and with the chain of versions.
    again = next(i for i in range(1, len(steps)) if steps[i] <= steps[i - 1])
    assert steps[:again] == list(range(1, again + 1)) and steps[again:] == list(range(6, 11))
    # A step whose weights were still being read when it was logged has none; the next one's is for both.
    first, before, after = (
        [version for version in part if version is not None]
        for part in (versions[:5], versions[:again], versions[again:])
    )
    for known in (before, after):
        assert known == sorted(set(known)) and len(known) >= 3
    assert after[0] > first[-1]  # what was not sent yet when it was killed is made again
    assert sum(step["bytes"] for step in result["steps"]) > 0
    assert all(pauses for pauses in result["pauses"].values())
    assert processes_of(folder) == []


def test_an_interrupt_leaves_no_process_behind(tmp_path):
    folder = tmp_path / "kept"
    demo = start_demo(folder, "--steps", "1000", "--out", tmp_path / "out")
    for line in demo.stdout:
        if line.startswith("evaluation before"):
            break
    assert len(processes_of(folder)) >= 5  # itself, the environment, two servers, the balancer
    demo.send_signal(signal.SIGINT)
    assert demo.wait(60) == 130, demo.stderr.read()
    assert processes_of(folder) == []


def test_the_model_is_the_same_for_the_same_seed(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        model.make(tmp_path / name, 8, 2, seed, steps=2)
    a, b, c = (load_file(tmp_path / name / "model.safetensors") for name in "abc")
    assert all((a[name] == b[name]).all() for name in a)
    assert any((a[name] != c[name]).any() for name in a)


def test_a_trainer_goes_on_from_the_last_checkpoint_that_is_whole(tmp_path):
    assert trainer.last_checkpoint(tmp_path / "none") is None
    for step, state in ((5, "{}"), (10, "{}"), (15, '{"epoch"'), (20, None)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if state is not None:
            (folder / "trainer_state.json").write_text(state)
    assert trainer.last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


# --- the balancer ---


class Answering(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.server.status)
        self.send_header("weightwire-version", "3")
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(self.server.name)
        self.server.asked += 1

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def answering(name, status=200):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.name, server.status, server.asked = name, status, 0
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(urls, times):
    """(status, body, header) of so many requests through a balancer before these servers."""

    async def run():
        runner = web.AppRunner(balancer.make_app(urls))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        answers = []
        async with aiohttp.ClientSession() as session:
            for _ in range(times):
                async with session.post(f"http://127.0.0.1:{port}/v1/completions", json={}) as answer:
                    header = answer.headers.get("weightwire-version")
                    answers.append((answer.status, await answer.read(), header))
        await runner.cleanup()
        return answers

    return asyncio.run(run())


def test_requests_go_round(tmp_path):
    with answering(b"aa") as a, answering(b"bb") as b:
        answers = ask([a.url, b.url], 6)
    assert [body for _, body, _ in answers] == [b"aa", b"bb"] * 3
    assert {(status, header) for status, _, header in answers} == {(200, "3")}


@pytest.mark.parametrize("status", [None, 500, 503])
def test_a_server_that_does_not_answer_is_left_out(status, monkeypatch):
    monkeypatch.setattr(balancer, "REST_SECONDS", 3600.0)
    with answering(b"aa") as a, answering(b"bb", status or 200) as b:
        if status is None:
            b.shutdown()
            b.server_close()
        answers = ask([b.url, a.url], 5)
    assert [(s, body) for s, body, _ in answers] == [(200, b"aa")] * 5
    assert b.asked == (0 if status is None else 1)


def test_nobody_answers():
    with answering(b"aa", 500) as a:
        assert ask([a.url], 1)[0][0] == 503
