"""Make streams wait until a test opens a gate, so that the test decides how long their work takes."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from cuda.bindings import driver

from poolbridge._cuda import stream as _cuda_stream
from poolbridge._cuda.cuda import call, current


def ask(name: str, *arguments: Any) -> Any:
    """Call a function of the driver by cuda.bindings, which knows those that poolbridge does not call."""
    result, *values = getattr(driver, name)(*arguments)
    assert result == driver.CUresult.CUDA_SUCCESS, (name, result)
    return values[0] if values else None


class Gate:
    """A word in memory of this process. A stream for which `hold` was called waits until `open` writes the word."""

    holding: ClassVar[set[int]] = set()  # the gates of this process that hold a stream

    def __init__(self) -> None:
        self._mapping = mmap.mmap(-1, 4096)
        self._address = int(np.frombuffer(self._mapping, np.uint8, 1).ctypes.data)
        self._words = memoryview(self._mapping).cast("Q")
        self._at = _cuda_stream.register(0, self._address, 4096, write=True)

    def hold(self, stream: int, ordinal: int = 0) -> None:
        """Make a stream of a GPU wait until the gate opens."""
        _cuda_stream.wait(ordinal, stream, self._at, 1)
        self.holding.add(id(self))

    def open(self) -> None:
        self.holding.discard(id(self))
        self._words[0] = 1

    def shut(self) -> None:
        self._words[0] = 0

    def close(self) -> None:
        self.open()
        _cuda_stream.unregister(0, self._address, wait=True)


def new_stream() -> int:
    assert not Gate.holding, "make streams first: one of about 40 calls of cuStreamCreate waits for every stream"
    with current(0):
        return int(call("cuStreamCreate", 1))


def idle(stream: int) -> bool:
    with current(0):
        (result,) = driver.cuStreamQuery(stream)
    return bool(result == driver.CUresult.CUDA_SUCCESS)


def gets_idle(stream: int, seconds: float = 60.0) -> bool:
    """Return True as soon as the stream is idle, and False if it is still busy after `seconds`."""
    deadline = time.monotonic() + seconds
    while not idle(stream):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)  # the driver has no wait with a time limit
    return True


def finish(stream: int) -> None:
    with current(0):
        call("cuStreamSynchronize", stream)


T = TypeVar("T")


def waits_until(opened: Callable[[], None], work: Callable[[], T], *, must: bool = True) -> T:
    """Call `work` in a thread, then `opened`, and return what `work` returns.

    Work that does not wait has time to end before the call of `opened`. If `must` is true, `work` must still wait then.
    """
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        done = futures.wait([working], 0.2).done
        opened()
        result = working.result()
        assert not (must and done), "it has not waited"
        return result


def fill(address: int, nbytes: int, byte: int, stream: int) -> None:
    """Queue a write of bytes on the stream."""
    with current(0):
        call("cuMemsetD8Async", address, byte, nbytes, stream)


def read(address: int, nbytes: int, stream: int) -> np.ndarray[Any, Any]:
    """Queue a read of bytes on the stream. The returned array is complete when the stream has read them."""
    with current(0):
        # A copy to memory that is not pinned makes the caller wait. The pinned memory stays until the process ends.
        at = int(ask("cuMemHostAlloc", nbytes, 0))
        call("cuMemcpyAsync", at, address, nbytes, stream)
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(at))


def counts() -> dict[str, int] | None:
    """Return how often this process has made each call of the simulated driver; None with a real driver."""
    folder = os.environ.get("SIMCUDA_COUNTS")
    path = Path(folder or "/nonexistent", f"{os.getpid()}.counts")
    if not path.exists():
        return None
    data = path.read_bytes()
    found = {}
    for at in range(64, len(data), 64):
        name, number = struct.unpack_from("48sQ", data, at)
        found[name.split(b"\0")[0].decode()] = number
    return {name: number for name, number in found.items() if not name.startswith("live:") and name != "*"}
