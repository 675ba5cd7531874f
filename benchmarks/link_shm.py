"""Sends arrays through ``multiprocessing.shared_memory``. A queue carries the names of the segments."""

from __future__ import annotations

from multiprocessing.context import SpawnContext
from multiprocessing.queues import Queue
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from link import InTurn, Link, numbered

from poolbridge._bench.arrays import HEAD, number_of


def bytes_of(segment: SharedMemory) -> np.ndarray[Any, Any]:
    """Make an array of a segment's bytes."""
    return np.ndarray((segment.size,), np.uint8, segment.buf)


class SharedMemoryLink(InTurn):
    """Reuses segments. The producer makes them once and copies arrays into them. The consumer maps them once."""

    name = "multiprocessing.shared_memory"
    kind = "host"

    def __init__(self, context: SpawnContext, nbytes: int, depth: int) -> None:
        super().__init__(context, nbytes, depth)
        self._queue: Queue[Any] = context.Queue(depth)
        self._array: Any = None
        self._segments: list[SharedMemory] = []
        self._mapped: dict[str, tuple[SharedMemory, Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None, "_segments": []}

    def open_to_send(self) -> None:
        """Make the data and the segments."""
        self._array = numbered(self.nbytes)
        for _ in range(self.places):
            segment = SharedMemory(create=True, size=len(self._array))
            np.copyto(bytes_of(segment), self._array)  # allocates the pages
            self._segments.append(segment)

    def send(self, number: int) -> None:
        """Copy the array into the next segment and put the segment's name into the queue."""
        segment = self._segments[self.free_place(number)]
        self._array[: HEAD.itemsize].view(HEAD)[0] = number
        np.copyto(bytes_of(segment), self._array)
        self._queue.put(segment.name)

    def finish(self) -> None:
        """Put None into the queue."""
        self._queue.put(None)

    def close(self) -> None:
        """Remove the segments."""
        self._queue.close()
        self._queue.join_thread()
        for segment in self._segments:
            segment.close()
            segment.unlink()

    def receive(self) -> tuple[int, Any] | None:
        """Get a segment's name from the queue and return the segment's array. The first call for a segment maps it."""
        name = self._queue.get()
        if name is None:
            return None
        if name not in self._mapped:
            segment = SharedMemory(name)
            self._mapped[name] = segment, bytes_of(segment)
        array = self._mapped[name][1]
        return number_of(array), array

    def leave(self) -> None:
        """Unmap the segments."""
        while self._mapped:
            segment, array = self._mapped.popitem()[1]
            del array
            segment.close()


class NewSharedMemoryLink(Link):
    """Makes a new segment for each array. The consumer maps, unmaps and removes the segment."""

    name = "multiprocessing.shared_memory (a new segment each)"
    kind = "host"

    def __init__(self, context: SpawnContext, nbytes: int, depth: int) -> None:
        super().__init__(context, nbytes, depth)
        self._queue: Queue[Any] = context.Queue(depth)
        self._array: Any = None
        self._mapped: SharedMemory | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None}

    def open_to_send(self) -> None:
        """Make the data."""
        self._array = numbered(self.nbytes)

    def send(self, number: int) -> None:
        """Make a segment, copy the array into it, and put the segment's name into the queue."""
        self._array[: HEAD.itemsize].view(HEAD)[0] = number
        segment = SharedMemory(create=True, size=len(self._array))
        np.copyto(bytes_of(segment), self._array)
        self._queue.put(segment.name)
        segment.close()

    def finish(self) -> None:
        """Put None into the queue."""
        self._queue.put(None)

    def close(self) -> None:
        """End the queue's thread."""
        self._queue.close()
        self._queue.join_thread()

    def receive(self) -> tuple[int, Any] | None:
        """Get a segment's name from the queue and map the segment."""
        name = self._queue.get()
        if name is None:
            return None
        self._mapped = SharedMemory(name)
        array = bytes_of(self._mapped)
        return number_of(array), array

    def received(self) -> None:
        """Unmap and remove the segment."""
        if self._mapped is not None:
            self._mapped.close()
            self._mapped.unlink()
            self._mapped = None
