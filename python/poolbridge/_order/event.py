"""Interprocess events of CUDA, for those who have them already: fences work in more places.

They are made and opened through ``cuda.bindings``: cuda.core has no public way to open one by its bytes. Its events,
and those of CuPy and PyTorch, are taken as they are.
"""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Any, Final
from weakref import WeakValueDictionary

from poolbridge._cuda import cuda as _cuda
from poolbridge._cuda import stream as _cuda_stream
from poolbridge._memory import dlpack as _dlpack
from poolbridge._order.streams import stream_key
from poolbridge._sys.errors import (
    DriverError,
    EventUnavailableError,
    InvalidArgumentError,
    WaitTimeoutError,
)

EVENT_BYTES: Final = 64
_DISABLE_TIMING: Final = 2
_INTERPROCESS: Final = 4
_LONGEST_SLEEP: Final = 0.002
_RIVALS: Final = ("handle", "ptr", "cuda_event")


class Event:
    """An interprocess event: a mark in a stream of one process that streams of others can wait for.

    It works between processes of one user that see the same ``/dev/shm``. Made by ``client.event()``, and opened for as
    long as a lease lasts by ``lease.ready_event``.

    Attributes
    ----------
    ipc_handle
        The driver's 64 bytes, which other processes open.
    """

    def __init__(self, ordinal: int, handle: bytes, number: int, owner: object = None) -> None:
        self.ipc_handle = handle
        self._ordinal = ordinal
        self._number = number  # of the driver; 0: closed, or the owner's
        self._owner = owner

    @property
    def device(self) -> str:
        """The GPU, as this process counts: ``"cuda:0"``."""
        return f"cuda:{self._ordinal}"

    @property
    def handle(self) -> int:
        """The driver's handle, for other libraries.

        Raises
        ------
        InvalidArgumentError
            The event is closed.
        """
        number = self._number if self._owner is None else _number_of(self._owner)
        if not number:
            raise InvalidArgumentError("the event is closed: make another one")
        return number

    def record(self, stream: Any = None) -> None:
        """Stand for the work that a stream has so far; waits that have begun are not concerned.

        Parameters
        ----------
        stream
            A handle, None or 1 for the legacy default stream, 2 for the per-thread default stream, or an object of
            CuPy, PyTorch or cuda.core.
        """
        _cuda_stream.record(self._ordinal, self._stream(stream), self.handle)

    def wait(self, stream: Any = None) -> None:
        """Have a stream wait, before further work, for what the event stands for; nothing, if it was never recorded.

        Parameters
        ----------
        stream
            As in `record`.
        """
        _cuda_stream.wait_for_event(self._ordinal, self._stream(stream), self.handle)

    @property
    def is_done(self) -> bool:
        """Whether what it stands for is done; so it is if the event was never recorded."""
        driver = _cuda.bindings()
        with _cuda.current(self._ordinal):
            (result,) = driver.cuEventQuery(self.handle)
        if result not in {driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_NOT_READY}:
            raise DriverError(f"cuEventQuery: {result.name}")
        return bool(result == driver.CUresult.CUDA_SUCCESS)

    def sync(self, timeout: float | None = None) -> None:
        """Wait on the CPU until what it stands for is done.

        Parameters
        ----------
        timeout
            Seconds to wait; None: no limit.

        Raises
        ------
        WaitTimeoutError
            It was not done in time: its process works on, or has died.
        """
        started, pause = time.monotonic(), 0.00002
        while not self.is_done:
            if timeout is not None and time.monotonic() - started >= timeout:
                raise WaitTimeoutError(f"waited {timeout:g} s for an interprocess event; its process may be gone")
            time.sleep(pause)  # a GPU wakes nobody
            pause = min(2 * pause, _LONGEST_SLEEP)

    def close(self) -> None:
        """Destroy it, unless it belongs to another library; streams that wait for it go on waiting. Idempotent."""
        number, self._number = self._number, 0
        if number:
            with _cuda.current(self._ordinal):
                _cuda.call("cuEventDestroy", number)

    def _stream(self, stream: Any) -> int:
        key = stream_key((_dlpack.CUDA, self._ordinal), stream)
        if key is None:
            raise ValueError("stream -1 asks for no ordering, and an event is nothing else: name a stream")
        return key.handle

    def __del__(self) -> None:
        if self._number and not sys.is_finalizing():
            self.close()

    def __repr__(self) -> str:
        closed = self._owner is None and not self._number
        return f"<poolbridge.Event on {self.device}{', closed' if closed else ''}>"


_own: WeakValueDictionary[bytes, Event] = WeakValueDictionary()
"""The events that this process made, by their handles: it cannot open them."""


def make(ordinal: int) -> Event:
    """Make an event on a GPU.

    Raises
    ------
    EventUnavailableError
        The GPU has no interprocess events.
    """
    driver = _cuda.bindings()
    with _cuda.current(ordinal):
        result, number = driver.cuEventCreate(_DISABLE_TIMING | _INTERPROCESS)
        if result == driver.CUresult.CUDA_ERROR_NOT_SUPPORTED:
            raise EventUnavailableError(f"GPU {ordinal} has no interprocess events: use fences (leave out event=)")
        if result != driver.CUresult.CUDA_SUCCESS:
            raise DriverError(f"cuEventCreate: {result.name}")
    event = Event(ordinal, b"", int(number))
    event.ipc_handle = _export(ordinal, event.handle)
    _own[event.ipc_handle] = event
    return event


def adopt(ordinal: int, given: Any) -> Event:
    """Take an event of this process: one of ours, or of cuda.core, CuPy or PyTorch, or the driver's handle.

    Parameters
    ----------
    ordinal
        The GPU of the memory that it stands for work on.
    given
        The event.

    Raises
    ------
    InvalidArgumentError
        It is none, it is closed, or it was not made for other processes.
    """
    if isinstance(given, Event):
        given.handle  # noqa: B018 - raises if it is closed
        return given
    number = _number_of(given)
    if not number:
        raise InvalidArgumentError(f"the event {given!r} is closed, or was never recorded: record it after the work")
    handle = _export(ordinal, number)
    event = _own[handle] = Event(ordinal, handle, 0, given)
    return event


def _number_of(given: Any) -> int:
    """Give the driver's handle behind a library's event; 0 where it has none."""
    if isinstance(given, int):
        return given
    for name in _RIVALS:
        if hasattr(given, name):
            return int(getattr(given, name) or 0)
    raise InvalidArgumentError(
        f"{given!r} is no event: expected one of client.event(), of cuda.core, CuPy or PyTorch, or the driver's handle"
    )


def _export(ordinal: int, number: int) -> bytes:
    driver = _cuda.bindings()
    with _cuda.current(ordinal):
        result, handle = driver.cuIpcGetEventHandle(number)
    if result == driver.CUresult.CUDA_ERROR_INVALID_HANDLE:
        raise InvalidArgumentError(
            "the event was not made by this process for others: make it with client.event(), with cuda.core's "
            "EventOptions(ipc_enabled=True), or with interprocess=True in CuPy and PyTorch"
        )
    if result != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(f"cuIpcGetEventHandle: {result.name}")
    return ctypes.string_at(int(handle.getPtr()), EVENT_BYTES)


def open_event(ordinal: int, handle: bytes) -> Event:
    """Open an event on a GPU; one that this process made is given as it is.

    Raises
    ------
    EventUnavailableError
        Events of the process that made it cannot be opened here, or that process is gone.
    InvalidArgumentError
        The handle has not 64 bytes.
    """
    if len(handle) != EVENT_BYTES:
        raise InvalidArgumentError(f"the handle of an event has {EVENT_BYTES} bytes, got {len(handle)}")
    own = _own.get(handle)
    if own is not None:
        return own
    driver = _cuda.bindings()
    results = driver.CUresult
    boxed = driver.CUipcEventHandle()
    ctypes.memmove(int(boxed.getPtr()), handle, EVENT_BYTES)
    with _cuda.current(ordinal):
        result, number = driver.cuIpcOpenEventHandle(boxed)
    if result == results.CUDA_ERROR_MAP_FAILED:
        raise EventUnavailableError(
            "the interprocess event cannot be opened: the process that made it is of another user, sees "
            "another /dev/shm (as in another container), or is gone. Fences work there: have it publish with one "
            f"({result.name})"
        )
    if result == results.CUDA_ERROR_INVALID_CONTEXT:
        raise EventUnavailableError(f"the event was made by this process, which has let go of it ({result.name})")
    if result != results.CUDA_SUCCESS:
        raise DriverError(f"cuIpcOpenEventHandle: {result.name}")
    return Event(ordinal, handle, int(number))
