"""The command on services that misbehave, have Hugging Face's habits, or speak TLS with a CA of their own.

The service is that of the stores' tests (tests/programs/misbehaving_s3.cc), which checks every signature.
"""

import contextlib
import functools
import http.server
import json
import os
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from exit_statuses import CORRUPT, NOT_FOUND, PERMISSION_DENIED
from test_command_roundtrip import REPOSITORY, chain, succeed, succeed_json, weightwire, write_sharded
from test_run_commands import same_checkpoint

SERVICE = Path(os.environ.get("WW_TEST_TOOLS", REPOSITORY / "build/tests")) / "misbehaving_s3"


@pytest.fixture(autouse=True)
def settings(tmp_path, monkeypatch):
    """No settings of this machine; base copies and spools go to tmp_path."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in os.environ:
        if name.startswith(("AWS_", "HF_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@contextlib.contextmanager
def service(monkeypatch, kind, every=0):
    """One that runs meanwhile; its keys are in the environment. Nothing may leak to the host that it redirects to."""
    process = subprocess.Popen(
        [SERVICE, kind, str(every)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    about = json.loads(process.stdout.readline())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", about["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", about["secret_key"])
    monkeypatch.setenv("AWS_REGION", about["region"])
    try:
        yield about["url"]
    finally:
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


@pytest.fixture
def checkpoints(tmp_path):
    for number, state in enumerate(chain(3, size=1_000)):
        write_sharded(tmp_path / f"{number}", state)
    return [tmp_path / f"{number}" for number in range(3)]


def refused(status, words, *arguments, **environment):
    result = weightwire(*arguments, **environment)
    assert result.returncode == status, result.stderr
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


def use_every_command(run, checkpoints, tmp_path):
    assert succeed_json("init", run)["created"]
    for number, checkpoint in enumerate(checkpoints):
        assert succeed_json("publish", run, checkpoint, "--step", number)["version"] == number
    assert [v["step"] for v in succeed_json("log", run)["versions"]] == [0, 1, 2]
    succeed("follow", run, tmp_path / "mirror", "--once")
    same_checkpoint(tmp_path / "mirror", checkpoints[2])
    succeed("checkout", f"{run}@1", tmp_path / "out")
    same_checkpoint(tmp_path / "out", checkpoints[1])
    assert succeed_json("anchor", run, "--from", tmp_path / "mirror")["version"] == 2
    report = succeed_json("verify", run)
    assert (report["records"], report["anchors"], report["damage"]) == (3, 2, [])
    assert succeed_json("gc", run, "--dry-run")["removed"]["objects"] == 0
    assert succeed_json("followers", run)["followers"] == []


@pytest.mark.parametrize("kind", ["plain", "hf"])
@pytest.mark.parametrize("every", [0, 6])
def test_every_command_on_a_service(monkeypatch, checkpoints, tmp_path, kind, every):
    """With every sixth request going wrong in another way, it takes longer, and that is all."""
    with service(monkeypatch, kind, every) as url:
        place = "hf://buckets/owner/bucket" if kind == "hf" else "s3://bucket"
        use_every_command(f"{place}/runs/one?endpoint={url}", checkpoints, tmp_path)


def test_other_keys_are_refused_without_showing_them(monkeypatch):
    with service(monkeypatch, "plain") as url:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not/the+right=one")
        result = weightwire("init", f"s3://bucket/run?endpoint={url}")
    assert result.returncode == PERMISSION_DENIED and result.stderr.count("\n") == 1
    assert "not/the+right=one" not in result.stderr


# --- TLS ---


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """A CA, and what it signs."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder, self.certificate = folder, folder / "ca.pem"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", 2,
                "-subj", "/CN=a CA of our own", "-keyout", folder / "ca.key", "-out", self.certificate)  # fmt: skip

    def sign(self, name, days=1):
        """A server's certificate for that name, with its key."""
        request, key, out = (self.folder / f"{name}.{suffix}" for suffix in ("csr", "key", "pem"))
        (self.folder / "names").write_text(f"subjectAltName=DNS:{name}\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                "-keyout", key, "-out", request)  # fmt: skip
        openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.folder / "ca.key",
                "-CAcreateserial", "-days", days, "-extfile", self.folder / "names", "-out", out)  # fmt: skip
        return out, key


@contextlib.contextmanager
def tls_in_front_of(url, certificate, key):
    """Decrypts, and passes on as it is. Its URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    host, port = url.removeprefix("http://").split(":")
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve(plain):
        with (
            contextlib.suppress(OSError),
            context.wrap_socket(plain, server_side=True) as outside,
            socket.create_connection((host, int(port))) as inside,
        ):
            back = threading.Thread(target=pump, args=(inside, outside))
            back.start()
            pump(outside, inside)
            back.join()

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield f"https://localhost:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


def test_tls_with_a_ca_of_our_own(monkeypatch, authority, checkpoints, tmp_path):
    with service(monkeypatch, "plain") as url, tls_in_front_of(url, *authority.sign("localhost")) as secure:
        run = f"s3://bucket/runs/one?endpoint={secure}"
        refused(PERMISSION_DENIED, ["certificate", "not trusted", "AWS_CA_BUNDLE"], "init", run)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.certificate))
        # Nothing was made when it was refused.
        refused(NOT_FOUND, ["no run"], "log", run)
        succeed("publish", run, checkpoints[0])
        succeed("publish", run, checkpoints[1])
        succeed("follow", run, tmp_path / "mirror", "--once")
        same_checkpoint(tmp_path / "mirror", checkpoints[1])


def test_a_read_is_not_redirected_out_of_tls(monkeypatch, authority):
    """Hugging Face's gateway redirects reads; this one does so to a host without TLS."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.certificate))
    with service(monkeypatch, "hf") as url, tls_in_front_of(url, *authority.sign("localhost")) as secure:
        run = "hf://buckets/owner/bucket/runs/one"
        succeed("init", f"{run}?endpoint={url}")
        refused(CORRUPT, ["redirects to an address that is not safe"], "log", f"{run}?endpoint={secure}")


def test_the_ca_of_a_profile(monkeypatch, authority, tmp_path):
    with service(monkeypatch, "plain") as url, tls_in_front_of(url, *authority.sign("localhost")) as secure:
        (tmp_path / ".aws").mkdir()
        (tmp_path / ".aws/config").write_text(f"[default]\nca_bundle = {authority.certificate}\n")
        assert succeed_json("init", f"s3://bucket/run?endpoint={secure}")["created"]


def test_certificates_that_are_not_good_enough(monkeypatch, authority, tmp_path):
    """Of another CA, or for another host; and a CA file that is not there."""
    other = Authority(tmp_path / "other")
    with service(monkeypatch, "plain") as url:
        with tls_in_front_of(url, *authority.sign("localhost")) as secure:
            run = f"s3://bucket/run?endpoint={secure}"
            refused(PERMISSION_DENIED, ["not trusted"], "init", run, AWS_CA_BUNDLE=str(other.certificate))
            refused(PERMISSION_DENIED, ["not trusted"], "init", run, AWS_CA_BUNDLE=str(tmp_path / "missing.pem"))
        with tls_in_front_of(url, *authority.sign("elsewhere.example")) as secure:
            run = f"s3://bucket/run?endpoint={secure}"
            refused(PERMISSION_DENIED, ["not trusted"], "init", run, AWS_CA_BUNDLE=str(authority.certificate))
        refused(NOT_FOUND, ["no run"], "log", f"s3://bucket/run?endpoint={url}")


def test_publishing_to_hugging_face_with_a_token_alone_says_how_to_get_keys(monkeypatch, checkpoints, tmp_path):
    """The hub is a plain HTTP server with no files: there is no run yet."""
    (tmp_path / "empty").mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=tmp_path / "empty")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as hub:
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
        result = weightwire("publish", "hf://buckets/owner/bucket/runs/one", checkpoints[0])
        hub.shutdown()
        thread.join()
    assert result.returncode == PERMISSION_DENIED and result.stderr.count("\n") == 1
    assert "Generate S3 credentials" in result.stderr and "hf_secret" not in result.stderr, result.stderr
