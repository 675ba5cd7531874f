"""Frames through a channel of poolbridge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np
from fan import Fan, Waiting, missing_gpu

import poolbridge
from poolbridge._bench.arrays import preferred_consumer, put_number, stream_of
from poolbridge._libraries.consumers import load
from poolbridge._sys.literals import ChannelMode
from poolbridge._sys.native import NATIVE

_TIMEOUT = 60.0
_SPIN = 10.0  # seconds: longer than the time between two frames


class ChannelFan(Fan):
    """Sends frames through a broadcast channel in memory of the CPU. The service must be running.

    Parameters
    ----------
    path
        Path of the service's socket.
    """

    name = "poolbridge"
    mode: ClassVar[ChannelMode] = "broadcast"
    _client: Any = None
    _frames: Any = None

    def __init__(self, nbytes: int, depth: int, consumers: int, name: str, *, waiting: Waiting, path: str) -> None:
        super().__init__(nbytes, depth, consumers, name, waiting=waiting)
        self.path = path

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    @classmethod
    def missing(cls) -> str:
        """Return what this machine lacks to use the fan; empty if nothing is missing."""
        return "" if NATIVE is not None else "this installation of poolbridge has no native module"

    def open_to_send(self) -> Callable[[int], None]:
        """Make a pool and the channel in it."""
        publisher = self._channel().publisher(self.nbytes, "uint8")
        loan, publish = publisher.loan, publisher.publish

        def send(number: int) -> None:
            put_number(loan(_TIMEOUT), number)
            publish(timeout=_TIMEOUT)

        return send

    def _connect(self) -> poolbridge.Client:
        client = self._client = poolbridge.connect(self.path, wait=_TIMEOUT)
        return client

    def _channel(self) -> Any:
        client = self._connect()
        room = max(self.nbytes * (self.depth + 4 * self.consumers + 16), 32 << 20)
        pool = client.create_pool(self.channel, kind=self.kind, max_bytes=room)
        return client.create_channel(self.channel, pool=pool, mode=self.mode, capacity=self.depth)

    def service(self) -> int | None:
        """Return the id of the service's process."""
        pid: int = self._client.service_pid
        return pid

    def close(self) -> None:
        """Destroy the pool and its channel."""
        self._client.destroy_pool(self.channel)
        self._client.close()

    def open_to_receive(self) -> Iterator[np.ndarray[Any, Any]]:
        """Subscribe."""
        arrays: Iterator[np.ndarray[Any, Any]] = self._subscribe().arrays(np.asarray)
        return arrays

    def _subscribe(self) -> Any:
        self._connect()
        self._frames = self._client.subscribe(self.channel, credit=self.depth, oldest=True, timeout=_TIMEOUT)
        if self.waiting == "spinning":
            self._frames.spin = _SPIN
        return self._frames

    def leave(self) -> None:
        """Unsubscribe."""
        self._frames.close()
        self._client.close()
        self._frames = self._client = None


class QueueFan(ChannelFan):
    """Uses a queue, a channel that sends each frame to only one of the consumers."""

    form = mode = "queue"
    shared = True


class LeaseFan(ChannelFan):
    """Allocates memory for each frame, and takes each frame as a lease: the simplest way, without a publisher."""

    form = "leases"

    def open_to_send(self) -> Callable[[int], None]:
        """Make a pool and the channel in it."""
        channel, client = self._channel(), self._client

        def send(number: int) -> None:
            lease = client.allocate(self.nbytes, "uint8", pool=self.channel, timeout=_TIMEOUT)
            put_number(np.asarray(lease), number)
            channel.publish(lease, timeout=_TIMEOUT)

        return send

    def open_to_receive(self) -> Iterator[np.ndarray[Any, Any]]:
        """Subscribe."""
        return map(np.from_dlpack, self._subscribe())


class DeviceFan(ChannelFan):
    """Uses a broadcast channel in memory of a GPU. The producer and each consumer use arrays, on their own streams."""

    kind = "device"

    @classmethod
    def missing(cls) -> str:
        """Return what this machine lacks to use the fan; empty if nothing is missing."""
        return super().missing() or missing_gpu()

    def open_to_send(self) -> Callable[[int], None]:
        """Make a pool and the channel in it."""
        library = load(preferred_consumer())
        stream = stream_of(library)
        publisher = self._channel().publisher(self.nbytes, "uint8", wrap=partial(library.take, stream=stream))
        loan, publish = publisher.loan, publisher.publish

        def send(number: int) -> None:  # noqa: ARG001 - memory of a GPU has no number
            loan(_TIMEOUT, stream=stream)
            publish(timeout=_TIMEOUT)

        return send

    def open_to_receive(self) -> Iterator[Any]:
        """Subscribe."""
        library = load(preferred_consumer())
        stream = stream_of(library)
        arrays: Iterator[Any] = self._subscribe().arrays(partial(library.take, stream=stream), stream=stream)
        return arrays
