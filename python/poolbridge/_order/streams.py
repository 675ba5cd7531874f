"""Converts the `stream` arguments of users and array libraries into stream keys."""

from __future__ import annotations

import operator
from typing import Any

from poolbridge._memory import dlpack as _dlpack
from poolbridge._order.timeline import StreamKey
from poolbridge._sys.error_texts import shown
from poolbridge._sys.process import this_thread

_LEGACY = 1
PER_THREAD = 2


def stream_key(device: tuple[int, int], stream: Any) -> StreamKey | None:
    """Check a stream argument and return the stream's key.

    Parameters
    ----------
    device
        DLPack's device type and id.
    stream
        For memory of the CPU: None. For memory of a GPU: a number as in the array API standard, None, or a stream
        object. None and 1 are the legacy default stream, 2 is the per-thread default stream, and a larger number is a
        stream handle. With -1, poolbridge does not order the caller's work. A stream object is an object of CuPy,
        PyTorch or cuda.core with the attribute ``__cuda_stream__``, ``ptr`` or ``cuda_stream``.

    Returns
    -------
    StreamKey or None
        The key. None for memory of the CPU and for -1, because then no stream must wait.

    Raises
    ------
    ValueError
        `stream` is 0, which is ambiguous, or another number that has no meaning. Or the memory is of the CPU, and
        `stream` is not None.
    """
    if device[0] == _dlpack.CPU:
        if stream is not None:
            raise ValueError(f"stream must be None for memory of the CPU, got {shown(stream)}")
        return None
    if stream is None:
        return StreamKey(device[1], _LEGACY)
    number = stream if type(stream) is int else _handle(stream)
    if number > PER_THREAD:
        return StreamKey(device[1], number)
    if number == _LEGACY:
        return StreamKey(_gpu_of(stream, device[1]), number)
    if number == PER_THREAD:
        return StreamKey(_gpu_of(stream, device[1]), number, this_thread())
    if number == -1:
        return None
    if number == 0:
        raise ValueError("stream 0 is ambiguous: pass 1 for the legacy default stream, 2 for the per-thread one")
    raise ValueError(f"stream {number} is no stream: pass None, -1, 1, 2 or a stream handle")


def _gpu_of(stream: Any, ordinal: int) -> int:
    """Return the GPU that an object of PyTorch or CuPy for a default stream names; `ordinal` if it names none."""
    for name in ("device_index", "device_id"):
        number = getattr(stream, name, None)
        if isinstance(number, int) and number >= 0:
            return number
    return ordinal


def _handle(stream: Any) -> int:
    """Return the handle of a library's stream object. For the handle 0, return the legacy default stream."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        found = protocol() if callable(protocol) else protocol
        return int(found[1]) or _LEGACY
    for name in ("ptr", "cuda_stream"):
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(handle) or _LEGACY
    return operator.index(stream)
