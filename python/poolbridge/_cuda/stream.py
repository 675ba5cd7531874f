"""Words that streams of a GPU write and wait for, and copies in their order: the driver's calls that never wait."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any, Final

from poolbridge._cuda.cuda import bindings, call, contexts, current, synchronize
from poolbridge._sys.errors import DriverError

PER_THREAD: Final = 2

_PORTABLE: Final = 1
_DEVICEMAP: Final = 2
_READ_ONLY: Final = 8
_GEQ: Final = 0
_DEFAULT: Final = 0
_NON_BLOCKING: Final = 1

_own_lock = threading.Lock()
_own: dict[int, Any] = {}


@cache
def supported(ordinal: int) -> bool:
    """Whether streams of a GPU can write and wait for 64-bit words."""
    attribute = bindings().CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
    return bool(call("cuDeviceGetAttribute", attribute, call("cuDeviceGet", ordinal)))


def register(ordinal: int, address: int, nbytes: int, *, write: bool) -> int:
    """Let GPUs reach memory of this process; give its address there."""
    flags = _PORTABLE | _DEVICEMAP | (0 if write else _READ_ONLY)
    with current(ordinal):
        call("cuMemHostRegister", address, nbytes, flags)
        return int(call("cuMemHostGetDevicePointer", address, 0))


def unregister(ordinal: int, address: int) -> None:
    """Take memory away from the GPUs, once all work is done that this process has queued on them."""
    # The driver would wait by itself, for one GPU, and perhaps keep others from calling it meanwhile.
    for known in list(contexts):
        synchronize(known)
    with current(ordinal):
        call("cuMemHostUnregister", address)


def write(ordinal: int, stream: int, address: int, value: int) -> None:
    """Have a stream write a word, after the work that it has so far."""
    _on_stream("cuStreamWriteValue64", ordinal, stream, address, value, _DEFAULT)


def wait(ordinal: int, stream: int, address: int, value: int) -> None:
    """Have a stream wait, before further work, until a word has a value or more."""
    _on_stream("cuStreamWaitValue64", ordinal, stream, address, value, _GEQ)


def recorded(ordinal: int, stream: int) -> bool:
    """Whether a stream's work is being recorded into a graph, or cannot be asked about."""
    try:
        with current(ordinal):
            return int(call("cuStreamIsCapturing", stream)) != 0
    except DriverError:
        return True


def record(ordinal: int, stream: int, event: int) -> None:
    """Have an event stand for the work that a stream has so far."""
    with current(ordinal):
        call("cuEventRecord", event, stream)


def wait_for_event(ordinal: int, stream: int, event: int) -> None:
    """Have a stream wait, before further work, for what an event stands for."""
    _on_stream("cuStreamWaitEvent", ordinal, stream, event, _DEFAULT)


def synchronize_stream(ordinal: int, stream: int) -> None:
    """Wait until a stream has done all its work."""
    with current(ordinal):
        call("cuStreamSynchronize", stream)


def _on_stream(name: str, ordinal: int, stream: int, *arguments: Any) -> None:
    if stream > PER_THREAD:
        # A stream knows its context: nothing has to be current.
        driver = bindings()
        (result,) = getattr(driver, name)(stream, *arguments)
        if result == driver.CUresult.CUDA_SUCCESS:
            return
        if result not in {driver.CUresult.CUDA_ERROR_INVALID_CONTEXT, driver.CUresult.CUDA_ERROR_INVALID_HANDLE}:
            raise DriverError(f"{name}: {result.name}")
    with current(ordinal):
        call(name, stream, *arguments)


def own_stream(ordinal: int) -> int:
    """Give a stream of poolbridge's own, which blocks no other; there is one for each GPU."""
    stream = _own.get(ordinal)
    if stream is None:
        with _own_lock:
            stream = _own.get(ordinal)
            if stream is None:
                with current(ordinal):
                    stream = _own[ordinal] = call("cuStreamCreate", _NON_BLOCKING)
    return int(stream)


def copy(ordinal: int, stream: int, destination: int, source: int, nbytes: int) -> None:
    """Copy between two addresses on GPUs, in a stream's order; the source must stay until that is done."""
    with current(ordinal):
        call("cuMemcpyAsync", destination, source, nbytes, stream)
