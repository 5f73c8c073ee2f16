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

from weightwire._fp8 import Fp8
from weightwire._load import load, load_async
from weightwire._publisher import Publisher, PublisherStatus
from weightwire._publisher_options import PublisherOptions
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
from weightwire.follower import Follower, FollowerStats

__version__ = "0.1.0"
__all__ = [
    "ConflictError",
    "CorruptError",
    "Follower",
    "FollowerStats",
    "Fp8",
    "InvalidArgumentError",
    "LocalIOError",
    "MismatchError",
    "NotFoundError",
    "PermissionDeniedError",
    "PublishStatus",
    "Publisher",
    "PublisherOptions",
    "PublisherStatus",
    "TensorChange",
    "Ticket",
    "UnavailableError",
    "UnsupportedError",
    "Update",
    "WaitTimeoutError",
    "WeightwireError",
    "load",
    "load_async",
]
