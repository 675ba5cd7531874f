"""Checks that ``distributed`` is installed and new enough, before another module of this package imports it."""

from __future__ import annotations

from importlib import metadata
from typing import Final

OLDEST: Final = (2025, 1, 0)
_INSTALL: Final = "pip install 'poolbridge[dask]'"


def check(installed: str | None) -> None:
    """Check that `installed`, the installed version of ``distributed``, is new enough; None: it is not installed.

    Raises
    ------
    ImportError
        ``distributed`` is too old. If ``distributed`` is not installed, the error is a `ModuleNotFoundError`.
    """
    oldest = ".".join(map(str, OLDEST))
    if installed is None:
        raise ModuleNotFoundError(
            f"poolbridge.dask needs the package distributed, {oldest} or newer, which is not installed: {_INSTALL}",
            name="distributed",
        )
    numbers = tuple(int(part) for part in installed.split(".")[:3] if part.isdecimal())
    if numbers < OLDEST:
        raise ImportError(
            f"poolbridge.dask needs distributed {oldest} or newer, and {installed} is installed: {_INSTALL}",
            name="distributed",
        )


def _installed() -> str | None:
    try:
        return metadata.version("distributed")
    except metadata.PackageNotFoundError:
        return None


check(_installed())
