"""Keeps the packets of a session that may have to be sent again, to a service that takes over: see `resumption`."""

from __future__ import annotations

from collections import deque
from typing import Final

# How many packets a session keeps before it looks which of them it needs.
_MANY: Final = 256


class Asking(bytes):
    """A packet of a request to which the service replies."""

    __slots__ = ()


class Unconfirmed:
    """The packets of a session that the service may not have carried out, or whose answers have not come.

    Attributes
    ----------
    token
        Proves that this client has the session; empty: the session ends with its connection.
    latest
        The packet of the latest request that was answered.
    """

    def __init__(self) -> None:
        self.token = b""
        self.latest: bytes | None = None
        self._sent = 0
        self._packets: list[tuple[int, bytes]] = []
        self._noted = 0  # how many packets of the outbox are in `_packets` already

    def note(self, outbox: deque[bytes]) -> bool:
        """Keep the packets of the outbox, which are about to be sent. Return whether `forget` should be called."""
        if not self.token:
            return False
        for at in range(self._noted, len(outbox)):
            self._sent += 1
            self._packets.append((self._sent, outbox[at]))
        self._noted = len(outbox)
        return len(self._packets) > _MANY

    def sent(self, left: int) -> None:
        """Note how many packets are left in the outbox."""
        self._noted = min(self._noted, left)

    def forget(self, awaited: set[int]) -> bool:
        """Forget the packets that an answer confirms: those before its own that have no answers.

        `awaited` has the ids of the packets whose answers have not come. Return whether another answer is needed.
        """
        confirmed = next((number for number, packet in self._packets if packet is self.latest), 0)
        self._packets = [one for one in self._packets if one[0] > confirmed or id(one[1]) in awaited]
        return not confirmed and not any(isinstance(packet, Asking) for _, packet in self._packets[-_MANY // 2 :])

    def again(self, outbox: deque[bytes], awaited: set[int], done: int) -> None:
        """Put the packets into the outbox that a service needs whose last packet of this session was number `done`."""
        self.note(outbox)
        left = [
            packet
            for number, packet in self._packets
            if id(packet) in awaited or (number > done and not isinstance(packet, Asking))
        ]
        self._packets = list(enumerate(left, done + 1))
        self._sent = done + len(left)
        outbox.clear()
        outbox.extend(left)
        self._noted = len(left)
