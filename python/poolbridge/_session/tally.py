"""Counts of what a session has done: native members count frames and waits, and this module counts allocations."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from poolbridge._session.membership import Membership

# When a session has counts of `_MOST` channels, it drops counts of channels in which it has no member.
_MOST: Final = 1024


class Counts(NamedTuple):
    """How many frames, bytes and waits the members of a channel had; see `poolbridge.ChannelCounts`."""

    published: int = 0
    published_bytes: int = 0
    room_waits: int = 0
    room_seconds: float = 0.0
    received: int = 0
    received_bytes: int = 0
    dropped: int = 0
    frame_waits: int = 0
    frame_seconds: float = 0.0

    def plus(self, other: Counts) -> Counts:
        """Return a `Counts` with the sum of each count of both objects."""
        return Counts._make(a + b for a, b in zip(self, other, strict=True))


class ChannelTally:
    """The counts of one channel, for the session's present members and for members that have left."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[Membership, Any] = {}  # with the native object that counts for the member
        self._left = Counts()

    def leaves(self, member: Membership) -> None:
        """Keep the counts of a member that has left."""
        native = self.members.pop(member, None)
        if native is not None:
            self._left = self._left.plus(_counts(member.role, native))

    def total(self) -> Counts:
        """Return the counts of all members."""
        found = self._left
        for member, native in self.members.items():
            found = found.plus(_counts(member.role, native))
        return found


def _counts(role: str, native: Any) -> Counts:
    if role == "producer":
        return Counts(*native.counts, *native.waits)
    return Counts(0, 0, 0, 0.0, *native.counts, *native.waits)


class SessionTally:
    """The counts of a session. The session's lock guards the counts of channels.

    Attributes
    ----------
    channels
        Channel tallies by channel id, in the order in which the session first joined the channels.
    allocated, allocated_bytes
        How many buffers the service has granted, and how many bytes they have.
    memory_waits, memory_seconds
        See `poolbridge.SessionStats.memory_waits`.
    """

    def __init__(self) -> None:
        self.channels: dict[int, ChannelTally] = {}
        self.allocated = 0
        self.allocated_bytes = 0
        self.memory_waits = 0
        self.memory_seconds = 0.0

    def joins(self, member: Membership) -> None:
        """Include the counts of a new member of a channel."""
        channel = member.channel
        tally = self.channels.get(channel.id)
        if tally is None:
            if len(self.channels) >= _MOST:
                for id_ in [id_ for id_, one in self.channels.items() if not one.members][: _MOST // 2]:
                    del self.channels[id_]
            tally = self.channels[channel.id] = ChannelTally(channel.nm)
        tally.members[member] = member.native

    def leaves(self, member: Membership) -> None:
        """Keep the counts of a member that has left."""
        tally = self.channels.get(member.channel.id)
        if tally is not None:
            tally.leaves(member)

    def waited(self, began: float) -> None:
        """Count a wait for memory that began at `began`, a time of `time.monotonic`."""
        self.memory_waits += 1
        self.memory_seconds += time.monotonic() - began

    def granted(self, nbytes: int) -> None:
        """Count a buffer that the service has granted."""
        self.allocated += 1
        self.allocated_bytes += nbytes
