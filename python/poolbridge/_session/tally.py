"""Counts what a session does: the frames and waits of its channels, its allocations, and its waits for memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from poolbridge._wire.messages import ChannelIdentity

# A session that has the counts of `_MOST` channels drops the oldest counts before it adds another channel. It drops
# only counts of channels in which it has no member, and at most `_MOST // 2` at a time.
_MOST: Final = 1024


class Member(Protocol):
    """The part of a member of a channel that this module uses; see `poolbridge._session.membership.Membership`."""

    channel: ChannelIdentity
    role: str
    native: Any


class Counts(NamedTuple):
    """Counts of frames, bytes and waits of members of one channel; `poolbridge.ChannelCounts` explains each count."""

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
        """Return a `Counts` in which each count is the sum of this object's count and the count of `other`."""
        return Counts._make(a + b for a, b in zip(self, other, strict=True))


class ChannelTally:
    """The counts of one channel: of the session's present members, and of its members that have left."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[Member, Any] = {}  # with the native object that counts for the member
        self._left = Counts()

    def leaves(self, member: Member) -> None:
        """Keep the counts of `member`, which leaves the channel."""
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
    """The counts of a session. A thread that uses `channels` holds the session's lock.

    Attributes
    ----------
    channels
        A `ChannelTally` for each channel id, in the order in which the session first joined the channels.
    allocated, allocated_bytes
        How many buffers the service has granted to the session, and how many bytes these buffers have in all.
    memory_waits, memory_seconds
        See `poolbridge.SessionStats.memory_waits`.
    """

    def __init__(self) -> None:
        self.channels: dict[int, ChannelTally] = {}
        self.allocated = 0
        self.allocated_bytes = 0
        self.memory_waits = 0
        self.memory_seconds = 0.0

    def joins(self, member: Member) -> None:
        """Include the counts of `member`, which has joined a channel."""
        channel = member.channel
        tally = self.channels.get(channel.id)
        if tally is None:
            if len(self.channels) >= _MOST:
                for id_ in [id_ for id_, one in self.channels.items() if not one.members][: _MOST // 2]:
                    del self.channels[id_]
            tally = self.channels[channel.id] = ChannelTally(channel.name)
        tally.members[member] = member.native

    def leaves(self, member: Member) -> None:
        """Keep the counts of `member`, which leaves its channel."""
        tally = self.channels.get(member.channel.id)
        if tally is not None:
            tally.leaves(member)

    def waited(self, began: float) -> None:
        """Count a wait for memory that ends now, and that began when `time.monotonic` returned `began`."""
        self.memory_waits += 1
        self.memory_seconds += time.monotonic() - began

    def granted(self, nbytes: int) -> None:
        """Count a buffer of `nbytes` bytes that the service has granted."""
        self.allocated += 1
        self.allocated_bytes += nbytes
