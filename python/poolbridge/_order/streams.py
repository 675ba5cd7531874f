"""Reads the stream arguments of users and array libraries."""

from __future__ import annotations

import operator
from typing import Any

from poolbridge._memory import dlpack as _dlpack
from poolbridge._order.timeline import StreamKey
from poolbridge._sys.error_texts import shown
from poolbridge._sys.process import this_thread

_LEGACY = 1
_PER_THREAD = 2


def stream_key(device: tuple[int, int], stream: Any) -> StreamKey | None:
    """Check a stream argument and return the stream's key.

    Parameters
    ----------
    device
        DLPack's device type and id.
    stream
        On the CPU: None. On CUDA, a number of the array API standard: None or 1 is the legacy default stream, 2 is the
        per-thread default stream, a larger number is a stream handle, and -1 asks for no ordering. Or a stream object
        with ``__cuda_stream__``, ``ptr`` or ``cuda_stream``: a stream of CuPy, PyTorch or cuda.core.

    Returns
    -------
    StreamKey or None
        The key; None on the CPU and for -1, where no ordering is needed.

    Raises
    ------
    ValueError
        `stream` is 0 (ambiguous) or another number without a meaning; or `stream` is not None on the CPU.
    """
    if device[0] == _dlpack.CPU:
        if stream is not None:
            raise ValueError(f"stream must be None for memory of the CPU, got {shown(stream)}")
        return None
    if stream is None:
        return StreamKey(device[1], _LEGACY)
    number = stream if type(stream) is int else _handle(stream)
    if number > _PER_THREAD or number == _LEGACY:
        return StreamKey(device[1], number)
    if number == _PER_THREAD:
        return StreamKey(device[1], number, this_thread())
    if number == -1:
        return None
    if number == 0:
        raise ValueError("stream 0 is ambiguous: pass 1 for the legacy default stream, 2 for the per-thread one")
    raise ValueError(f"stream {number} is no stream: pass None, -1, 1, 2 or a stream handle")


def _handle(stream: Any) -> int:
    """Return the handle of a library's stream object. An object for the null stream gives the legacy default stream."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        found = protocol() if callable(protocol) else protocol
        return int(found[1]) or _LEGACY
    for name in ("ptr", "cuda_stream"):
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(handle) or _LEGACY
    return operator.index(stream)
