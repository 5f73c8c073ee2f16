"""weightwire: a model's weights from a trainer to inference servers, through nothing but an object store.

>>> import tempfile
>>> import numpy as np
>>> import weightwire as ww
>>> bucket = tempfile.mkdtemp()
>>> with ww.Publisher(bucket, {"w": np.ones(3, np.float32)}) as publisher:
...     ticket = publisher.publish(step=1)
>>> ww.load(bucket)
{'w': array([1., 1., 1.], dtype=float32)}
"""

from weightwire._follower import Follower, FollowerStatus
from weightwire._fp8 import Fp8
from weightwire._mirror_lock import MirrorVersion, mirror_lock
from weightwire._publisher import Publisher, PublisherStatus
from weightwire._publisher_options import PublisherOptions
from weightwire._run import FollowerInfo, Run, VersionInfo, load, load_async
from weightwire._ticket import PublishStatus, Ticket
from weightwire._update import TensorChange, Update
from weightwire.errors import (
    ConflictError,
    CorruptError,
    InvalidArgumentError,
    LocalIOError,
    MismatchError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnsupportedError,
    WaitTimeoutError,
    WeightwireError,
)

__version__ = "0.1.0"
__all__ = [
    "ConflictError",
    "CorruptError",
    "Follower",
    "FollowerInfo",
    "FollowerStatus",
    "Fp8",
    "InvalidArgumentError",
    "LocalIOError",
    "MirrorVersion",
    "MismatchError",
    "NotFoundError",
    "PermissionDeniedError",
    "PublishStatus",
    "Publisher",
    "PublisherOptions",
    "PublisherStatus",
    "Run",
    "TensorChange",
    "Ticket",
    "UnavailableError",
    "UnsupportedError",
    "Update",
    "VersionInfo",
    "WaitTimeoutError",
    "WeightwireError",
    "load",
    "load_async",
    "mirror_lock",
]
