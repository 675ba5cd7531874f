"""What a service has: lists of sessions, channels, names and buffers, which it sends page by page."""

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
    """A session of the service.

    Attributes
    ----------
    id
        Never reused within one life of the service.
    uid, pid, program
        Its user, its process, and what the client calls itself; the last two are for people.
    began
        When it began.
    leases, blocks, members
        How many leases it has, how many blocks it may have mapped, and in how many channels it takes part.
    nbytes
        Bytes that count for it in pools.
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
    """A channel of the service, and how many take part in it.

    Attributes
    ----------
    id, name
        Its id, never reused within one life of the service, and its name.
    pool
        The id of the pool whose buffers it carries.
    mode, capacity, full
        As it was made.
    uid
        The user who made it.
    producers, consumers
        How many take part now.
    closed
        Nothing more can be published: it lives until its consumers leave.
    published
        How many frames there were so far.
    waiting
        How many frames are still to be taken: in a broadcast by the consumer that is furthest behind, in a queue those
        that are not acknowledged.
    slowest
        The id of the session of the consumer of a broadcast that is furthest behind; None: none is.
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
        The ids of the buffer and of its pool.
    nbytes, dtype_name, shape
        Bytes of the buffer, and what it holds.
    uid
        The user who published it.
    session
        The id of the session whose end removes the name; None: it is kept.
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
    """A buffer, and what holds it.

    Attributes
    ----------
    id, generation, pool
        Its id, never reused within one life of the service, the generation of its block, and the id of its pool.
    nbytes, block_nbytes, dtype_name, shape
        Bytes of the buffer and of its block, and what the buffer holds.
    writer
        The id of the session that has the write lease; None: there is none.
    readers, reads
        Ids of sessions that have read leases, at most eight, and how many such leases there are.
    names
        Under how many names it is published.
    in_channel
        A channel has it whose producer left.
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
    """The lists that a `Client` gives."""

    @abstractmethod
    def _run(self, flow: Flow[_T]) -> _T: ...

    def sessions(self) -> list[SessionInfo]:
        """List the sessions of this user, this one included; for the service's own user all.

        What comes and goes meanwhile may be missing, here and in the lists below.
        """
        return self._run(_sessions())

    def channels(self) -> list[ChannelInfo]:
        """List the channels that this user may use, with how many take part in each."""
        return self._run(_channels())

    def names(self) -> list[NameInfo]:
        """List the names of buffers that this user may lease."""
        return self._run(_names())

    def buffers(self) -> list[BufferInfo]:
        """List the buffers of the pools that this user may use, with the sessions that hold them."""
        return self._run(_buffers())


class AsyncLists:
    """The lists that an `AsyncClient` gives."""

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
