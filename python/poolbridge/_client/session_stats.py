"""Counts what a client has done since it was connected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from poolbridge._client.shown import Shown

if TYPE_CHECKING:
    from poolbridge._session.session import Session
    from poolbridge._session.tally import ChannelTally


@dataclass(frozen=True, slots=True)
class Waits(Shown):
    """How often and how long a client has waited for one kind of thing, such as memory or frames.

    Attributes
    ----------
    count
        How many waits succeeded. `SessionStats.memory_waits` also counts waits that failed. One call of an
        `AsyncClient` may count as several waits.
    seconds
        Total seconds of all waits that are over, including waits that failed.
    """

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ChannelCounts(Shown):
    """What a client has done in one channel since it was connected.

    Attributes
    ----------
    name
        The channel's name.
    published, published_bytes
        Frames that this client has published, and the bytes of their buffers.
    received, received_bytes
        Frames that the subscriptions of this client have received, and the bytes of their buffers.
    dropped
        Frames that the subscriptions of this client missed. In a queue, this is the number of frames that no subscriber
        got, as far as this client knows. See `Frame.dropped`.
    room_waits
        Waits of this client's producers for a free place in the channel.
    frame_waits
        Waits of this client's subscriptions for the next frame.
    """

    name: str
    published: int
    published_bytes: int
    received: int
    received_bytes: int
    dropped: int
    room_waits: Waits
    frame_waits: Waits


@dataclass(frozen=True, slots=True)
class SessionStats(Shown):
    """What a client has done since it was connected, and what it has now. `Client.session_stats` returns it.

    Attributes
    ----------
    leases, lease_bytes
        Leases that the program has now, including frames, and the bytes of their buffers. These counts include neither
        buffers on loan from a `Publisher` nor frames whose array `Subscription.arrays` returned.
    allocated, allocated_bytes
        Buffers that the service has granted to this client, and their bytes. A publisher's buffer has many frames, and
        counts once.
    memory_waits
        How often and how long this client waited for memory: for an answer of the service, or until a chunk of a
        publisher came back. `Waits.count` includes waits that failed.
    channels
        The counts of each channel that this client has published in or subscribed to, in the order of the first use. If
        the client has used more than 1,024 channels, channels that the client has left may be missing.
    """

    leases: int
    lease_bytes: int
    allocated: int
    allocated_bytes: int
    memory_waits: Waits
    channels: tuple[ChannelCounts, ...]


def session_stats(session: Session) -> SessionStats:
    """Collect the counts of a session; see `Client.session_stats`."""
    held = [state for reference in list(session.lease_states.values()) if (state := reference()) is not None]
    held = [state for state in held if not state.released and session.ended is None]
    tally = session.tally
    with session.lock:
        channels = tuple(_channel(one) for one in tally.channels.values())
    return SessionStats(
        leases=len(held),
        lease_bytes=sum(state.grant.nbytes for state in held),
        allocated=tally.allocated,
        allocated_bytes=tally.allocated_bytes,
        memory_waits=Waits(tally.memory_waits, tally.memory_seconds),
        channels=channels,
    )


def _channel(tally: ChannelTally) -> ChannelCounts:
    counts = tally.total()
    return ChannelCounts(
        name=tally.name,
        published=counts.published,
        published_bytes=counts.published_bytes,
        received=counts.received,
        received_bytes=counts.received_bytes,
        dropped=counts.dropped,
        room_waits=Waits(counts.room_waits, counts.room_seconds),
        frame_waits=Waits(counts.frame_waits, counts.frame_seconds),
    )
