"""Interprocess events of CUDA, for programs that already use such events. Other programs should use fences.

This module makes and opens events by calls of the driver, because cuda.core has no public function that opens an
event from a 64-byte handle. This module also accepts events that a program made with cuda.core, CuPy or PyTorch.
"""

from __future__ import annotations

import time
from typing import Any, Final
from weakref import WeakValueDictionary

from poolbridge._cuda import cuda as _cuda, stream as _cuda_stream
from poolbridge._cuda.driver import Handle, Result, attempt, name_of
from poolbridge._memory import dlpack as _dlpack
from poolbridge._order.streams import stream_key
from poolbridge._sys.error_texts import shown
from poolbridge._sys.finaliser import while_running
from poolbridge._sys.uncopied import Uncopied
from poolbridge._wire.limits import EVENT_BYTES
from poolbridge.errors import (
    DriverError,
    EventUnavailableError,
    InvalidArgumentError,
    WaitTimeoutError,
)

_DISABLE_TIMING: Final = 2
_INTERPROCESS: Final = 4
_LONGEST_SLEEP: Final = 0.002
_RIVALS: Final = ("handle", "ptr", "cuda_event")


class Event(Uncopied):
    """An interprocess event of CUDA. One process records it in a stream; streams of other processes can wait for it.

    An event works only between processes of one user that see the same ``/dev/shm``. ``client.event()`` makes an event.
    `BaseLease.ready_event` opens the event that a producer published with a buffer.

    Attributes
    ----------
    ipc_handle
        The driver's 64-byte handle. Other processes open the event by this handle.
    """

    def __init__(self, ordinal: int, handle: bytes, number: int, owner: object = None) -> None:
        self.ipc_handle = handle
        self._ordinal = ordinal
        self._number = number  # the driver's handle; 0 if the event is closed or belongs to another library
        self._owner = owner

    @property
    def device(self) -> str:
        """The event's GPU, with its ordinal in this process, for example ``"cuda:0"``."""
        return f"cuda:{self._ordinal}"

    @property
    def handle(self) -> int:
        """The driver's handle of the event, as an int, for other libraries.

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
        """Record the event in a stream. The event is done when the stream has done the work queued before this call.

        If a stream already waits for an earlier record of this event, it continues to wait for that earlier record.

        Parameters
        ----------
        stream
            A stream handle, None or 1 for the legacy default stream, 2 for the per-thread default stream, or a stream
            object of CuPy, PyTorch or cuda.core.

        Raises
        ------
        ValueError
            `stream` is no stream.
        InvalidArgumentError
            The event is closed.
        DriverError
            The driver refuses the call.
        """
        _cuda_stream.record(self._ordinal, self._stream(stream), self.handle)

    def wait(self, stream: Any = None) -> None:
        """Make the later work of a stream wait until the event is done. An event that was never recorded is done.

        Parameters
        ----------
        stream
            See `record`.

        Raises
        ------
        ValueError, InvalidArgumentError, DriverError
            See `record`.
        """
        _cuda_stream.wait_for_event(self._ordinal, self._stream(stream), self.handle)

    @property
    def is_done(self) -> bool:
        """Whether the stream has done all work queued before the last `record`. True if the event was never recorded.

        Raises
        ------
        InvalidArgumentError
            The event is closed.
        DriverError
            The driver refuses the call.
        """
        with _cuda.current(self._ordinal):
            result, _ = attempt("cuEventQuery", self.handle)
        if result not in {Result.SUCCESS, Result.NOT_READY}:
            raise DriverError(f"cuEventQuery: {name_of(result)}")
        return not result

    def sync(self, timeout: float | None = None) -> None:
        """Wait on the CPU until the event is done; see `is_done`.

        Parameters
        ----------
        timeout
            How many seconds to wait; None (the default): no limit.

        Raises
        ------
        WaitTimeoutError
            The event was not done within `timeout`. The stream has not done the work yet, or the process that recorded
            the event has died.
        InvalidArgumentError, DriverError
            See `is_done`.
        """
        started, pause = time.monotonic(), 0.00002
        while not self.is_done:
            if timeout is not None and time.monotonic() - started >= timeout:
                raise WaitTimeoutError(f"waited {timeout:g} s for an interprocess event; its process may be gone")
            time.sleep(pause)  # a GPU does not wake threads
            pause = min(2 * pause, _LONGEST_SLEEP)

    def close(self) -> None:
        """Destroy the event, unless another library owns it. Streams that wait for it continue to wait. Idempotent."""
        number, self._number = self._number, 0
        if number:
            with _cuda.current(self._ordinal):
                _cuda.call("cuEventDestroy", number)

    def _stream(self, stream: Any) -> int:
        key = stream_key((_dlpack.CUDA, self._ordinal), stream)
        if key is None:
            raise ValueError("stream -1 asks for no ordering, which an event cannot do: name a stream")
        return key.handle

    @while_running
    def __del__(self) -> None:
        if self._number:
            self.close()

    def __repr__(self) -> str:
        closed = self._owner is None and not self._number
        return f"<poolbridge.Event on {self.device}{', closed' if closed else ''}>"


_own: WeakValueDictionary[bytes, Event] = WeakValueDictionary()
"""The events that this process made, by handle. The driver does not let a process open such an event by its handle."""


def make(ordinal: int) -> Event:
    """Make an event on a GPU.

    Raises
    ------
    EventUnavailableError
        The GPU does not support interprocess events.
    """
    with _cuda.current(ordinal):
        result, number = attempt("cuEventCreate", _DISABLE_TIMING | _INTERPROCESS)
        if result == Result.NOT_SUPPORTED:
            raise EventUnavailableError(f"GPU {ordinal} has no interprocess events: use fences (leave out event=)")
        if result:
            raise DriverError(f"cuEventCreate: {name_of(result)}")
    event = Event(ordinal, b"", int(number))
    event.ipc_handle = _export(ordinal, event.handle)
    _own[event.ipc_handle] = event
    return event


def adopt(ordinal: int, given: Any) -> Event:
    """Return an `Event` for an event that this process made.

    Parameters
    ----------
    ordinal
        The ordinal of the GPU of a buffer. The program has recorded the event after its work on this buffer.
    given
        An `Event`, an event of cuda.core, CuPy or PyTorch, or the driver's handle.

    Raises
    ------
    InvalidArgumentError
        `given` is no event, is closed, or is no interprocess event.
    """
    if isinstance(given, Event):
        given.handle  # noqa: B018 - raises if it is closed
        return given
    number = _number_of(given)
    if not number:
        raise InvalidArgumentError(
            f"the event {shown(given)} is closed, or was never recorded: record it after the work"
        )
    handle = _export(ordinal, number)
    event = _own[handle] = Event(ordinal, handle, 0, given)
    return event


def _number_of(given: Any) -> int:
    """Return the driver's handle of a library's event; 0 if the event is closed, or was not recorded yet."""
    if isinstance(given, int):
        return given
    for name in _RIVALS:
        if hasattr(given, name):
            return int(getattr(given, name) or 0)
    raise InvalidArgumentError(
        f"{shown(given)} is no event: expected one of client.event(), of cuda.core, CuPy or PyTorch, or the driver's "
        "handle"
    )


def _export(ordinal: int, number: int) -> bytes:
    with _cuda.current(ordinal):
        result, handle = attempt("cuIpcGetEventHandle", number)
    if result == Result.INVALID_HANDLE:
        raise InvalidArgumentError(
            "the event is no interprocess event of this process: make it with client.event(), with cuda.core's "
            "EventOptions(ipc_enabled=True), or with interprocess=True in CuPy and PyTorch"
        )
    if result:
        raise DriverError(f"cuIpcGetEventHandle: {name_of(result)}")
    return bytes(handle)


def open_event(ordinal: int, handle: bytes) -> Event:
    """Open an event on a GPU by its handle. If this process made the event, return the existing `Event` object.

    Raises
    ------
    EventUnavailableError
        The process that made the event is gone, this process cannot open events of that process, or this process made
        the event and has destroyed it.
    InvalidArgumentError
        `handle` does not have 64 bytes.
    """
    if len(handle) != EVENT_BYTES:
        raise InvalidArgumentError(f"the handle of an event has {EVENT_BYTES} bytes, got {len(handle)}")
    own = _own.get(handle)
    if own is not None:
        return own
    with _cuda.current(ordinal):
        result, number = attempt("cuIpcOpenEventHandle", Handle.from_buffer_copy(handle))
    if not result:
        return Event(ordinal, handle, int(number))
    name = name_of(result)
    if result == Result.MAP_FAILED:
        raise EventUnavailableError(
            "the interprocess event cannot be opened: the process that made it is of another user, sees "
            "another /dev/shm (as in another container), or is gone. Fences work there: publish with a fence in that "
            f"process ({name})"
        )
    if result == Result.INVALID_CONTEXT:
        raise EventUnavailableError(f"the event was made by this process, which has destroyed it ({name})")
    raise DriverError(f"cuIpcOpenEventHandle: {name}")
