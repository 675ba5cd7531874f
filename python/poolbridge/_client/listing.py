"""Asks the service for lists: of its sessions, channels, names, buffers, leases and events. Also ends sessions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from poolbridge._client.operations import check_count
from poolbridge._session.flow import Flow, ask
from poolbridge._wire.messages import (
    BufferEntry,
    ChannelEntry,
    EndSession,
    EventEntry,
    Events as EventsRequest,
    EventsReply,
    LeaseEntry,
    List as ListRequest,
    ListReply,
    NameEntry,
    Reply,
    SessionEntry,
)

if TYPE_CHECKING:
    from poolbridge._sys.literals import ChannelMode, FullPolicy

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session of the service: one connected client.

    Attributes
    ----------
    id
        The session's id, which stays unique until the service is restarted.
    uid, pid, program
        Id of the user, id of the process, and the name that the client gave for its program. Use `pid` and `program`
        for display only.
    began
        When the session began, in UTC.
    leases
        Number of the session's leases.
    blocks
        Number of blocks that the session may have mapped.
    members
        Number of the session's producers and consumers in channels.
    nbytes
        Bytes that count for the session in all pools; see `Client.create_pool`.
    waits
        Number of the session's requests that wait at the service.
    waits_for, since
        What the session has been waiting for longest, as a text, and when this wait began, in UTC; None if the session
        does not wait.
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
    waits: int
    waits_for: str | None
    since: datetime | None


@dataclass(frozen=True, slots=True)
class ChannelInfo:
    """A channel of the service.

    Attributes
    ----------
    id
        The channel's id, which stays unique until the service is restarted.
    name
        The channel's name.
    pool
        Id of the pool whose buffers the channel carries.
    mode, capacity, full
        The channel's settings; see `Client.create_channel`.
    uid
        Id of the user who made the channel.
    producers, consumers
        How many producers and consumers the channel has now.
    closed
        Whether the channel was closed. A closed channel accepts no frames, and exists until its consumers leave.
    published
        How many frames have been published.
    waiting
        In a broadcast, how many frames the consumer that is furthest behind has not taken yet. In a queue, how many
        frames are not acknowledged.
    slowest
        In a broadcast, the id of the session of the consumer whose frames take up the most places; None if no consumer
        is behind, and in a queue.
    used
        How many places of the channel have a frame. If this number is equal to `capacity`, the channel is full, and the
        setting `full` says what happens when a producer publishes a frame: the producer waits, the publication fails,
        or the frame replaces another frame.
    dropped
        How many frames were dropped so far because consumers were too slow: in a broadcast, the sum of the frames that
        each consumer missed; in a queue, the number of frames that no consumer got.
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
    used: int
    dropped: int


@dataclass(frozen=True, slots=True)
class NameInfo:
    """A name, and the buffer that is published under this name.

    Attributes
    ----------
    name
        The name.
    buffer, pool
        Ids of the buffer and of its pool.
    nbytes
        Bytes of the buffer.
    dtype_name, shape
        The buffer's element type, such as ``"float32"``, and the elements along each axis.
    uid
        Id of the user who published the name.
    session
        Id of a session: when this session ends, the service removes the name. None: the service keeps the name, because
        it was published with ``keep=True``.
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
        The buffer's id, which stays unique until the service is restarted.
    generation
        The number of the buffer in its block; see `BaseLease.generation`.
    pool
        Id of the buffer's pool.
    nbytes, block_nbytes
        Bytes of the buffer, and of its block.
    dtype_name, shape
        The buffer's element type, such as ``"float32"``, and the elements along each axis.
    writer
        Id of the session that has the write lease; None if there is no write lease.
    readers
        Ids of the sessions that have read leases; eight at most.
    reads
        Number of read leases.
    names
        Number of names under which the buffer is published.
    in_channel
        Whether the buffer is in a channel and the producer that published the buffer has left the channel.
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


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A lease of a session.

    Attributes
    ----------
    id, session
        The ids of the lease and of its session. These ids stay unique until the service is restarted.
    uid, pid, program
        Id of the user, id of the process, and the name that the client gave for its program. Use `pid` and `program`
        for display only.
    buffer, pool
        The ids of the buffer and of its pool.
    nbytes, block_nbytes
        Bytes of the buffer and of its block.
    write
        Whether the lease is a write lease.
    began
        When the service granted the lease, with a precision of one second.
    waits_for, since
        What the session has been waiting for longest, as a text, and when this wait began, in UTC; None if the session
        does not wait.
    """

    id: int
    session: int
    uid: int
    pid: int
    program: str
    buffer: int
    pool: int
    nbytes: int
    block_nbytes: int
    write: bool
    began: datetime
    waits_for: str | None
    since: datetime | None


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One event of the service. A field that does not apply to the event is None or 0.

    Attributes
    ----------
    number
        The event's number. The service counts events from 1 on. After a restart, it begins again with 1.
    at
        When the event happened, in UTC.
    kind
        Name of the kind of event, such as ``session-ended``: see ``docs/operating.md``.
    session, uid, pid, program
        For the session that the event concerns: the session's id, the user's id, the process id, and the name that the
        client gave for its program.
    pool, channel, buffer
        Names of the pool and of the channel, and the id of the buffer that the event concerns.
    nbytes
        Bytes of memory that the event concerns.
    ending
        How the session ended: ``left``, ``lost``, ``error``, ``closed`` or ``shutdown``; see ``docs/operating.md``.
    took
        How many seconds the reported state had lasted at the time of the event, such as how long a consumer had been
        too slow.
    count
        The number of events that this event stands for. The service reports frequent events of one kind together, as
        one event.
    text
        A sentence that describes the event, for people.
    """

    number: int
    at: datetime
    kind: str
    session: int | None
    uid: int | None
    pid: int | None
    program: str | None
    pool: str | None
    channel: str | None
    buffer: int | None
    nbytes: int
    ending: str | None
    took: float
    count: int
    text: str


def _time(nanoseconds: int) -> datetime | None:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC) if nanoseconds else None


def _session(of: SessionEntry) -> SessionInfo:
    began = datetime.fromtimestamp(of.bg / 1e9, UTC)
    return SessionInfo(of.id, of.ui, of.pd, of.nm, began, of.ls, of.bk, of.mb, of.n, of.wq, of.wf or None, _time(of.ws))


def _lease(of: LeaseEntry) -> LeaseInfo:
    began = datetime.fromtimestamp(of.bg / 1e9, UTC)
    waits = of.wf or None, _time(of.ws)
    return LeaseInfo(of.id, of.ss, of.ui, of.pd, of.nm, of.bf, of.pl, of.n, of.bs, of.wr, began, *waits)


def _event(of: EventEntry) -> HistoryEvent:
    at = datetime.fromtimestamp(of.at / 1e9, UTC)
    return HistoryEvent(
        number=of.id,
        at=at,
        kind=of.k,
        session=of.ss or None,
        uid=of.ui if of.ss else None,
        pid=of.pd or None,
        program=of.nm or None,
        pool=of.pl or None,
        channel=of.ch or None,
        buffer=of.bf or None,
        nbytes=of.n,
        ending=of.en or None,
        took=of.tk / 1e9,
        count=of.ct or 1,
        text=of.tx,
    )


def _channel(of: ChannelEntry) -> ChannelInfo:
    c = of.c
    mode, full = cast("ChannelMode", c.md), cast("FullPolicy", c.fl)
    return ChannelInfo(
        c.id, c.nm, c.pl, mode, c.cp, full, of.ui, of.pr, of.cs, of.sh, of.sq, of.wt, of.sl or None, of.uf, of.dr
    )


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


def _events(after: int) -> Flow[list[HistoryEvent]]:
    found: list[HistoryEvent] = []
    while True:
        page = yield from ask(EventsRequest(af=check_count(after, "after")), EventsReply)
        found += map(_event, page.ev)
        if not page.ev:
            return found
        after = page.nx


def _end(session: int) -> Flow[None]:
    yield from ask(EndSession(ss=check_count(session, "session")), Reply)


_sessions = partial(_pages, "sessions", "ss", _session)
_channels = partial(_pages, "channels", "cs", _channel)
_names = partial(_pages, "names", "ns", _name)
_buffers = partial(_pages, "buffers", "bs", _buffer)
_leases = partial(_pages, "leases", "ls", _lease)


class Lists:
    """The methods of `Client` that return lists, and `end_session`."""

    @abstractmethod
    def _run(self, flow: Flow[_T]) -> _T: ...

    def sessions(self) -> list[SessionInfo]:
        """List this user's sessions, including this session. The user that runs the service gets all sessions.

        The service sends a list page by page. The list may lack sessions that begin or end while the service sends the
        pages. The lists of `channels`, `names`, `buffers` and `leases` may lack entries for the same reason.

        Returns
        -------
        list of SessionInfo
            The sessions.
        """
        return self._run(_sessions())

    def channels(self) -> list[ChannelInfo]:
        """List the channels that this user may use. The user that runs the service gets all channels.

        Returns
        -------
        list of ChannelInfo
            The channels.
        """
        return self._run(_channels())

    def names(self) -> list[NameInfo]:
        """List the names of buffers that this user may lease. The user that runs the service gets all names.

        Returns
        -------
        list of NameInfo
            The names.
        """
        return self._run(_names())

    def buffers(self) -> list[BufferInfo]:
        """List the buffers of pools that this user may use. The user that runs the service gets all buffers.

        Returns
        -------
        list of BufferInfo
            The buffers.
        """
        return self._run(_buffers())

    def leases(self) -> list[LeaseInfo]:
        """List the leases on buffers of the pools that this user may use, with the session of each lease."""
        return self._run(_leases())

    def events(self, after: int = 0) -> list[HistoryEvent]:
        """List the events that concern this user, the oldest first. The user that runs the service gets all events.

        Parameters
        ----------
        after
            The number of the last event that the caller knows: the list has only later events. 0: all events that the
            service still has. The service keeps the newest few thousand events.

        Raises
        ------
        InvalidArgumentError
            No event has the number `after` yet: the service was started again, and numbers its events from 1 again.
        """
        return self._run(_events(after))

    def end_session(self, session: int) -> None:
        """End the session of another client. The service tells that client that its session has ended.

        The service uses the memory of that session again only after the process of that client has ended.

        Parameters
        ----------
        session
            The session's id; see `SessionInfo.id`.

        Raises
        ------
        AccessDeniedError
            This user is not the user that the service runs as.
        """
        self._run(_end(session))


class AsyncLists:
    """The methods of `AsyncClient` that return lists, and `end_session`."""

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

    async def leases(self) -> list[LeaseInfo]:
        """List leases; see `Client.leases`."""
        return await self._run(_leases())

    async def events(self, after: int = 0) -> list[HistoryEvent]:
        """List events; see `Client.events`."""
        return await self._run(_events(after))

    async def end_session(self, session: int) -> None:
        """End the session of another client; see `Client.end_session`."""
        await self._run(_end(session))
