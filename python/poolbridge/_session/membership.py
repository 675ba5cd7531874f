"""Implements the common part of producers and consumers, and makes a session join a channel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from poolbridge._session.calls import Waiter
from poolbridge._session.flow import Ask, Flow, Hear
from poolbridge._session.grants import know_timeline
from poolbridge._sys.native import NATIVE
from poolbridge._wire.messages import Enter, Join, JoinReply, Reply
from poolbridge.errors import (
    ClosedError,
    ConnectionLostError,
    PoolbridgeError,
    UnavailableError,
)

if TYPE_CHECKING:
    from poolbridge import _native
    from poolbridge._session.session import Session
    from poolbridge._wire.messages import ChannelIdentity

FEATURE = "channels"
# How many seconds `Membership.evicted` waits for the end of the whole session, whose error says more.
_END_SECONDS = 1.0


class Membership(ABC):
    """The common part of `Producer` and `Consumer`: a session's member of a channel.

    Parameters
    ----------
    session
        The member's session.
    channel
        The channel.
    role
        ``"producer"`` or ``"consumer"``.
    native
        The native producer or consumer.
    member
        The member's id.

    Attributes
    ----------
    known
        The ids of the members of the other role, by seat. This member has
        mapped the files of these members, or these members have left.
    unmapped
        By seat, the error of a file that could not be mapped, until a later member has the seat. Frames of a producer
        without its file fail. A producer cannot publish without the files of all consumers.
    """

    def __init__(
        self,
        session: Session,
        channel: ChannelIdentity,
        role: str,
        native: _native.Producer | _native.Consumer,
        member: int,
    ) -> None:
        self.session = session
        self.channel = channel
        self.role = role
        self.member = member
        self.known: dict[int, int] = {}
        self.unmapped: dict[int, PoolbridgeError] = {}
        self.native = native

    def meet(self, seat: int, member: int, fd: int | None) -> None:
        """Map the file of `member`, a member of the other role. If `fd` is None, `member` has left the channel already.

        Do nothing if this session has already mapped the file of `member`, or of a later member in the same `seat`.
        The caller holds the session's lock.
        """
        if member <= self.known.get(seat, 0):
            return
        self.unmapped.pop(seat, None)
        if fd is not None:
            # Do not raise here, in the thread that receives packets: the session must live. If this member is closed,
            # its next call raises the error.
            try:
                self._add(seat, member, fd)
            except ClosedError:
                pass
            except PoolbridgeError as error:
                self.unmapped[seat] = error.with_traceback(None)
        self.known[seat] = member

    @abstractmethod
    def _add(self, seat: int, member: int, fd: int) -> None:
        """Map the file of a member of the other role."""

    def forget(self, block: int) -> None:  # noqa: B027 - a producer keeps nothing
        """Drop the arrays kept for a block: the service recalls the block. The caller holds the session's lock."""

    @abstractmethod
    def leave(self) -> None:
        """Note in shared memory that this member leaves. The caller holds the session's lock, and tells the service."""

    def end(self) -> None:
        """Leave the channel, because the session has ended, and wake the threads that wait."""
        self.leave()

    def meets(self, seconds: float | None) -> Flow[bool]:
        """Wait for the file that `native` lacked in its last call; return False if `seconds` pass first."""
        seat, member = self.native.unknown
        met: bool = yield from hear(self.session, lambda: self.known.get(seat, 0) >= member, seconds)
        error = self.unmapped.get(seat) if self.known.get(seat) == member else None
        if error is not None and self.role == "producer":
            raise type(error)(*error.args)
        return met

    def evicted(self) -> Flow[None]:
        """Raise the session's error if the session ends within a second, else a `ConnectionLostError`."""
        yield from hear(self.session, lambda: False, _END_SECONDS)
        self.session.check_usable()
        raise ConnectionLostError(f"the service has removed this client from channel {self.channel.name!r}")

    def destroyed(self) -> ClosedError:
        """Return the error to raise when the channel is gone."""
        return _gone(self.channel.name)


def _gone(channel: str) -> ClosedError:
    return ClosedError(
        f"channel {channel!r} is gone: this or another program has closed it, or its pool was destroyed; make it again "
        "(`client.create_channel`)"
    )


@contextmanager
def named(channel: str) -> Iterator[None]:
    """Give the error of a channel that is gone the channel's name, because the service knows only the id."""
    try:
        yield
    except ClosedError as error:
        if type(error) is ClosedError:
            raise _gone(channel) from None
        raise


def hear(session: Session, ready: Callable[[], bool], seconds: float | None) -> Flow[bool]:
    """Receive packets until `ready` returns True; return False if `seconds` pass first."""
    waiter = Waiter(ready)
    session.core.waiters.append(waiter)
    try:
        heard: bool = yield Hear(waiter, seconds)
        session.check_usable()
        return heard
    finally:
        session.core.waiters.remove(waiter)


def check_able(session: Session) -> None:
    """Check that this installation and the service support channels.

    Raises
    ------
    UnavailableError
        This installation or the service lacks support. The message says which support is missing, and what to do.
    """
    if FEATURE in session.core.features:
        return
    if NATIVE is None:
        raise UnavailableError(
            "channels need poolbridge's native module, and this installation has none: install a wheel for this "
            "platform, or build poolbridge where there is a C compiler"
        )
    raise UnavailableError(
        "this service has no channels: its kernel cannot seal files against later writers, which needs Linux 5.1, or "
        "the service is too old: update the kernel or the service"
    )


_M = TypeVar("_M", bound=Membership)


def join(
    session: Session,
    request: Join,
    make: Callable[[ChannelIdentity, Any, int], _M],
    wait: float | None = 0.0,
) -> Flow[_M]:
    """Join a channel and return the member.

    Parameters
    ----------
    session
        The session.
    request
        The request to join, which names the channel by its id or by its name.
    make
        A function that makes the member from three arguments: the channel, the native producer or consumer, and the
        member's id.
    wait
        How many seconds the service waits for a channel of this name; None: no limit.
    """
    while session.timelines.own is None:
        yield from know_timeline(session, 0)
    reply = yield Ask(request, JoinReply, wait)
    member: _M | None = None
    try:
        native = NATIVE.Producer if request.role == "producer" else NATIVE.Consumer
        member = make(reply.channel, native(*session.seat(reply.number), reply.seat, reply.member), reply.member)
        session.add_member(member, reply.number)
        yield Ask(Enter(channel=reply.channel.id, member=reply.member), Reply)
    except BaseException:
        session.unjoin(reply.number)
        session.leave(member)
        raise
    return member
