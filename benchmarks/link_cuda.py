"""Sends buffers of ``cuda.core`` through ``multiprocessing.Queue``."""

from __future__ import annotations

from collections import deque
from multiprocessing.context import SpawnContext
from multiprocessing.queues import Queue
from typing import Any

from allocator import Allocator
from fan import missing_gpu
from link import InTurn, Link

from poolbridge._bench.arrays import preferred_consumer
from poolbridge._libraries.consumers import load


class CudaCoreLink(Link):
    """Puts each buffer of ``cuda.core`` into the queue. With each buffer, the queue also sends the buffer's pool."""

    name = "cuda.core buffers through multiprocessing.Queue"
    kind = "device"
    copies = False

    def __init__(self, context: SpawnContext, nbytes: int, depth: int) -> None:
        super().__init__(context, nbytes, depth)
        self._queue: Queue[Any] = context.Queue(depth)
        self._resource: Any = None
        self._allocator: Allocator | None = None
        self._alive: deque[Any] = deque(maxlen=depth + 2)
        self._last: Any = None
        self._consumer = load(preferred_consumer())

    @classmethod
    def missing(cls) -> str:
        """Return what this machine lacks to use the link; empty if nothing is missing."""
        return missing_gpu()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_allocator": None, "_alive": deque(maxlen=self.depth + 2), "_resource": None}

    def open_to_send(self) -> None:
        """Make the pool."""
        room = max(self.nbytes, 2 << 20) * (self.depth + 4)
        self._allocator = Allocator(room, ipc=True)

    def send(self, number: int) -> None:
        """Allocate a buffer and put it into the queue."""
        assert self._allocator is not None  # noqa: S101 - opened before
        buffer = self._allocator.new(self.nbytes)
        self._queue.put((number, self._on_the_way(buffer)))
        self._alive.append(buffer)

    def _on_the_way(self, buffer: Any) -> Any:
        return buffer

    def finish(self) -> None:
        """Put None into the queue."""
        self._queue.put(None)

    def close(self) -> None:
        """Free everything."""
        self._queue.close()
        self._queue.join_thread()
        self._alive.clear()

    def open_to_receive(self) -> None:
        """Make the GPU current."""
        from cuda.core import Device

        device = Device(0)
        device.set_current()
        self._stream = device.create_stream()

    def receive(self) -> tuple[int, Any] | None:
        """Get a buffer from the queue and make an array of the buffer."""
        item = self._queue.get()
        if item is None:
            return None
        number, came = item
        self._last = self._arrived(came)
        return number, self._consumer.take(self._last)

    def _arrived(self, came: Any) -> Any:
        return came

    def received(self) -> None:
        """Unmap the buffer."""
        self._last.close(self._stream)
        self._last = None


class CudaCoreDescriptorLink(CudaCoreLink):
    """Sends the pool once, when the consumer's process starts. After that, sends only a descriptor of each buffer."""

    name = "cuda.core descriptors through multiprocessing.Queue"

    def __getstate__(self) -> dict[str, Any]:
        assert self._allocator is not None  # noqa: S101 - opened before the consumer is started
        return {**super().__getstate__(), "_resource": self._allocator.resource}

    def _on_the_way(self, buffer: Any) -> Any:
        return buffer.ipc_descriptor

    def _arrived(self, came: Any) -> Any:
        from cuda.core import Buffer

        return Buffer.from_ipc_descriptor(self._resource, came, stream=self._stream)


class CudaCoreOnceLink(CudaCoreDescriptorLink, InTurn):
    """Makes, sends and opens buffers once, and then reuses them: the queue carries only the index of each buffer."""

    name = "cuda.core buffers opened once, their numbers through multiprocessing.Queue"

    def open_to_send(self) -> None:
        """Make the pool and the buffers."""
        super().open_to_send()
        assert self._allocator is not None  # noqa: S101 - just made
        self._buffers = [self._allocator.new(self.nbytes) for _ in range(self.places)]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_buffers": [buffer.ipc_descriptor for buffer in self._buffers]}

    def send(self, number: int) -> None:
        """Put the index of the next buffer into the queue."""
        self._queue.put((number, self.free_place(number)))

    def close(self) -> None:
        """Free everything."""
        super().close()
        self._buffers.clear()

    def open_to_receive(self) -> None:
        """Make the GPU current and open the buffers."""
        super().open_to_receive()
        opened = super()._arrived
        self._buffers = [opened(descriptor) for descriptor in self._buffers]

    def _arrived(self, came: Any) -> Any:
        return self._buffers[came]

    def received(self) -> None:
        """Free the buffer for the producer."""
        self._last = None
        InTurn.received(self)

    def leave(self) -> None:
        """Unmap the buffers."""
        while self._buffers:
            self._buffers.pop().close(self._stream)
