"""`weightwire follow --vllm` against a server that answers as told: what goes wrong never leaves wrong weights served.
(A real one is in tests/engine.)"""

import json
import os
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[1] / "data"
PAUSE = "/pause?mode=keep"
LOAD = "/collective_rpc"
FORGET = "/reset_prefix_cache?reset_running_requests=true&reset_external=true"
LABEL = "/update_weight_version"
RESUME = "/resume"


class Server:
    """Notes what it is asked, and answers with a status of 200 unless told otherwise."""

    def __init__(self, label="default", device="cuda", **answers):
        self.posted = []
        self.bodies = {}
        known = {
            "/weight_info": {"weight_version": label},
            "/server_info?config_format=json": {"vllm_config": {"device_config": {"device_type": device}}},
        }

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler):
                self.answer(handler, answers.get(handler.path, 200), known.get(handler.path, {}))

            def do_POST(handler):
                body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
                self.posted.append(handler.path)
                self.bodies[handler.path] = json.loads(body or "{}")
                status, said = 200, {}
                if isinstance(answer := answers.get(handler.path, 200), dict):
                    said = answer
                else:
                    status = answer
                if handler.path == LABEL and status == 200:
                    known["/weight_info"]["weight_version"] = self.bodies[LABEL]["new_version"]
                self.answer(handler, status, said)

            def log_message(handler, *_):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    @staticmethod
    def answer(handler, status, body):
        text = json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("content-length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def close(self):
        self._http.shutdown()
        self._http.server_close()


def label_of(version):
    """What a server is labelled with that holds the data as this version."""
    command = [os.environ["WEIGHTWIRE"], "digest", DATA / "tiny-47.old.safetensors", "--json"]
    state = json.loads(subprocess.check_output(command))["digest"]
    return f"{version}-{state[:16]}"


@pytest.fixture
def follow(tmp_path):
    """follow(server, tied=False, **config): the command, once."""
    servers = []

    def run(server, tied=False, **config):
        servers.append(server)
        checkpoint, bucket = tmp_path / "checkpoint", tmp_path / "bucket"
        checkpoint.mkdir()
        shutil.copy(DATA / "tiny-47.old.safetensors", checkpoint / "model.safetensors")
        (checkpoint / "config.json").write_text(json.dumps({"tie_word_embeddings": tied, **config}))
        command = [os.environ["WEIGHTWIRE"], "publish", bucket, checkpoint, "--state-dir", tmp_path / "state"]
        subprocess.run([*command, "--step", "0"], check=True, capture_output=True)
        command = [os.environ["WEIGHTWIRE"], "follow", bucket, tmp_path / "mirror", "--once", "--vllm", server.url]
        return subprocess.run(command, capture_output=True, text=True)

    yield run
    for server in servers:
        server.close()


def test_a_server_is_reloaded_in_a_pause_and_labelled(follow, tmp_path):
    server = Server()
    followed = follow(server)
    assert followed.returncode == 0, followed.stderr
    assert "serves version 0" in followed.stdout
    assert server.posted == [PAUSE, LOAD, FORGET, LABEL, RESUME]
    assert server.bodies[LOAD] == {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path / "mirror")}}
    assert server.bodies[LABEL] == {"new_version": label_of(0)}


def test_a_server_that_holds_the_version_is_only_resumed(follow):
    server = Server(label=label_of(0))
    assert follow(server).returncode == 0
    assert server.posted == [RESUME]


@pytest.mark.parametrize("label", ["0", "0-0123456789abcdef"])
def test_other_weights_with_the_same_version_are_replaced(follow, label):
    server = Server(label=label)
    assert follow(server).returncode == 0
    assert server.posted == [PAUSE, LOAD, FORGET, LABEL, RESUME]


def test_a_pause_that_is_refused_changes_nothing(follow):
    server = Server(**{PAUSE: 500})
    followed = follow(server)
    assert followed.returncode != 0
    assert "cannot be paused" in followed.stderr
    assert set(server.posted) == {PAUSE}


@pytest.mark.parametrize("failing", [{LOAD: 500}, {FORGET: {"success": False}}, {LABEL: 500}])
def test_a_server_that_fails_during_an_update_stays_paused(follow, failing):
    server = Server(**failing)
    followed = follow(server)
    assert followed.returncode != 0
    assert "it stays paused, restart it" in followed.stderr
    assert RESUME not in server.posted


def test_a_server_without_the_routes_is_told_how_to_get_them(follow):
    server = Server(**{"/weight_info": 404})
    followed = follow(server)
    assert followed.returncode != 0
    assert "VLLM_SERVER_DEV_MODE=1" in followed.stderr
    assert server.posted == []


@pytest.mark.parametrize("config", [{"tied": True}, {"tied": None}, {"tied": None, "text_config": {}}])
def test_weights_that_may_be_tied_are_refused_on_a_cpu_before_anything_is_touched(follow, config):
    server = Server(device="cpu")
    followed = follow(server, **config)
    assert followed.returncode != 0
    assert "tied weights cannot be reloaded exactly" in followed.stderr
    assert server.posted == []


@pytest.mark.parametrize("config", [{"num_experts": 8}, {"text_config": {"n_routed_experts": 64}}])
def test_experts_on_a_cpu_are_refused_before_anything_is_touched(follow, config):
    server = Server(device="cpu")
    followed = follow(server, **config)
    assert followed.returncode != 0
    assert "experts cannot be reloaded exactly" in followed.stderr
    assert server.posted == []


@pytest.mark.parametrize("config", [{"tied": True}, {"num_experts": 8}])
def test_elsewhere_they_are_not(follow, config):
    server = Server(device="cuda")
    assert follow(server, **config).returncode == 0
    assert server.posted[-1] == RESUME
