"""Makes streams write a word, wait for a word or for an event, and copy memory, by calls of the CUDA driver."""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from typing import Any, Final

from poolbridge._cuda import driver as _driver
from poolbridge._cuda.cuda import call, contexts, current, pushed, synchronize
from poolbridge._cuda.driver import HAS_64_BIT_WORDS, Result, attempt, name_of
from poolbridge.errors import (
    DriverError,
    StreamCaptureError,
)

PER_THREAD: Final = 2

_PORTABLE: Final = 1
_DEVICEMAP: Final = 2
_READ_ONLY: Final = 8
_GEQ: Final = 0
_DEFAULT: Final = 0

_WRITE: Final = "cuStreamWriteValue64"
_WAIT: Final = "cuStreamWaitValue64"
_CAPTURING: Final = "cuStreamIsCapturing"


def _load() -> Any:
    """Return the function `stream_words` of the native module; None if poolbridge has no native module."""
    try:
        return importlib.import_module("poolbridge._native").stream_words
    except ImportError:
        return None


# `_stream_words` calls these driver functions faster than `driver.attempt` does. One call takes at most `_MOST` words.
_stream_words: Final = _load()
_MOST: Final = 64
# `_stream_words` returns `_CAPTURED` while the stream's work is being captured.
_CAPTURED: Final = -1


@cache
def supported(ordinal: int) -> bool:
    """Whether streams of a GPU can write 64-bit words and wait for them."""
    return bool(call("cuDeviceGetAttribute", HAS_64_BIT_WORDS, call("cuDeviceGet", ordinal)))


def register(ordinal: int, address: int, nbytes: int, *, write: bool) -> int:
    """Let the GPUs use memory of this process. Return the memory's address for the GPU `ordinal`."""
    flags = _PORTABLE | _DEVICEMAP | (0 if write else _READ_ONLY)
    with current(ordinal):
        call("cuMemHostRegister", address, nbytes, flags)
        return int(call("cuMemHostGetDevicePointer", address, 0))


def unregister(ordinal: int, address: int, *, wait: bool) -> None:
    """End the GPUs' access to the memory at `address`.

    Parameters
    ----------
    wait
        True: the GPUs may still use the memory, so `unregister` first waits until the GPUs have done all work of this
        process. This wait invalidates every capture into a CUDA graph.
    """
    # `cuMemHostUnregister` itself waits for one GPU only, and may block the driver calls of other threads during this
    # wait.
    for known in list(contexts) if wait else ():
        synchronize(known)
    with current(ordinal):
        call("cuMemHostUnregister", address)


def write(ordinal: int, stream: int, address: int, value: int) -> None:
    """Make `stream` write `value` at `address` after its work so far. Raises the errors of `refuse_capture`."""
    if not _words(_WRITE, stream, _DEFAULT, address, value):
        _on_stream(_WRITE, ordinal, stream, address, value, _DEFAULT)


def write_functions(stream: int) -> tuple[int, int]:
    """Return the addresses of `cuStreamIsCapturing` and `cuStreamWriteValue64`. The native module calls them.

    Both addresses are 0 if the native module cannot call these functions for this stream.
    """
    return (
        (0, 0)
        if stream <= PER_THREAD or _stream_words is None
        else (_driver.address(_CAPTURING), _driver.address(_WRITE))
    )


def wait(ordinal: int, stream: int, address: int, value: int) -> None:
    """Make the later work of `stream` wait until the word at `address` is at least `value`.

    Raises the errors of `refuse_capture`.
    """
    wait_for_words(ordinal, stream, [address, value])


def wait_for_words(ordinal: int, stream: int, words: list[int]) -> None:
    """Make the later work of `stream` wait until each word in `words` is at least its value.

    `words` contains, for each word, its address and then its value. Raises the errors of `refuse_capture`.
    """
    for start in range(0, len(words), 2 * _MOST):
        some = words[start : start + 2 * _MOST]
        if _words(_WAIT, stream, _GEQ, *some):
            continue
        for address, value in zip(some[::2], some[1::2], strict=True):
            _on_stream(_WAIT, ordinal, stream, address, value, _GEQ)


def captured(ordinal: int, stream: int) -> bool:
    """Whether the program is capturing the stream's work into a CUDA graph."""
    try:
        refuse_capture(ordinal, stream)
    except StreamCaptureError:
        return True
    return False


def refuse_capture(ordinal: int, stream: int) -> None:
    """Raise an error if the program is capturing the stream's work into a CUDA graph.

    Each launch of the graph would repeat the write or the wait of the stream.

    Raises
    ------
    StreamCaptureError
        The program is capturing the stream's work into a CUDA graph.
    """
    if stream > PER_THREAD and _stream_words is not None:
        code = _stream_words(_driver.address(_WRITE), _driver.address(_CAPTURING), stream, _DEFAULT)
    else:
        status = ctypes.c_int()
        with pushed(ordinal):
            result, _ = attempt(_CAPTURING, stream, ctypes.byref(status))
        code = _CAPTURED if result == Result.STREAM_CAPTURE_IMPLICIT or (not result and status.value) else 0
    if code == _CAPTURED:
        raise _is_captured(stream)


def _is_captured(stream: int) -> StreamCaptureError:
    return StreamCaptureError(
        f"the work of stream {stream:#x} is being captured into a CUDA graph, which would write and wait again at each "
        "launch: end the capture first"
    )


def record(ordinal: int, stream: int, event: int) -> None:
    """Record `event` in `stream`, after the stream's work so far. Raises the errors of `refuse_capture`."""
    refuse_capture(ordinal, stream)
    with current(ordinal):
        call("cuEventRecord", event, stream)


def wait_for_event(ordinal: int, stream: int, event: int) -> None:
    """Make the later work of `stream` wait for `event`. Raises the errors of `refuse_capture`."""
    _on_stream("cuStreamWaitEvent", ordinal, stream, event, _DEFAULT)


def synchronize_stream(ordinal: int, stream: int) -> None:
    """Wait until a stream has done all its work."""
    with current(ordinal):
        call("cuStreamSynchronize", stream)


def _words(name: str, stream: int, flags: int, *words: int) -> bool:
    """Let the native module call the driver function `name`. Return False if the caller must call it."""
    if stream <= PER_THREAD or _stream_words is None:
        return False
    # The driver finds the stream's context from the stream handle, so no context has to be current in this thread.
    code = _stream_words(_driver.address(name), _driver.address(_CAPTURING), stream, flags, *words)
    if not code:
        return True
    if code == _CAPTURED:
        raise _is_captured(stream)
    _check(name, stream, code)
    return False


def _on_stream(name: str, ordinal: int, stream: int, *arguments: Any) -> None:
    refuse_capture(ordinal, stream)
    if stream > PER_THREAD:
        result, _ = attempt(name, stream, *arguments)
        if not result:
            return
        _check(name, stream, result)
    with pushed(ordinal):
        call(name, stream, *arguments)


def _check(name: str, stream: int, result: int) -> None:
    """Raise the error of a failed call of `name`.

    If the call may succeed after the caller has made a context current, return without an error.
    """
    why = name_of(result)
    if why.startswith("CUDA_ERROR_STREAM_CAPTURE"):  # the capture began after the check of the stream
        raise _is_captured(stream)
    if result not in {Result.INVALID_CONTEXT, Result.INVALID_HANDLE}:
        raise DriverError(f"{name}: {why}")


def copy(ordinal: int, stream: int, destination: int, source: int, nbytes: int) -> None:
    """Queue on `stream` a copy from `source` to `destination`. `source` must stay allocated until the copy is done.

    Raises the errors of `refuse_capture`: a graph would copy again at each launch.
    """
    refuse_capture(ordinal, stream)
    with current(ordinal):
        call("cuMemcpyAsync", destination, source, nbytes, stream)
