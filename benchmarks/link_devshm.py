"""Sends device memory as copies in ``multiprocessing.shared_memory``. A queue carries the names of the segments."""

from __future__ import annotations

from multiprocessing.context import SpawnContext
from multiprocessing.queues import Queue
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from allocator import Allocator
from fan import missing_gpu
from link import InTurn
from link_shm import bytes_of

from poolbridge._bench.arrays import preferred_consumer
from poolbridge._cuda.cuda import call
from poolbridge._libraries.consumers import load


class DeviceSharedMemoryLink(InTurn):
    """The producer copies from the GPU into a segment; the consumer copies from the segment to its own GPU memory."""

    name = "multiprocessing.shared_memory"
    kind = "device"
    page_locked = False

    def __init__(self, context: SpawnContext, nbytes: int, depth: int) -> None:
        super().__init__(context, nbytes, depth)
        self._queue: Queue[Any] = context.Queue(depth)
        self._segments: list[SharedMemory] = []
        self._mapped: dict[str, tuple[SharedMemory, int]] = {}
        self._allocator: Allocator | None = None
        self._buffer: Any = None
        self._consumer = load(preferred_consumer())

    @classmethod
    def missing(cls) -> str:
        """Return what this machine lacks to use the link; empty if nothing is missing."""
        return missing_gpu()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_segments": [], "_allocator": None, "_buffer": None}

    def _open(self) -> None:
        # Each end allocates one GPU buffer here and uses it for every array, so no transfer allocates GPU memory.
        self._allocator = Allocator(0, ipc=False)
        self._buffer = self._allocator.new(self.nbytes)

    def open_to_send(self) -> None:
        """Make the data and the segments."""
        self._open()
        for _ in range(self.places):
            segment = SharedMemory(create=True, size=self.nbytes)
            bytes_of(segment)[:] = 1  # allocates the pages
            self._segments.append(segment)
        self._addresses = [self._address(segment) for segment in self._segments]

    def _address(self, segment: SharedMemory) -> int:
        address = int(bytes_of(segment).ctypes.data)
        if self.page_locked:
            call("cuMemHostRegister", address, segment.size, 0)
        return address

    def send(self, number: int) -> None:
        """Copy the array into the next segment and put the segment's name into the queue."""
        at = self.free_place(number)
        call("cuMemcpyDtoH", self._addresses[at], int(self._buffer.handle), self.nbytes)
        self._queue.put((number, self._segments[at].name))

    def finish(self) -> None:
        """Put None into the queue."""
        self._queue.put(None)

    def close(self) -> None:
        """Remove the segments."""
        self._queue.close()
        self._queue.join_thread()
        for segment, address in zip(self._segments, self._addresses, strict=True):
            self._unlock(address)
            segment.close()
            segment.unlink()

    def _unlock(self, address: int) -> None:
        if self.page_locked:
            call("cuMemHostUnregister", address)

    def open_to_receive(self) -> None:
        """Allocate the GPU memory for the copies."""
        self._open()

    def receive(self) -> tuple[int, Any] | None:
        """Copy from the segment to the GPU and make an array of the copy."""
        item = self._queue.get()
        if item is None:
            return None
        number, name = item
        if name not in self._mapped:
            segment = SharedMemory(name)
            self._mapped[name] = segment, self._address(segment)
        call("cuMemcpyHtoD", int(self._buffer.handle), self._mapped[name][1], self.nbytes)
        return number, self._consumer.take(self._buffer)

    def leave(self) -> None:
        """Unmap the segments."""
        while self._mapped:
            segment, address = self._mapped.popitem()[1]
            self._unlock(address)
            segment.close()


class PageLockedSharedMemoryLink(DeviceSharedMemoryLink):
    """Works as `DeviceSharedMemoryLink`, but both processes page-lock each segment once: this makes copies faster."""

    name = "multiprocessing.shared_memory, page-locked"
    page_locked = True
