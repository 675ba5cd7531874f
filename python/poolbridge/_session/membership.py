"""Members of channels: how a session joins one, and whom its members know."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from poolbridge._session.calls import Waiter
from poolbridge._session.flow import Ask, Flow, Hear
from poolbridge._session.grants import know_timeline
from poolbridge._sys.errors import ClosedError, ConnectionLostError, UnavailableError
from poolbridge._wire.messages import Enter, Join, JoinReply, Leave, Reply

if TYPE_CHECKING:
    from poolbridge import _native
    from poolbridge._session.session import Session
    from poolbridge._wire.messages import Channel
    from poolbridge._wire.transport import Descriptors

FEATURE = "channels"
# How long the end of a session may take to be heard of here, once the service has ended what its members do.
_END_SECONDS = 1.0


def load_native() -> Any:
    """Give the native module, or None where poolbridge is installed without it."""
    try:
        return importlib.import_module("poolbridge._native")
    except ImportError:
        return None


NATIVE = load_native()
"""The native module, or None."""


class Membership(ABC):
    """What a producer and a consumer of a session have in common.

    Parameters
    ----------
    session
        The session that the member is of.
    channel
        What it takes part in.
    role
        ``"producer"`` or ``"consumer"``.
    native
        Its end of the shared memory.
    member
        Its id.

    Attributes
    ----------
    known
        The members of the other role whose files it has: the id by slot.
    """

    def __init__(
        self, session: Session, channel: Channel, role: str, native: _native.Producer | _native.Consumer, member: int
    ) -> None:
        self.session = session
        self.channel = channel
        self.role = role
        self.member = member
        self.known: dict[int, int] = {}
        self.native = native

    def meet(self, slot: int, member: int, fd: int) -> None:
        """Map the file of a member of the other role, unless it or a newer one is known. The session's lock is held."""
        if member <= self.known.get(slot, 0):
            return
        try:
            self._add(slot, member, fd)
        except ClosedError:
            return  # it takes no part any more
        self.known[slot] = member

    @abstractmethod
    def _add(self, slot: int, member: int, fd: int) -> None:
        """Map the file of a member of the other role."""

    def forget(self, block: int) -> None:  # noqa: B027 - a producer keeps nothing
        """Keep nothing for a block any more: the service wants it back. The session's lock is held."""

    @abstractmethod
    def leave(self) -> None:
        """Take no part any more, as far as the shared memory goes. The session's lock is held."""

    def end(self) -> None:
        """Do as `leave` because the session has ended, and tell those who wait."""
        self.leave()

    def knows(self) -> Callable[[], bool]:
        """Give what says whether the member is known whose file was needed last."""
        slot, member = self.native.unknown
        return lambda: self.known.get(slot, 0) >= member

    def evicted(self) -> Flow[None]:
        """Raise the error of a member that the service has put out, which does so when the session ends."""
        yield from hear(self.session, lambda: False, _END_SECONDS)
        self.session.check_usable()
        raise ConnectionLostError(f"the service has ended this client's part in channel {self.channel.nm!r}")

    def destroyed(self) -> ClosedError:
        """Make the error of a channel whose pool was destroyed."""
        return ClosedError(f"channel {self.channel.nm!r} is gone: it was closed, or its pool was destroyed")


def hear(session: Session, ready: Callable[[], bool], seconds: float | None) -> Flow[bool]:
    """Receive packets until something is there that a notice brings; False if `seconds` passed before."""
    waiter = Waiter(ready)
    session.core.waiters.append(waiter)
    try:
        heard: bool = yield Hear(waiter, seconds)
        session.check_usable()
        return heard
    finally:
        session.core.waiters.remove(waiter)


def check_able(session: Session) -> None:
    """Check that this installation and the service have what channels need.

    Raises
    ------
    UnavailableError
        One of them has not; the message says what is missing and what to do.
    """
    if FEATURE in session.core.features:
        return
    if NATIVE is None:
        raise UnavailableError(
            "channels need poolbridge's native module, and this installation has none: install a wheel for this "
            "platform, or build poolbridge where there is a C compiler"
        )
    raise UnavailableError(
        "this service has no channels: its kernel cannot seal files against later writers, which takes Linux 5.1, or "
        "the service is older than channels are: update that"
    )


_M = TypeVar("_M", bound=Membership)


def join(
    session: Session,
    channel: Channel,
    role: str,
    make: Callable[[Any, int], _M],
    *,
    oldest: bool = False,
    full: str = "",
) -> Flow[_M]:
    """Take part in a channel.

    Parameters
    ----------
    session, channel, role
        Who takes part in what, and as what.
    make
        Makes the member of its native end and its id.
    oldest, full
        Of a consumer; see `poolbridge._wire.messages.Join`.
    """
    while session.timelines.own is None:
        yield from know_timeline(session, 0)
    reply = yield Ask(Join(ch=channel.id, ro=role, ol=oldest, fl=full), JoinReply)
    descriptors = session.take_seat(reply.q)
    try:
        member = make(_open(role, descriptors, reply), reply.mb)
    except BaseException:
        session.tell(Leave(ch=channel.id, mb=reply.mb))
        raise
    finally:
        descriptors.close()
    session.add_member(member)
    try:
        yield Ask(Enter(ch=channel.id, mb=reply.mb), Reply)
    except BaseException:
        session.leave(member)
        raise
    return member


def _open(role: str, descriptors: Descriptors, reply: JoinReply) -> Any:
    make = NATIVE.Producer if role == "producer" else NATIVE.Consumer
    return make(*descriptors.peek(), reply.sl, reply.mb)
