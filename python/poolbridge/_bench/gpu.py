"""Does what several measurements on a GPU need: checks for a GPU, and makes streams."""

from __future__ import annotations

from typing import Any

from poolbridge._cuda import cuda as _cuda
from poolbridge._libraries.consumers import Consumer, probe
from poolbridge.errors import UnavailableError


def missing_gpu() -> str:
    """Return why this process can use no GPU; empty if this process can use a GPU."""
    try:
        return "" if _cuda.devices() else "this process sees no GPU"
    except UnavailableError as error:
        return str(error)


def preferred_consumer() -> str:
    """Return the name of the array library that the benchmarks prefer for device memory."""
    return str(probe()["consumers"]["device"][0])


def stream_of(library: Consumer) -> Any:
    """Make a stream of the first GPU. If the library has no streams (NumPy), return poolbridge's own stream."""
    try:
        return library.stream(0)
    except UnavailableError:
        return _cuda.own_stream(0)
