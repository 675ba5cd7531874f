"""Keeps the packets of a session that may have to be sent again, to a service that takes over: see `resumption`."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from poolbridge._wire.messages import Envelope
from poolbridge._wire.packet import decode

# How many packets a session keeps before it looks which of them it needs.
MANY: Final = 256


class Unconfirmed:
    """The packets of a session that the service may not have carried out, or whose answers have not come.

    Attributes
    ----------
    token
        Proves that this client has the session; empty: the session ends with its connection.
    latest
        The packet of the latest request that was answered.
    packets
        The packets that were sent. The last one may be the first of the outbox: then its sending failed.
    """

    __slots__ = ("_early", "_first", "latest", "packets", "token")

    def __init__(self) -> None:
        self.token = b""
        self.latest: bytes | None = None
        self.packets: list[bytes] = []
        self._early: list[bytes] = []  # confirmed packets whose answers have not come
        self._first = 1  # the number of the first of `packets`

    def keep(self, outbox: deque[bytes]) -> None:
        """Take the packets from the outbox, as if they were sent, because the connection is lost."""
        if self.packets and outbox and outbox[0] is self.packets[-1]:
            del self.packets[-1]
        # A C function: a signal handler runs before or after it.
        self.packets.extend(islice(iter(outbox.popleft, None), len(outbox)))

    def forget(self, awaited: set[int]) -> bool:
        """Forget the packets that an answer confirms: those before its own that have no answers.

        `awaited` has the ids of the packets whose answers have not come. Return whether another answer is needed.
        """
        packets = self.packets
        confirmed = next((at + 1 for at, packet in enumerate(packets) if packet is self.latest), 0)
        self._early = [packet for packet in self._early + packets[:confirmed] if id(packet) in awaited]
        self.packets, self._first = packets[confirmed:], self._first + confirmed
        return not confirmed and not any(id(packet) in awaited for packet in packets[-MANY // 2 :])

    def again(self, outbox: deque[bytes], awaited: dict[int, bytes], done: int) -> None:
        """Put the packets into the outbox that a service needs whose last packet of this session was number `done`.

        `awaited` has the packets to send instead of those whose answers have not come, by the ids of these.
        """
        self.keep(outbox)
        left = [awaited[id(packet)] for packet in self._early if id(packet) in awaited]
        left += [
            awaited.get(id(packet), packet)
            for number, packet in enumerate(self.packets, self._first)
            if id(packet) in awaited or (number > done and not decode(packet, Envelope, checked=True).number)
        ]
        self._early, self._first, self.packets = [], done + 1, []
        outbox.extend(left)
