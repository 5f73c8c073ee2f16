"""What can go wrong, as a small family of exceptions. Each message is one sentence that says what was being done, on
what, and what to do."""


class WeightwireError(Exception):
    """The base of all of them."""


class InvalidArgumentError(WeightwireError, ValueError):
    """The request itself is wrong; repeating it will not help."""


class NotFoundError(WeightwireError, LookupError):
    """A run, a version, a file or an object is not there."""


class IoError(WeightwireError, OSError):
    """The operating system refused: disk full, permission, and the like."""


class CorruptError(WeightwireError):
    """Bytes are damaged or break their format's rules. What is held stays exact."""


class MismatchError(WeightwireError):
    """Bytes are well-formed but belong to another base, layout, state or writer."""


class UnsupportedError(WeightwireError):
    """Valid, but it takes a newer weightwire, or a store that can do more."""


class LimitError(WeightwireError):
    """Larger than a named limit allows."""


class RefusedError(WeightwireError, PermissionError):
    """The store does not accept the credentials, or does not allow this to them; a person must act."""


class UnavailableError(WeightwireError):
    """Not now: network, overload, time-out. Trying again may help."""


class WaitTimeout(WeightwireError, TimeoutError):
    """What was waited for did not come in time."""
