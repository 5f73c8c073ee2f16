"""`weightwire follow --metrics`: the values that Prometheus reads, and clients that must not stop the follower."""

import contextlib
import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request

import pytest
from exit_statuses import INVALID_ARGUMENT, UNAVAILABLE
from test_command_roundtrip import WEIGHTWIRE, chain, succeed, succeed_json, weightwire, write_sharded


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))


@pytest.fixture
def run(tmp_path):
    publish(tmp_path, 0)
    return tmp_path / "bucket"


def publish(tmp_path, number):
    write_sharded(tmp_path / f"{number}", chain(number + 1)[number])
    succeed("publish", tmp_path / "bucket", tmp_path / f"{number}")


class Follower:
    """The command as a process, and the URL of its metrics."""

    def __init__(self, run, directory, *options, address="127.0.0.1:0"):
        command = [WEIGHTWIRE, "follow", run, directory, "--json", "--metrics", address, "--poll-interval", "20ms"]
        self.process = subprocess.Popen(
            [*map(str, command), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        line = self.process.stderr.readline()
        assert "serves metrics at http://" in line, line
        self.url = line.split()[-1]

    def wait_for(self, event, **fields):
        for line in self.process.stdout:
            seen = json.loads(line)
            if seen["event"] == event and all(seen[name] == value for name, value in fields.items()):
                return seen
        raise AssertionError(f"it ended without {event}: {self.process.stderr.read()}")

    def metrics(self):
        """The values by name and labels."""
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    def connect(self):
        host, port = self.url.removeprefix("http://").removesuffix("/metrics").rsplit(":", 1)
        return socket.create_connection((host.strip("[]"), int(port)), timeout=30)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        # Sooner than connections that say nothing are ended.
        self.process.communicate(timeout=8)
        return self.process.returncode


@pytest.fixture
def follow(run, tmp_path):
    with contextlib.ExitStack() as ends:

        def start(*options, **more):
            follower = Follower(run, tmp_path / "mirror", *options, **more)
            ends.callback(follower.process.kill)
            return follower

        yield start


def test_the_metrics_tell_what_was_followed(run, tmp_path, follow):
    follower = follow()
    loaded = follower.wait_for("version", version=0)
    publish(tmp_path, 1)
    updated = follower.wait_for("version", version=1)
    metrics = follower.metrics()
    run_id = succeed_json("log", run)["run_id"]
    package = succeed_json("version")["package_version"]
    assert metrics[f'weightwire_info{{run_id="{run_id}",package_version="{package}"}}'] == 1
    assert metrics["weightwire_version"] == 1
    assert metrics["weightwire_lag_versions"] == metrics["weightwire_lag_seconds"] == 0
    assert metrics["weightwire_updates_total"] == 2
    assert metrics["weightwire_received_bytes_total"] == loaded["bytes_received"] + updated["bytes_received"]
    assert metrics["weightwire_commit_duration_seconds_count"] == 2
    assert 0 < metrics["weightwire_commit_duration_seconds_sum"] < loaded["seconds"] + updated["seconds"]
    assert all(value == 0 for name, value in metrics.items() if "failures" in name)
    assert follower.end() == 0


def test_an_outage_is_counted_and_the_metrics_stay(run, tmp_path, follow):
    follower = follow()
    follower.wait_for("version", version=0)
    run.rename(tmp_path / "away")
    follower.wait_for("retrying", code="unavailable")
    assert follower.metrics()['weightwire_update_failures_total{code="unavailable"}'] >= 1
    assert follower.metrics()["weightwire_version"] == 0
    (tmp_path / "away").rename(run)
    follower.wait_for("recovered")
    assert follower.end() == 0


def test_a_pinned_follower_lags(tmp_path, follow):
    follower = follow("--pin", "0")
    follower.wait_for("version", version=0)
    publish(tmp_path, 1)
    while (metrics := follower.metrics())["weightwire_lag_versions"] == 0:
        assert follower.process.poll() is None
    assert metrics["weightwire_lag_versions"] == 1 and metrics["weightwire_version"] == 0
    assert follower.metrics()["weightwire_lag_seconds"] > 0
    assert follower.end() == 0


def test_a_follower_without_a_version_serves_metrics(tmp_path, follow, run):
    run.rename(tmp_path / "away")
    follower = follow("--wait-for-run")
    metrics = follower.metrics()
    assert "weightwire_version" not in metrics and metrics["weightwire_updates_total"] == 0
    assert follower.end() == 0


def test_copies_behind_a_link_lock_no_reader_out(follow):
    follower = follow("--swap")
    follower.wait_for("version", version=0)
    metrics = follower.metrics()
    assert metrics["weightwire_updates_total"] == 1 and metrics["weightwire_commit_duration_seconds_count"] == 0
    assert follower.end() == 0


@pytest.mark.parametrize("address", [":0", "localhost:0", "[::1]:0"])
def test_addresses(follow, address):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        if "::1" in address:
            pytest.skip("this machine has no IPv6")
    follower = follow(address=address)
    assert follower.metrics()["weightwire_updates_total"] >= 0
    assert (address == ":0") <= ("127.0.0.1" in follower.url)
    assert follower.end() == 0


def test_only_metrics_can_be_read(follow):
    follower = follow()
    base = follower.url.removesuffix("/metrics")
    requests = [
        urllib.request.Request(base + "/"),
        urllib.request.Request(base + "/metricsx"),
        urllib.request.Request(base + "/metrics/../secret"),
        urllib.request.Request(base + "/metrics", data=b"x"),
        urllib.request.Request(base + "/metrics", method="DELETE"),
    ]
    for request in requests:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        assert refused.value.code == 404
    with urllib.request.urlopen(urllib.request.Request(follower.url, method="HEAD"), timeout=30) as answer:
        assert answer.status == 200 and answer.read() == b"" and int(answer.headers["content-length"]) > 100
    with urllib.request.urlopen(follower.url + "?name[]=weightwire_version", timeout=30) as answer:
        assert answer.status == 200
    assert follower.end() == 0


def test_no_client_stops_the_follower(tmp_path, follow):
    follower = follow()
    follower.wait_for("version", version=0)
    with contextlib.ExitStack() as clients:
        for said in (b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * 100_000, b"\0" * 100_000, b"\r\n"):
            client = clients.enter_context(follower.connect())
            with contextlib.suppress(OSError):
                client.sendall(said)
                client.shutdown(socket.SHUT_WR)
                while client.recv(4096):
                    pass
        assert follower.metrics()["weightwire_version"] == 0
        # More than there are threads, and one that began.
        idle = [clients.enter_context(follower.connect()) for _ in range(8)]
        idle[0].sendall(b"GET /met")
        publish(tmp_path, 1)
        follower.wait_for("version", version=1)
        assert follower.end() == 0


def test_a_connection_that_says_nothing_is_ended(follow):
    follower = follow()
    with contextlib.ExitStack() as clients:
        for _ in range(2):
            clients.enter_context(follower.connect())
        assert follower.metrics()["weightwire_updates_total"] >= 0
    assert follower.end() == 0


def test_a_port_that_another_process_has_is_an_error(run, tmp_path, follow):
    follower = follow()
    address = follower.url.removeprefix("http://").removesuffix("/metrics")
    second = weightwire("follow", run, tmp_path / "second", "--once", "--metrics", address)
    assert second.returncode == UNAVAILABLE
    assert second.stderr.startswith(f"error: cannot listen at {address}: ") and second.stderr.count("\n") == 1
    assert not (tmp_path / "second").exists()
    assert follower.end() == 0


@pytest.mark.parametrize("address", ["9400", "nobody.invalid:9400", "http://localhost:9400", "192.0.2.1:9400"])
def test_an_address_that_is_none_is_an_error(run, tmp_path, address):
    result = weightwire("follow", run, tmp_path / "mirror", "--once", "--metrics", address)
    assert result.returncode == INVALID_ARGUMENT, result.stderr
    assert address in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "mirror").exists()
