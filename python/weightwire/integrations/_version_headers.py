"""The headers by which a server names the versions that made a completion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

VERSION_HEADER = "weightwire-version"
"""The oldest version that made a token."""
VERSION_SPANS_HEADER = "weightwire-version-spans"
"""`3:0-17 4:17-40, 4:0-9`: for each completion, the versions and their tokens, from the first to before the last."""

# Clients take no more than 8 KB of one header.
_MAX_BYTES = 4096

Span = tuple[str, int, int]
"""The version, its first token, and the token after its last."""


def spans_value(completions: Iterable[Sequence[Span]]) -> str | None:
    """The value of VERSION_SPANS_HEADER; None if it is empty or too long for a header.

    >>> spans_value([[("3", 0, 17), ("4", 17, 40)], [("4", 0, 9)]])
    '3:0-17 4:17-40, 4:0-9'
    """
    texts = (" ".join(f"{version}:{start}-{end}" for version, start, end in spans) for spans in completions)
    value = ", ".join(texts)
    return value if value and len(value) <= _MAX_BYTES else None
