"""The routes of all engines: answers, refusals, and requests that other API processes forward."""

import asyncio
import json
import os

import pytest
import weightwire as ww
from weightwire import _core
from weightwire.integrations import _routes
from weightwire.integrations._control_socket import ControlSocket, forward
from weightwire.integrations._engine_status import EngineStatus
from weightwire.integrations._routes import PIN, STATUS, UNPIN, answer, error_answer

FIELDS = [
    *("run", "run_id", "version", "step", "digest", "newest_version", "staged_version", "pinned_version"),
    *("lag_versions", "lag_seconds", "has_lease", "waiting_for", "last_error"),
    *("bytes_received", "versions_applied", "anchors_loaded"),
    *("mirror", "can_update", "refused", "not_compared", "last_update", "last_verify"),
]


class Engine:
    def __init__(self):
        self.status = EngineStatus("run", "mirror", None, "weightwire").fields
        self.pins = []

    def pin(self, version):
        self.pins.append(version)
        self.status["pinned_version"] = version

    def unpin(self):
        self.pins.append("none")


def test_the_status_has_the_documented_fields_and_absent_is_null():
    status = answer(Engine(), STATUS, b"")
    assert status.status == 200
    assert list(status.body) == FIELDS
    absent = {name for name, value in status.body.items() if value is None}
    assert absent == set(FIELDS) - {
        *("run", "mirror", "has_lease", "can_update", "refused", "not_compared"),
        *("bytes_received", "versions_applied", "anchors_loaded"),
    }


def test_status_tells_version_lag_and_updates():
    status = EngineStatus("run", None, None, "weightwire")
    status.set_held(3, 30, "ab", "cd")
    status.add_seen(5)
    status.update_lag()
    status.updated(3, 0.25, elements=7)
    fields = status.fields
    assert (fields["version"], fields["step"], fields["digest"], fields["run_id"]) == (3, 30, "ab", "cd")
    assert (fields["newest_version"], fields["lag_versions"]) == (5, 2) and fields["lag_seconds"] > 0
    update = fields["last_update"]
    assert update["time"].endswith("Z") and update["commit_seconds"] == 0.25 and update["elements"] == 7
    json.dumps(fields)


def test_errors_are_told_until_the_next_success():
    status = EngineStatus("run", None, None, "weightwire")
    status.set_error(ww.UnavailableError("the bucket"))
    assert status.fields["last_error"] == "the bucket"
    status.set_error(OSError("disk"))
    assert status.fields["last_error"] == "OSError: disk"
    status.set_error(None)
    assert status.fields["last_error"] is None


@pytest.mark.parametrize(("body", "version"), [(b'{"version": 12}', 12), (b"{}", None), (b"", None), (b" \n", None)])
def test_a_pin_names_a_version_or_means_the_one_held(body, version):
    engine = Engine()
    assert answer(engine, PIN, body).status == 200
    assert engine.pins == [version]


def test_unpin_takes_no_fields():
    engine = Engine()
    assert answer(engine, UNPIN, b"{}").status == 200
    refused = answer(engine, UNPIN, b'{"version": 3}')
    assert refused.status == 400 and "no field 'version'" in refused.body["error"]["message"]
    assert engine.pins == ["none"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"version": 12, "back": true}', "no field 'back'; it takes only 'version'"),
        (b'{"version": "12"}', 'and is "12"'),
        (b'{"version": 1.0}', "and is 1.0"),
        (b'{"version": true}', "and is true"),
        (b'{"version": -1}', "and is -1"),
        (b'{"version": 99999999999999999999}', "whole number"),
        (b"[]", "must be a JSON object"),
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_a_request_that_is_not_understood_is_refused_with_a_sentence(body, why):
    engine = Engine()
    refused = answer(engine, PIN, body)
    assert refused.status == 400
    error = refused.body["error"]
    assert why in error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_argument")
    assert engine.pins == []


def test_each_kind_of_error_has_a_status():
    codes = {kind["name"]: getattr(ww, kind["exception"]) for kind in _core.error_kinds()}
    for code, exception in codes.items():
        answered = error_answer(exception("a sentence"))
        assert answered.body["error"]["code"] == code
        assert answered.body["error"]["message"] == "a sentence"
        assert answered.status >= 400
    assert set(_routes._HTTP_STATUS) <= set(codes)
    assert error_answer(KeyError("x")).body["error"]["code"] == "unexpected"
    assert error_answer(ww.UnavailableError("x")).status == 503


# --- several API processes ---


def test_another_process_gets_the_same_answers():
    async def main():
        engine = Engine()
        control = ControlSocket(lambda path, body: answer(engine, path, body))
        socket = await control.open()
        assert os.stat(os.path.dirname(socket)).st_mode & 0o077 == 0
        assert await forward(socket, PIN, b'{"version": 7}') == answer(engine, STATUS, b"")
        assert engine.pins == [7]
        assert (await forward(socket, PIN, b'{"version": "7"}')).status == 400
        engine.status["not_compared"] = [f"parameter {i}" for i in range(200_000)]
        assert await forward(socket, STATUS, b"") == answer(engine, STATUS, b"")
        control.close()
        assert not os.path.exists(os.path.dirname(socket))
        gone = await forward(socket, STATUS, b"")
        assert (gone.status, gone.body["error"]["code"]) == (503, "unavailable")

    asyncio.run(main())


def test_garbage_on_the_control_socket_harms_nobody():
    async def main():
        engine = Engine()
        control = ControlSocket(lambda path, body: answer(engine, path, body))
        socket = await control.open()
        for garbage in (b"", b"x", b"[]", b"{}", b'{"path": 1, "body": 2}'):
            reader, writer = await asyncio.open_unix_connection(socket)
            writer.write(garbage)
            writer.write_eof()
            await reader.read()
            writer.close()
        assert (await forward(socket, STATUS, b"")).status == 200
        control.close()

    asyncio.run(main())
