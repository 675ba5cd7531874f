"""Plain data about pools and about the service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, cast

from poolbridge._wire import messages as _messages

if TYPE_CHECKING:
    from poolbridge._sys.literals import Kind


@dataclass(frozen=True, slots=True)
class Pool:
    """A named, bounded arena of one kind of memory, on one device.

    Attributes
    ----------
    id
        Never reused within one life of the service.
    name
        Its name.
    kind
        Where its memory comes from: ``"device"``, ``"vmm"``, ``"legacy"``, ``"pinned"`` or ``"host"``.
    device_uuid
        The GPU's UUID, which holds across processes; the closest GPU's for ``"pinned"``, ``""`` for ``"host"``.
    device_ordinal
        That GPU's ordinal as the service counts; None for ``"host"``.
    max_bytes
        Most bytes that its blocks may take.
    session_bytes
        Most bytes that may count for one session in it; 0: no limit of its own.
    user_bytes
        Most bytes that may count for one user in it; 0: no limit of its own.
    """

    id: int
    name: str
    kind: Kind
    device_uuid: str
    device_ordinal: int | None
    max_bytes: int
    session_bytes: int
    user_bytes: int

    @classmethod
    def from_wire(cls, pool: _messages.Pool) -> Self:
        """Make it of the wire's form."""
        device = pool.do if pool.du else None
        return cls(pool.id, pool.nm, cast("Kind", pool.k), pool.du, device, pool.mx, pool.sx, pool.ux)


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A pool and the bytes in it; ``reserved = leased + cached + held`` at all times.

    Attributes
    ----------
    pool
        The pool.
    reserved
        Bytes of all blocks.
    leased
        Bytes of blocks in use.
    used
        Bytes of the buffers in them.
    cached
        Bytes of blocks free for use.
    held
        Bytes of free blocks that are being recalled or wait for a process to end.
    blocks
        Number of blocks.
    session, user
        Bytes that count for this client's session and for its user: blocks of buffers that they allocated, and free
        blocks that they keep from others.
    """

    pool: Pool
    reserved: int
    leased: int
    used: int
    cached: int
    held: int
    blocks: int
    session: int
    user: int


@dataclass(frozen=True, slots=True)
class ServiceStats:
    """Counts of the whole service, and the pools that this user may use or destroy."""

    sessions: int
    leases: int
    buffers: int
    names: int
    pools: tuple[PoolStats, ...]

    @classmethod
    def from_wire(cls, stats: _messages.Stats) -> Self:
        """Make it of the wire's form."""
        pools = tuple(
            PoolStats(Pool.from_wire(of.p), of.rs, of.ld, of.us, of.ca, of.rc, of.nb, of.cs, of.cu) for of in stats.p
        )
        return cls(stats.ss, stats.ls, stats.bf, stats.nm, pools)
