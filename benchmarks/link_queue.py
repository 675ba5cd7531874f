"""Sends NumPy arrays through ``multiprocessing.Queue``."""

from __future__ import annotations

from multiprocessing.context import SpawnContext
from multiprocessing.queues import Queue
from typing import Any

from link import Link, numbered

from poolbridge._bench.arrays import HEAD, number_of


class QueueLink(Link):
    """Puts each array into the queue. The queue pickles the array, writes it to a pipe, and reads it from the pipe."""

    name = "multiprocessing.Queue"
    kind = "host"

    def __init__(self, context: SpawnContext, nbytes: int, depth: int) -> None:
        super().__init__(context, nbytes, depth)
        self._queue: Queue[Any] = context.Queue(depth)
        self._array: Any = None

    def open_to_send(self) -> None:
        """Make the array that is sent."""
        self._array = numbered(self.nbytes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None}

    def send(self, number: int) -> None:
        """Put the array and its number into the queue."""
        self._array[: HEAD.itemsize].view(HEAD)[0] = number
        self._queue.put((number, self._array))

    def finish(self) -> None:
        """Put None into the queue."""
        self._queue.put(None)

    def close(self) -> None:
        """End the queue's thread."""
        self._queue.close()
        self._queue.join_thread()

    def receive(self) -> tuple[int, Any] | None:
        """Get the array and the number in it. `send` may write a later number while the queue pickles the array."""
        item = self._queue.get()
        if item is None:
            return None
        number, array = item
        return (number if self.depth > 1 else number_of(array)), array
