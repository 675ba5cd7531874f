"""Scenario ``order``: waiting for GPU work of another process, while held kernels delay streams."""

from __future__ import annotations

import ctypes
import mmap
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from poolbridge._cuda import cuda as _cuda, stream as _cuda_stream
from poolbridge._cuda.cuda import call, current
from poolbridge._cuda.driver import Result, attempt
from poolbridge._libraries.patterns import Pattern
from poolbridge._memory import dlpack as _dlpack
from poolbridge._order.streams import stream_key
from poolbridge._verify.transfer import Fields

if TYPE_CHECKING:
    from poolbridge._order.event import Event
    from poolbridge._verify.worker import Worker

# The held kernel runs until the worker calls `Reading.finish`, but for at most `_MOST_HELD_NS` nanoseconds.
_MOST_HELD_NS: Final = 60 * 10**9

_PAGE: Final = 4096  # the page's first word is the gate: the held kernel ends when this word is set
_THREADS: Final = 256
_BLOCKS: Final = 64
# The kernel `_COMPARE` writes its result to the page's word `_RESULT` and to the words after it. The result has the
# number of mismatches, a lock, and an index and a value for each of the first 8 mismatches.
_RESULT: Final = 8
_RESULT_WORDS: Final = 2 + 2 * 8

_HOLD: Final = "poolbridge_hold"
_SPIN: Final = "poolbridge_spin"
_COMPARE: Final = "poolbridge_verify_masked_u32"
_ADDRESS, _U64, _U32 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32


class Reading:
    """A comparison on a stream. One task begins the comparison, and a later task waits for the result.

    Parameters
    ----------
    ordinal
        The GPU.
    path
        Path of a file with the kernels of the Go package ``pattern``, as PTX code.
    stream
        The stream: a stream object of an array library, or a handle of CUDA.
    """

    def __init__(self, ordinal: int, path: str, stream: Any) -> None:
        key = stream_key((_dlpack.CUDA, ordinal), stream)
        if key is None:
            raise ValueError(f"{stream!r} is no stream that work can be given")
        self._ordinal, self._handle, self._kept = ordinal, key.handle, stream
        self._functions = _load(ordinal, path)
        self._mapping = mmap.mmap(-1, _PAGE)
        self._words = np.frombuffer(self._mapping, np.uint64)
        self._address = int(self._words.ctypes.data)
        self._page = _cuda_stream.register(ordinal, self._address, _PAGE, write=True)
        # Run each kernel once now. When a kernel first runs, the driver loads the kernel, and may wait until a kernel
        # that is running has ended. Later, the running kernel could be the held kernel, which runs until `finish`.
        self._hold(0)
        self._spin(0)
        self.compare(self._page, Pattern("masked", 2, 0, 0))
        self._synchronize()
        self._words[_RESULT + 2 : _RESULT + _RESULT_WORDS] = np.iinfo(np.uint64).max

    def hold(self, seconds: float) -> None:
        """Queue two kernels: one that runs until `finish` is called, and then one that runs for `seconds`."""
        self._hold(_MOST_HELD_NS)
        self._spin(int(seconds * 1e9))

    def compare(self, pointer: int, pattern: Pattern) -> None:
        """Queue a kernel that compares the elements at `pointer` with `pattern`, a pattern of the kind ``"masked"``."""
        scale, offset, result = int(pattern.scale), int(pattern.offset), self._page + 8 * _RESULT
        values = (pointer, 0, pattern.elements, scale, offset, pattern.mask, result)
        self._launch(_COMPARE, _BLOCKS, _THREADS, values, (_ADDRESS, _U64, _U64, _U32, _U32, _U32, _ADDRESS))

    def wait(self, event: Event | None) -> None:
        """Let the CPU wait until an event is done, by the stream."""
        if event is None:
            raise ValueError("no event came with the lease")
        event.wait(self._kept)
        self._synchronize()

    @property
    def busy(self) -> bool:
        """Whether the stream has work to do."""
        with current(self._ordinal):
            result, _ = attempt("cuStreamQuery", self._handle)
        return result == Result.NOT_READY

    def finish(self) -> int:
        """End the held kernel, wait for the stream, and return how many elements differed from the pattern."""
        self._words[0] = 1
        self._synchronize()
        found = int(self._words[_RESULT])
        _cuda_stream.unregister(self._ordinal, self._address, wait=True)
        return found

    def _hold(self, nanoseconds: int) -> None:
        self._launch(_HOLD, 1, 1, (self._page, nanoseconds), (_ADDRESS, _U64))

    def _spin(self, nanoseconds: int) -> None:
        self._launch(_SPIN, 1, 1, (nanoseconds,), (_U64,))

    def _launch(self, name: str, blocks: int, threads: int, values: tuple[int, ...], types: tuple[Any, ...]) -> None:
        with current(self._ordinal):
            function = self._functions[name]
            boxed = [kind(value) for kind, value in zip(types, values, strict=True)]
            at = (ctypes.c_void_p * len(boxed))(*map(ctypes.addressof, boxed))
            call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, self._handle, at, 0)

    def _synchronize(self) -> None:
        with current(self._ordinal):
            call("cuStreamSynchronize", self._handle)


@cache
def _load(ordinal: int, path: str) -> dict[str, Any]:
    with current(ordinal):
        module = call("cuModuleLoadData", Path(path).read_bytes() + b"\0")
        return {name: call("cuModuleGetFunction", module, name.encode()) for name in (_HOLD, _SPIN, _COMPARE)}


def queue_read(worker: Worker, name: str, expect: Fields, device: str, **how: Any) -> dict[str, Any]:
    """Queue a comparison of a buffer on a stream of the library, and release the buffer.

    The CPU waits neither for the writer of the buffer nor for the stream. The answer says whether the stream still had
    work to do, and how long the calls of poolbridge took.

    Parameters
    ----------
    worker, name, expect, device
        The worker, the buffer's name, its expected content, and the GPU.
    how
        ``event``: whether to wait first for the event that came with the content. ``hold``: whether a kernel first
        holds the stream until the task ``endRead``; then another kernel runs for ``slow`` seconds. ``kernels``: the
        path of these kernels.
    """
    ordinal = _cuda.find_device(device)
    consumer = worker.consumer
    stream = consumer.stream(ordinal)
    reading = Reading(ordinal, how["kernels"], stream)
    lease = worker.client().get(name)
    started = time.monotonic()
    if how["event"]:
        reading.wait(lease.ready_event)
    array = consumer.take(lease, stream)
    seconds = time.monotonic() - started
    if how["hold"]:
        reading.hold(how["slow"])
    reading.compare(consumer.pointer(array), Pattern(**expect))
    del array
    started = time.monotonic()
    lease.release()
    seconds += time.monotonic() - started
    worker.settle()
    worker.reading = reading
    return {"busy": reading.busy, "seconds": seconds}


def end_read(worker: Worker) -> float:
    """End the held kernel, wait for the stream, and make sure that the comparison found the expected content.

    The answer is how long this waited, in seconds.
    """
    reading, worker.reading = worker.reading, None
    if reading is None:
        raise ValueError("no comparison is queued")
    started = time.monotonic()
    _expect_none(reading.finish())
    return time.monotonic() - started


def _expect_none(mismatches: int) -> None:
    if mismatches:
        raise AssertionError(f"{mismatches} elements differ")


def peer_read(worker: Worker, name: str, expect: Fields, device: str, kernels: str) -> None:
    """Let a kernel on the GPU `device` compare a buffer, which another GPU has."""
    ordinal = _cuda.find_device(device)
    stream = _cuda.own_stream(ordinal)
    with worker.lease(name) as lease:
        reading = Reading(ordinal, kernels, stream)
        lease.used_on(stream)
        reading.compare(lease._evidence()["pointer"], Pattern(**expect))  # noqa: SLF001
        _expect_none(reading.finish())
