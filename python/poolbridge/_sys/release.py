"""Which version of poolbridge this is."""

from __future__ import annotations

from functools import cache


@cache
def release() -> str:
    """Give the version of the package as it was installed; ``"unknown"`` where it is not installed."""
    from importlib import metadata  # slow to import, and seldom needed

    try:
        return metadata.version("poolbridge")
    except metadata.PackageNotFoundError:
        return "unknown"
