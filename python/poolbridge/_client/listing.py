"""Lists of the service's sessions, channels, names and buffers. The service sends them page by page."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from poolbridge._session.flow import Flow, ask
from poolbridge._wire.messages import BufferEntry, ChannelEntry, ListReply, NameEntry, SessionEntry
from poolbridge._wire.messages import List as ListRequest

if TYPE_CHECKING:
    from poolbridge._sys.literals import ChannelMode, FullPolicy

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session of the service: one connected client.

    Attributes
    ----------
    id
        The session's id, which is never reused within one life of the service.
    uid, pid, program
        Id of the user, id of the process, and the name that the client gave for its program. Use `pid` and `program`
        for display only.
    began
        When the session began, in UTC.
    leases
        Number of its leases.
    blocks
        Number of blocks that it may have mapped.
    members
        Number of its producers and consumers in channels.
    nbytes
        Bytes that count for the session in all pools; see `Client.create_pool`.
    """

    id: int
    uid: int
    pid: int
    program: str
    began: datetime
    leases: int
    blocks: int
    members: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ChannelInfo:
    """A channel of the service.

    Attributes
    ----------
    id
        The channel's id, which is never reused within one life of the service.
    name
        The channel's name.
    pool
        Id of the pool whose buffers it carries.
    mode, capacity, full
        The settings that it was made with; see `Client.create_channel`.
    uid
        Id of the user who made it.
    producers, consumers
        How many producers and consumers it has now.
    closed
        Whether it was closed. Nothing can be published then, and it lives until its consumers leave.
    published
        How many frames were published so far.
    waiting
        In a broadcast, how many frames the consumer that is furthest behind has not taken. In a queue, how many frames
        are not acknowledged.
    slowest
        In a broadcast, the id of the session of the consumer that is furthest behind; None if no consumer is behind.
    """

    id: int
    name: str
    pool: int
    mode: ChannelMode
    capacity: int
    full: FullPolicy
    uid: int
    producers: int
    consumers: int
    closed: bool
    published: int
    waiting: int
    slowest: int | None


@dataclass(frozen=True, slots=True)
class NameInfo:
    """A name, and the buffer that is published under it.

    Attributes
    ----------
    name
        The name.
    buffer, pool
        Ids of the buffer and of its pool.
    nbytes
        Bytes of the buffer.
    dtype_name, shape
        Its element type, such as ``"float32"``, and the elements along each axis.
    uid
        Id of the user who published it.
    session
        Id of the session whose end removes the name; None if the name is kept (``keep=True``).
    """

    name: str
    buffer: int
    pool: int
    nbytes: int
    dtype_name: str
    shape: tuple[int, ...]
    uid: int
    session: int | None


@dataclass(frozen=True, slots=True)
class BufferInfo:
    """A buffer, and the sessions that hold it.

    Attributes
    ----------
    id
        The buffer's id, which is never reused within one life of the service.
    generation
        The number of its block's current use; see `BaseLease.generation`.
    pool
        Id of its pool.
    nbytes, block_nbytes
        Bytes of the buffer, and of its block.
    dtype_name, shape
        Its element type, such as ``"float32"``, and the elements along each axis.
    writer
        Id of the session that has the write lease; None if there is no write lease.
    readers
        Ids of the sessions that have read leases; eight at most.
    reads
        Number of read leases.
    names
        Number of names under which it is published.
    in_channel
        Whether a channel has it whose producer left.
    """

    id: int
    generation: int
    pool: int
    nbytes: int
    block_nbytes: int
    dtype_name: str
    shape: tuple[int, ...]
    writer: int | None
    readers: tuple[int, ...]
    reads: int
    names: int
    in_channel: bool


def _session(of: SessionEntry) -> SessionInfo:
    began = datetime.fromtimestamp(of.bg / 1e9, UTC)
    return SessionInfo(of.id, of.ui, of.pd, of.nm, began, of.ls, of.bk, of.mb, of.n)


def _channel(of: ChannelEntry) -> ChannelInfo:
    c = of.c
    mode, full = cast("ChannelMode", c.md), cast("FullPolicy", c.fl)
    return ChannelInfo(c.id, c.nm, c.pl, mode, c.cp, full, of.ui, of.pr, of.cs, of.sh, of.sq, of.wt, of.sl or None)


def _name(of: NameEntry) -> NameInfo:
    return NameInfo(of.nm, of.bf, of.pl, of.n, of.t.dt, of.t.sh, of.ui, of.ss or None)


def _buffer(of: BufferEntry) -> BufferInfo:
    return BufferInfo(of.id, of.ge, of.pl, of.n, of.bs, of.t.dt, of.t.sh, of.wr or None, of.rd, of.rs, of.nn, of.ch)


def _pages(what: str, key: str, describe: Callable[[Any], _T]) -> Flow[list[_T]]:
    found: list[_T] = []
    after = ""
    while True:
        page = yield from ask(ListRequest(wt=what, af=after), ListReply)
        found += map(describe, getattr(page, key))
        after = page.nx
        if not after:
            return found


_sessions = partial(_pages, "sessions", "ss", _session)
_channels = partial(_pages, "channels", "cs", _channel)
_names = partial(_pages, "names", "ns", _name)
_buffers = partial(_pages, "buffers", "bs", _buffer)


class Lists:
    """The methods of `Client` that return lists."""

    @abstractmethod
    def _run(self, flow: Flow[_T]) -> _T: ...

    def sessions(self) -> list[SessionInfo]:
        """List the sessions of this user, this one included. The service's own user gets all sessions.

        A list is sent page by page. It may lack sessions that begin or end meanwhile; that holds for `channels`,
        `names` and `buffers`, too.
        """
        return self._run(_sessions())

    def channels(self) -> list[ChannelInfo]:
        """List the channels that this user may use. The service's own user gets all channels."""
        return self._run(_channels())

    def names(self) -> list[NameInfo]:
        """List the names of buffers that this user may lease. The service's own user gets all names."""
        return self._run(_names())

    def buffers(self) -> list[BufferInfo]:
        """List the buffers of pools that this user may use. The service's own user gets all buffers."""
        return self._run(_buffers())


class AsyncLists:
    """The methods of `AsyncClient` that return lists."""

    @abstractmethod
    async def _run(self, flow: Flow[_T]) -> _T: ...

    async def sessions(self) -> list[SessionInfo]:
        """List sessions; see `Client.sessions`."""
        return await self._run(_sessions())

    async def channels(self) -> list[ChannelInfo]:
        """List channels; see `Client.channels`."""
        return await self._run(_channels())

    async def names(self) -> list[NameInfo]:
        """List names; see `Client.names`."""
        return await self._run(_names())

    async def buffers(self) -> list[BufferInfo]:
        """List buffers; see `Client.buffers`."""
        return await self._run(_buffers())
