"""Asks the service for lists: of its sessions, channels, names, buffers, leases and events. Also ends sessions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from poolbridge._client.entries import (
    BufferInfo,
    ChannelInfo,
    HistoryEvent,
    LeaseInfo,
    MemberInfo,
    NameInfo,
    SessionInfo,
    buffer_info,
    channel_info,
    history_event,
    lease_info,
    member_info,
    name_info,
    session_info,
)
from poolbridge._client.operations import check_count
from poolbridge._session.flow import Flow, ask
from poolbridge._wire.messages import (
    EndSession,
    Events as EventsRequest,
    EventsReply,
    List as ListRequest,
    ListReply,
    Reply,
)
from poolbridge.errors import NotFoundError

if TYPE_CHECKING:
    from poolbridge._client.channel import BaseChannel

_T = TypeVar("_T")


def _pages(what: str, describe: Callable[[Any], _T], channel: int = 0) -> Flow[list[_T]]:
    found: list[_T] = []
    after = ""
    while True:
        page = yield from ask(ListRequest(what=what, after=after, channel=channel), ListReply)
        found += map(describe, getattr(page, what))
        after = page.next
        if not after:
            return found


def _events(after: int) -> Flow[list[HistoryEvent]]:
    found: list[HistoryEvent] = []
    while True:
        page = yield from ask(EventsRequest(after=check_count(after, "after")), EventsReply)
        found += map(history_event, page.events)
        if not page.events:
            return found
        after = page.next


def _end(session: int) -> Flow[None]:
    yield from ask(EndSession(session=check_count(session, "session")), Reply)


_sessions = partial(_pages, "sessions", session_info)
_channels = partial(_pages, "channels", channel_info)
_names = partial(_pages, "names", name_info)
_buffers = partial(_pages, "buffers", buffer_info)
_leases = partial(_pages, "leases", lease_info)


def _members(channel: BaseChannel | ChannelInfo | str | int) -> Flow[list[MemberInfo]]:
    of: Any = channel
    if isinstance(of, str):
        named = [one for one in (yield from _pages("channels", channel_info)) if one.name == of]
        if not named:
            raise NotFoundError(f"there is no channel {of!r} that this user may use")
        of = min(named, key=lambda one: (one.closed, one.id))
    return (yield from _pages("members", member_info, check_count(getattr(of, "id", of), "channel")))


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
        """List the channels of pools that this user may use or has made, with closed ones that still have consumers.

        The user that runs the service, and root, get all channels.

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

    def members(self, channel: BaseChannel | ChannelInfo | str | int) -> list[MemberInfo]:
        """List the producers and consumers of a channel, also those that left and still have frames of a queue.

        Parameters
        ----------
        channel
            A channel, an entry of `channels`, or a channel's name or id. Of several channels of a name, the open one.

        Raises
        ------
        NotFoundError
            There is no channel of this name that this user may use.
        ClosedError
            There is no such channel that this user may use.
        """
        return self._run(_members(channel))

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

    async def members(self, channel: BaseChannel | ChannelInfo | str | int) -> list[MemberInfo]:
        """List the members of a channel; see `Client.members`."""
        return await self._run(_members(channel))

    async def events(self, after: int = 0) -> list[HistoryEvent]:
        """List events; see `Client.events`."""
        return await self._run(_events(after))

    async def end_session(self, session: int) -> None:
        """End the session of another client; see `Client.end_session`."""
        await self._run(_end(session))
