"""Frames through a channel of poolbridge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import poolbridge
from poolbridge._bench.fan import Fan, put_number
from poolbridge._session.membership import NATIVE

_TIMEOUT = 60.0
_SPIN = 10.0  # seconds: longer than the time between two frames


class ChannelFan(Fan):
    """A broadcast channel of a service that is running.

    Parameters
    ----------
    path
        Path of the service's socket.
    """

    name = "poolbridge"
    _client: Any = None
    _frames: Any = None

    def __init__(self, nbytes: int, depth: int, consumers: int, name: str, *, spin: bool, path: str) -> None:
        super().__init__(nbytes, depth, consumers, name, spin=spin)
        self.path = path

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    @classmethod
    def missing(cls) -> str:
        """Return what is missing to use it on this machine; empty if nothing is missing."""
        return "" if NATIVE is not None else "this installation of poolbridge has no native module"

    def open_to_send(self) -> Callable[[int], None]:
        """Make a pool and the channel in it."""
        client = self._client = poolbridge.connect(self.path, wait=_TIMEOUT)
        pool = client.create_pool(self.channel, max_bytes=self.nbytes * (self.depth + 4 * self.consumers + 16))
        publisher = client.create_channel(self.channel, pool=pool, capacity=self.depth).publisher(self.nbytes, "uint8")
        loan, publish = publisher.loan, publisher.publish

        def send(number: int) -> None:
            put_number(loan(_TIMEOUT), number)
            publish(timeout=_TIMEOUT)

        return send

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
        self._client = poolbridge.connect(self.path, wait=_TIMEOUT)
        self._frames = self._client.subscribe(self.channel, credit=self.depth, oldest=True, timeout=_TIMEOUT)
        self._frames.spin = _SPIN if self.spin else 0.0
        arrays: Iterator[np.ndarray[Any, Any]] = self._frames.arrays(np.asarray)
        return arrays

    def leave(self) -> None:
        """Unsubscribe."""
        self._frames.close()
        self._client.close()
