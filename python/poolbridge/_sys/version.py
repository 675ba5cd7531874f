"""The version of poolbridge."""

from __future__ import annotations

from functools import cache


@cache
def version() -> str:
    """Return the version of the installed package, or ``"unknown"`` if the package is not installed."""
    from importlib import metadata  # slow to import, and seldom needed

    try:
        return metadata.version("poolbridge")
    except metadata.PackageNotFoundError:
        return "unknown"
