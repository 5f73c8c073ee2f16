"""The headers by which a server names the versions that made a completion."""

VERSION_HEADER = "weightwire-version"
"""The oldest version that made a token."""
VERSION_SPANS_HEADER = "weightwire-version-spans"
"""`3:0-17 4:17-40, 4:0-9`: for each completion, the versions and their tokens, from the first to before the last."""
