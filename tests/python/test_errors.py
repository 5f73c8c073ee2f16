"""The exceptions are the kinds of errors that the command has, by the table in src/runner/error_kinds.cc."""

import pytest
import weightwire as ww
from weightwire import _core, errors

KINDS = _core.error_kinds()


@pytest.mark.parametrize("kind", KINDS, ids=[kind["name"] for kind in KINDS])
def test_each_kind_has_an_exception(kind):
    exception = getattr(errors, kind["exception"])
    assert issubclass(exception, ww.WeightwireError)
    assert exception.code == kind["name"] and exception.retryable == kind["retryable"]
    assert getattr(ww, kind["exception"]) is exception


def test_no_exception_is_missing_in_the_table():
    classes = {name for name, thing in vars(errors).items() if isinstance(thing, type) and name.endswith("Error")}
    assert classes == {kind["exception"] for kind in KINDS} | {"WeightwireError"}


@pytest.mark.parametrize(
    ("exception", "builtin"),
    [
        (ww.InvalidArgumentError, ValueError),
        (ww.NotFoundError, FileNotFoundError),
        (ww.LocalIOError, OSError),
        (ww.PermissionDeniedError, PermissionError),
        (ww.WaitTimeoutError, TimeoutError),
    ],
)
def test_handlers_of_builtin_exceptions_work(exception, builtin):
    assert issubclass(exception, builtin)
    assert str(exception("one sentence")) == "one sentence"
