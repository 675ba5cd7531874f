"""Keeps the packets of a session that may have to be sent again, to a service that takes over: see `resumption`."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from poolbridge._wire.messages import Envelope
from poolbridge._wire.packet import decode

# How many packets a session keeps before it looks which of them it needs.
_MANY: Final = 256


class Unconfirmed:
    """The packets of a session that the service may not have carried out, or whose answers have not come.

    Attributes
    ----------
    token
        Proves that this client has the session; empty: the session ends with its connection.
    latest
        The packet of the latest request that was answered.
    noted
        How many packets of the outbox were noted.
    """

    __slots__ = ("_early", "_first", "_packets", "latest", "noted", "token")

    def __init__(self) -> None:
        self.token = b""
        self.latest: bytes | None = None
        self.noted = 0
        self._early: list[bytes] = []  # confirmed packets whose answers have not come
        self._first = 1  # the number of the first of `_packets`
        self._packets: list[bytes] = []

    def note(self, outbox: deque[bytes]) -> bool:
        """Keep the packets of the outbox, which are about to be sent. Return whether `forget` should be called."""
        if len(outbox) - self.noted == 1:
            self._packets.append(outbox[-1])
        else:
            self._packets.extend(islice(outbox, self.noted, None))
        self.noted = len(outbox)
        return len(self._packets) > _MANY

    def forget(self, awaited: set[int]) -> bool:
        """Forget the packets that an answer confirms: those before its own that have no answers.

        `awaited` has the ids of the packets whose answers have not come. Return whether another answer is needed.
        """
        packets = self._packets
        confirmed = next((at + 1 for at, packet in enumerate(packets) if packet is self.latest), 0)
        self._early = [packet for packet in self._early + packets[:confirmed] if id(packet) in awaited]
        self._packets, self._first = packets[confirmed:], self._first + confirmed
        return not confirmed and not any(id(packet) in awaited for packet in packets[-_MANY // 2 :])

    def again(self, outbox: deque[bytes], awaited: dict[int, bytes], done: int) -> None:
        """Put the packets into the outbox that a service needs whose last packet of this session was number `done`.

        `awaited` has the packets to send instead of those whose answers have not come, by the ids of these.
        """
        self.note(outbox)
        left = [awaited[id(packet)] for packet in self._early if id(packet) in awaited]
        left += [
            awaited.get(id(packet), packet)
            for number, packet in enumerate(self._packets, self._first)
            if id(packet) in awaited or (number > done and not decode(packet, Envelope, checked=True).number)
        ]
        self._early, self._first, self._packets = [], done + 1, left
        outbox.clear()
        outbox.extend(left)
        self.noted = len(left)
