"""Finds the array library of a measurement, makes streams, and writes numbers into arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from poolbridge._cuda import cuda as _cuda
from poolbridge._libraries.consumers import Consumer, probe
from poolbridge.errors import UnavailableError

HEAD = np.dtype("<u8")
"""The type of an array's number. The first bytes of an array on the CPU hold the number. The consumer checks it."""


def put_number(array: Any, number: int) -> None:
    """Write a frame's number into the frame's first bytes."""
    array[: HEAD.itemsize].view(HEAD)[0] = number


def number_of(array: Any) -> int:
    """Read the number of an array on the CPU from its first bytes."""
    return int(array[: HEAD.itemsize].view(HEAD)[0])


def preferred_consumer() -> str:
    """Return the name of the array library that the benchmarks prefer for device memory."""
    return str(probe()["consumers"]["device"][0])


def stream_of(library: Consumer) -> Any:
    """Make a stream of the first GPU. If the library has no streams (NumPy), return poolbridge's own stream."""
    try:
        return library.stream(0)
    except UnavailableError:
        return _cuda.own_stream(0)
