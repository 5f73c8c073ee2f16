"""The routes of an engine that follows, without a web framework: the same requests, answers and errors in all engines.

    GET  /weightwire/status
    POST /weightwire/pin      {"version": 12}; without a version, the one that the engine holds
    POST /weightwire/unpin

Errors have the shape of OpenAI's: {"error": {"message", "type", "code"}}. `code` is the kind of error, as in
`WeightwireError.code`.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Protocol

from weightwire.errors import InvalidArgumentError, WeightwireError

STATUS, PIN, UNPIN = "/weightwire/status", "/weightwire/pin", "/weightwire/unpin"
METHODS = {STATUS: "GET", PIN: "POST", UNPIN: "POST"}

# For each kind of error; 500 for the others. 502, because a store that refuses the server's credentials is not the
# client's fault.
_HTTP_STATUS = {
    "invalid_argument": 400,
    "not_found": 404,
    "mismatch": 409,
    "conflict": 409,
    "unsupported": 422,
    "permission_denied": 502,
    "unavailable": 503,
    "wait_timeout": 504,
}


class FollowingEngine(Protocol):
    @property
    def status(self) -> dict[str, Any]: ...
    def pin(self, version: int | None) -> None:
        """Without a version, pins the one that it holds."""
        ...

    def unpin(self) -> None: ...


class Answer(NamedTuple):
    status: int
    body: dict[str, Any]


def answer(engine: FollowingEngine, path: str, body: bytes) -> Answer:
    """Answers a request for one of METHODS. Never raises."""
    try:
        if path == PIN:
            engine.pin(_version_of(_fields_of(path, body, "version")))
        elif path == UNPIN:
            _fields_of(path, body)
            engine.unpin()
        return Answer(200, engine.status)
    except Exception as error:
        return error_answer(error)


def error_answer(error: Exception) -> Answer:
    code = error.code if isinstance(error, WeightwireError) else "unexpected"
    status = _HTTP_STATUS.get(code, 500)
    kind = "invalid_request_error" if status < 500 else "server_error"
    message = str(error) if isinstance(error, WeightwireError) else f"{type(error).__name__}: {error}"
    return Answer(status, {"error": {"message": message, "type": kind, "code": code}})


def _fields_of(path: str, body: bytes, *known: str) -> dict[str, Any]:
    """The fields of a JSON object. An empty body is an empty object."""
    try:
        fields = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the body of POST {path} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidArgumentError(f"the body of POST {path} must be a JSON object")
    for name in fields:
        if name not in known:
            allowed = f"it takes only '{known[0]}'" if known else "it takes none"
            raise InvalidArgumentError(f"POST {path} has no field '{name[:100]}'; {allowed}")
    return fields


def _version_of(fields: dict[str, Any]) -> int | None:
    version = fields.get("version")
    if version is not None and (type(version) is not int or not 0 <= version < 2**63):
        text = json.dumps(version)[:100]
        raise InvalidArgumentError(f"the version to pin must be a whole number of 0 or more, and is {text}")
    return version
