"""Calls the CUDA driver, which is loaded when device memory is first used.

The functions that copy, wait or allocate leave the calling thread's current context as it was before the call.
"""

from __future__ import annotations

import ctypes
import operator
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from poolbridge._cuda import driver as _driver
from poolbridge._cuda.driver import Result, attempt, name_of
from poolbridge._sys.finaliser import while_running
from poolbridge.errors import (
    DeviceMemoryError,
    DeviceNotVisibleError,
    DriverError,
    StreamCaptureError,
)

BLOB_BYTES: Final = 64

_contexts_lock = threading.Lock()
contexts: dict[int, int] = {}
_own_streams: dict[tuple[int, bool], int] = {}
_NON_BLOCKING: Final = 1


# The driver


class AlreadyMappedError(DriverError):
    """The driver calls the memory, or the addresses, mapped."""


def call(name: str, *arguments: Any) -> Any:
    """Call the driver function `name` and return the value that it gives.

    Raises
    ------
    DeviceMemoryError
        The GPU is out of memory.
    StreamCaptureError
        CUDA forbids the call while the work of a stream is being captured into a graph.
    AlreadyMappedError
        The driver calls the memory, or the addresses, mapped.
    DriverError
        The driver returned another error.
    """
    result, stored = attempt(name, *arguments)
    if result:
        if result == Result.OUT_OF_MEMORY:
            raise DeviceMemoryError(f"{name}: the GPU is out of memory")
        why = name_of(result)
        if why.startswith("CUDA_ERROR_STREAM_CAPTURE"):
            raise StreamCaptureError(
                f"{name}: {why}: a stream's work is being captured into a CUDA graph: end the capture first"
            )
        error = AlreadyMappedError if result == Result.ALREADY_MAPPED else DriverError
        raise error(f"{name}: {why}")
    return stored


@contextmanager
def current(ordinal: int, own: Any = None) -> Iterator[None]:
    """Make a context current in a ``with`` block: the device's primary context, or the program's context `own`.

    Another thread or another library may be capturing work into a CUDA graph. In the block, calls such as
    `cuMemHostRegister` do not invalidate this capture.
    """
    mode = _exchange(_driver.RELAXED)
    try:
        with pushed(ordinal, own):
            yield
    finally:
        if mode is not None:
            _exchange(mode)


def _exchange(mode: int) -> int | None:
    """Set this thread's capture mode. Return the thread's earlier mode, or None if the driver refuses.

    Errors are ignored: if `current` called this function at the end of its ``with`` block and the function raised an
    exception, the caller would lose the result of the block.
    """
    exchanged = ctypes.c_int(mode)
    result, _ = attempt("cuThreadExchangeStreamCaptureMode", ctypes.byref(exchanged))
    return None if result else exchanged.value


@contextmanager
def pushed(ordinal: int, own: Any = None) -> Iterator[None]:
    """Make a context current, like `current`, for driver calls that CUDA also allows during a capture."""
    context = contexts.get(ordinal) if own is None else own
    if context is None:
        with _contexts_lock:
            context = contexts.get(ordinal)
            if context is None:
                context = contexts[ordinal] = call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", ordinal))
        for alone in (False, True):  # before poolbridge makes any stream wait
            own_stream(ordinal, alone=alone)
    call("cuCtxPushCurrent", context)
    try:
        yield
    finally:
        pop(context)


def own_stream(ordinal: int, *, alone: bool = False) -> int:
    """Return poolbridge's own stream on a GPU. This stream does not synchronize with the legacy default stream.

    Measured on an H100: one of about 40 calls of `cuStreamCreate` returns only when all streams of the context are
    idle. So poolbridge makes its streams when this process first uses the GPU, and holds no lock meanwhile.

    Parameters
    ----------
    ordinal
        The GPU.
    alone
        True: the stream that nobody makes wait, for copies that must not wait for other work.
    """
    stream = _own_streams.get((ordinal, alone))
    if stream is None:
        with current(ordinal):
            made = call("cuStreamCreate", _NON_BLOCKING)
            stream = _own_streams.setdefault((ordinal, alone), made)
            if stream is not made:  # another thread was faster, or `current` has just made it
                call("cuStreamDestroy", made)
    return stream


def pop(context: int) -> None:
    """Pop `context` from the thread's stack. Ignore errors: an exception would discard the caller's result."""
    if not attempt("cuCtxPopCurrent")[0]:
        return
    result, on_top = attempt("cuCtxGetCurrent")
    if not result and on_top == context:
        attempt("cuCtxPopCurrent")


# Devices


def _uuid(ordinal: int) -> str:
    return f"GPU-{uuid.UUID(bytes=call('cuDeviceGetUuid', call('cuDeviceGet', ordinal)))}"


def devices() -> list[dict[str, Any]]:
    """Return the ordinal, the name and the UUID of each GPU that this process sees.

    Raises
    ------
    UnavailableError
        There is no driver or no GPU.
    """
    found = []
    for ordinal in range(call("cuDeviceGetCount")):
        name = ctypes.create_string_buffer(256)
        call("cuDeviceGetName", name, len(name), call("cuDeviceGet", ordinal))
        found.append({"ordinal": ordinal, "name": name.value.decode(errors="replace"), "uuid": _uuid(ordinal)})
    return found


def find_device(device_uuid: str) -> int:
    """Return the ordinal that the GPU with the UUID `device_uuid` has in this process.

    Raises
    ------
    DeviceNotVisibleError
        This process cannot see the GPU.
    """
    seen = devices()
    wanted = device_uuid.lower().removeprefix("gpu-").removeprefix("mig-")
    for device in seen:
        if device["uuid"].removeprefix("GPU-") == wanted:
            return int(device["ordinal"])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    raise DeviceNotVisibleError(
        f"the memory is on GPU {device_uuid}, which this process cannot see: it sees "
        f"{', '.join(device['uuid'] for device in seen) or 'none'}"
        + (f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else "")
    )


def ordinal_of(device: int | str | None) -> int:
    """Return a GPU's ordinal. `device` is an ordinal, a text such as ``"cuda:0"``, a UUID, or None for the first GPU.

    Raises
    ------
    DeviceNotVisibleError
        This process cannot see the GPU.
    """
    if isinstance(device, str):
        number = device.removeprefix("cuda:")
        if not number.isdecimal():
            return find_device(device)
        device = int(number)
    count = int(call("cuDeviceGetCount"))
    ordinal = operator.index(device or 0)
    if not 0 <= ordinal < count:
        raise DeviceNotVisibleError(f"there is no GPU {ordinal}: this process sees {count}")
    return ordinal


def describe(ordinal: int) -> str:
    """Return one text that contains the GPU's ordinal, name and UUID."""
    device = devices()[ordinal]
    return f"{ordinal} ({device['name']}, {device['uuid']})"


def can_access_peer(ordinal: int, owner: int) -> bool:
    """Whether the GPU `ordinal` can directly use the memory of the GPU `owner`."""
    return bool(call("cuDeviceCanAccessPeer", call("cuDeviceGet", ordinal), call("cuDeviceGet", owner)))


# Work and copies


def synchronize(ordinal: int, own: Any = None) -> None:
    """Wait until the device has done all work of its primary context in this process, or of the context `own`."""
    with current(ordinal, own):
        call("cuCtxSynchronize")


def copy_to_host(ordinal: int, out: np.ndarray[Any, Any], address: int, own: Any = None) -> None:
    """Wait until the context's work is done, and copy from `address` on the device to `out`. Return after the copy."""
    with current(ordinal, own):
        call("cuCtxSynchronize")
        # `cuMemcpyDtoH` refuses memory of a pool of host memory, although such memory has a device address.
        call("cuMemcpy", int(out.ctypes.data), address, out.nbytes)


def copy_from_host(ordinal: int, address: int, data: np.ndarray[Any, Any], own: Any = None) -> None:
    """Wait until the context's work is done, and copy `data` to `address` on the device. Return after the copy."""
    with current(ordinal, own):
        call("cuCtxSynchronize")
        call("cuMemcpy", address, int(data.ctypes.data), data.nbytes)
        # If `data` is in pageable memory, `cuMemcpy` may return before the device has the last bytes.
        call("cuCtxSynchronize")


_THROUGH = 64 << 20  # bytes of the memory through which copies between GPUs go


def copy_on_device(ordinal: int, destination: int, source: int, nbytes: int, owner: int | None = None) -> None:
    """Wait until the work of the primary contexts is done, and copy between device addresses. Return after the copy.

    The argument `owner` is the GPU that has `source`; None: the GPU `ordinal`. If `ordinal` has no access to `source`,
    as with pools of another GPU, the copy goes through plain memory of `owner`, which the driver copies to any GPU.
    """
    if owner is not None and owner != ordinal:
        with current(owner):
            call("cuCtxSynchronize")
    with current(ordinal):
        call("cuCtxSynchronize")
        try:
            call("cuMemcpy", destination, source, nbytes)
        except DriverError:
            if owner in {None, ordinal}:
                raise
        else:
            owner = None
        call("cuCtxSynchronize")
    if owner is not None:
        through = Allocation(owner, min(nbytes, _THROUGH))
        for at in range(0, nbytes, _THROUGH):
            piece = min(nbytes - at, _THROUGH)
            copy_on_device(owner, through.address, source + at, piece)
            copy_on_device(ordinal, destination + at, through.address, piece)


class Allocation:
    """Device memory of this process. When Python destroys this object, the object frees the memory.

    Parameters
    ----------
    ordinal
        The device.
    nbytes
        Number of bytes, at least 1.
    """

    def __init__(self, ordinal: int, nbytes: int) -> None:
        self._ordinal = ordinal
        self.address = 0
        with current(ordinal):
            self.address = int(call("cuMemAlloc", nbytes))

    @while_running
    def __del__(self) -> None:
        if self.address:
            with current(self._ordinal):
                call("cuMemFree", self.address)


def pointer_facts(address: int) -> dict[str, Any]:
    """Return what the driver knows about `address`: the type of the memory, and the ordinal of the memory's device."""
    kind = call("cuPointerGetAttribute", _driver.POINTER_TYPE, address)
    ordinal = call("cuPointerGetAttribute", _driver.POINTER_ORDINAL, address)
    return {"memory_type": _driver.POINTER_TYPES.get(kind, str(kind)), "ordinal": ordinal}
