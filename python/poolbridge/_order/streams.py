"""What users and array libraries name streams by."""

from __future__ import annotations

import operator
from typing import Any

from poolbridge._memory import dlpack as _dlpack
from poolbridge._order.timeline import StreamKey
from poolbridge._sys.process import this_thread

_LEGACY = 1
_PER_THREAD = 2


def stream_key(device: tuple[int, int], stream: Any) -> StreamKey | None:
    """Check a stream and give the key that it is known by.

    Parameters
    ----------
    device
        DLPack's device type and id.
    stream
        As the array API standard has it. On CUDA: None or 1 is the legacy default stream, 2 the per-thread default
        stream, a larger number a stream handle, -1 asks for no ordering. On the CPU: None. Or an object of a library:
        one with ``__cuda_stream__``, as CuPy, PyTorch and cuda.core make them, or with ``ptr`` or ``cuda_stream``.

    Returns
    -------
    StreamKey or None
        None where there is nothing to order: on the CPU, and for -1.

    Raises
    ------
    ValueError
        0, which is ambiguous, or another number without meaning; anything but None on the CPU.
    """
    if device[0] == _dlpack.CPU:
        if stream is not None:
            raise ValueError(f"stream must be None for memory of the CPU, got {stream!r}")
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
    """Give the handle behind a library's stream; the null stream of an object is the legacy default stream."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        found = protocol() if callable(protocol) else protocol
        return int(found[1]) or _LEGACY
    for name in ("ptr", "cuda_stream"):
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(handle) or _LEGACY
    return operator.index(stream)
