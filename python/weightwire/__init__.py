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
from weightwire._ticket import Ticket, TicketStats
from weightwire._update import TensorChange, Update
from weightwire.errors import (
    CorruptError,
    InvalidArgumentError,
    IoError,
    LimitError,
    MismatchError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    UnsupportedError,
    WaitTimeout,
    WeightwireError,
)
from weightwire.follower import Follower, FollowerStats
from weightwire.publisher import Publisher, PublisherStats

__version__ = "0.1.0"
__all__ = [
    "CorruptError",
    "Follower",
    "FollowerStats",
    "Fp8",
    "InvalidArgumentError",
    "IoError",
    "LimitError",
    "MismatchError",
    "NotFoundError",
    "Publisher",
    "PublisherStats",
    "RefusedError",
    "TensorChange",
    "Ticket",
    "TicketStats",
    "UnavailableError",
    "UnsupportedError",
    "Update",
    "WaitTimeout",
    "WeightwireError",
    "load",
    "load_async",
]
