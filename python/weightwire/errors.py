"""The exceptions. Each message is one sentence: what was being done, on what, what went wrong, what to do.

Callers need no list of classes: `error.retryable` tells whether the same call may succeed later, and `error.code` is
the kind of error, as in the JSON of the command. `weightwire --help` lists the same kinds with their exit statuses.
"""

from typing import ClassVar


class WeightwireError(Exception):
    """The base class of all of them."""

    code: ClassVar[str] = "unexpected"
    """The kind of error: "not_found" and so on."""
    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later, without anyone acting."""


class InvalidArgumentError(WeightwireError, ValueError):
    """The request itself is wrong; repeating it does not help."""

    code = "invalid_argument"


class NotFoundError(WeightwireError, FileNotFoundError):
    """A run, a version, a file or an object does not exist."""

    code = "not_found"


class LocalIOError(WeightwireError, OSError):
    """The operating system refused: a full disk, a missing permission."""

    code = "local_io"


class CorruptError(WeightwireError):
    """Bytes are damaged or break the rules of their format. The weights that are held stay exact."""

    code = "corrupt"


class MismatchError(WeightwireError):
    """Bytes are well-formed, but belong to another base, layout, state or run."""

    code = "mismatch"


class UnsupportedError(WeightwireError):
    """The request is valid, but needs a newer weightwire or another store, or is larger than a limit allows."""

    code = "unsupported"


class ConflictError(WeightwireError):
    """Another publisher has committed the version. Do not restart: make sure that only one publishes."""

    code = "conflict"


class PermissionDeniedError(WeightwireError, PermissionError):
    """The store refused the credentials, or does not allow this operation to them. An operator must act."""

    code = "permission_denied"


class UnavailableError(WeightwireError):
    """The network or the service failed. Try again."""

    code = "unavailable"
    retryable = True


class WaitTimeoutError(WeightwireError, TimeoutError):
    """What was waited for did not happen in time."""

    code = "wait_timeout"
    retryable = True
