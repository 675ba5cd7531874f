"""Data about pools and about the service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, cast

from poolbridge._wire import messages as _messages

if TYPE_CHECKING:
    from poolbridge._sys.literals import Kind


@dataclass(frozen=True, slots=True)
class Pool:
    """Memory of one kind on one device, with a name and limits. `Client.create_pool` and `Client.open_pool` return it.

    Attributes
    ----------
    id
        The pool's id, which stays unique until the service is restarted.
    name
        The pool's name.
    kind
        Where the memory comes from: ``"device"``, ``"vmm"``, ``"legacy"``, ``"pinned"`` or ``"host"``.
    device_uuid
        The GPU's UUID, which is the same in every process. For ``"pinned"``, the UUID of the GPU that is closest to the
        memory; for ``"host"``, ``""``.
    device_ordinal
        The ordinal of this GPU in the service's numbering; None for ``"host"``.
    max_bytes
        The largest number of bytes that all blocks of the pool together may have.
    session_bytes, user_bytes
        `session_bytes` is the largest number of bytes of the pool that may count for one session, and `user_bytes` for
        one user. 0: only the limit `max_bytes` applies.
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
        """Make an object of this class from a message of the service."""
        device = pool.do if pool.du else None
        return cls(pool.id, pool.nm, cast("Kind", pool.k), pool.du, device, pool.mx, pool.sx, pool.ux)


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A pool, and how its bytes are used. At all times ``reserved = leased + cached + held``.

    Attributes
    ----------
    pool
        The pool.
    reserved
        Bytes of all blocks.
    leased
        Bytes of the blocks that have a buffer.
    used
        Bytes of all buffers in the pool's blocks. A buffer can be smaller than its block.
    cached
        Bytes of the blocks that are free and can be used without a wait.
    held
        Bytes of the blocks that are free but cannot be used yet: the service waits until clients unmap these blocks, or
        until a process ends.
    blocks
        Number of blocks.
    session, user
        `session` is the number of bytes that count for this client's session, and `user` for the session's user. These
        are the bytes of blocks with buffers that the session or the user allocated, and of free blocks that other
        processes cannot use yet. `Client.create_pool` says which free blocks count.
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
    """Counts of the whole service, and the pools that this user may use or destroy. `Client.stats` returns it.

    Attributes
    ----------
    sessions
        Number of sessions. Each connected client has one session.
    leases
        Number of leases.
    buffers
        Number of buffers.
    names
        Number of names under which buffers are published.
    pools
        One `PoolStats` for each pool.
    """

    sessions: int
    leases: int
    buffers: int
    names: int
    pools: tuple[PoolStats, ...]

    @classmethod
    def from_wire(cls, stats: _messages.Stats) -> Self:
        """Make an object of this class from a message of the service."""
        pools = tuple(
            PoolStats(Pool.from_wire(of.p), of.rs, of.ld, of.us, of.ca, of.rc, of.nb, of.cs, of.cu) for of in stats.p
        )
        return cls(stats.ss, stats.ls, stats.bf, stats.nm, pools)
