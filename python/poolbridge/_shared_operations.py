"""What a client can do as a consumer of a shared channel, written once for both clients; see `_operations`."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from poolbridge._errors import PoolLimitError, ProtocolError, WaitTimeoutError
from poolbridge._feed import Feed
from poolbridge._membership import NATIVE, hear, join
from poolbridge._operations import Flow, Sleep
from poolbridge._shared_messages import Doubt
from poolbridge._sharedconsumer import SharedConsumer

if TYPE_CHECKING:
    from poolbridge import _native
    from poolbridge._messages import Channel
    from poolbridge._session import Session


def consume(session: Session, channel: Channel, *, credit: int, oldest: bool, full: str, auto: bool) -> Flow[Feed]:
    """Take part in a channel as a consumer."""
    feed = Feed(0)

    def make(native: _native.Consumer, member: int) -> SharedConsumer:
        feed.id = member
        return SharedConsumer(session, channel, native, member, feed=feed, credit=credit)

    shared: SharedConsumer = yield from join(session, channel, "consumer", make, oldest=oldest, full=full)
    feed.start(1, 1, queue=channel.md == "queue", auto=auto)
    feed.shared = shared
    try:
        if not isinstance(shared.native.begin(), int):
            yield from shared.evicted()
    except BaseException:
        session.leave(shared)
        raise
    return feed


def receive(shared: SharedConsumer, seconds: float | None, spin: float) -> Flow[_native.Frame | None]:
    """Take the next frame once it is there; None if none will come any more."""
    session, feed, condition = shared.session, shared.feed, NATIVE.Condition
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        if feed.ended:
            if feed.error is not None:
                raise type(feed.error)(*feed.error.args)
            return None
        session.check_usable()
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        got: Any = condition.TIMEOUT
        if not shared.has_credit:
            yield Sleep(shared.await_credit, left)
        else:
            if not shared.early:
                yield Sleep(partial(shared.look, spin), left)
            if shared.early:
                got = shared.early.popleft()
            if isinstance(got, NATIVE.Frame):
                frame: _native.Frame = got
                return frame
        if got is condition.UNKNOWN_MEMBER:
            yield from hear(session, shared.knows(), left)
        elif got is not condition.TIMEOUT:
            yield from _end_or_fail(shared, got)
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeoutError(f"no frame of channel {shared.channel.nm!r} came within {seconds:g} s")


def _end_or_fail(shared: SharedConsumer, got: Any) -> Flow[None]:
    """Do what has to be done where there is no frame."""
    session, feed, condition, name = shared.session, shared.feed, NATIVE.Condition, shared.channel.nm
    if got is condition.END:
        feed.lose(None)
    elif got is condition.DESTROYED:
        feed.lose(shared.destroyed())
    elif got is condition.FAILED:
        number = shared.native.failed
        session.tell(Doubt(ch=shared.channel.id, mb=shared.member, sq=number))
        raise ProtocolError(f"frame {number} of channel {name!r} has failed: what its producer says of it is no frame")
    elif got is condition.HANDS_FULL:
        raise PoolLimitError(
            f"256 frames of channel {name!r} are in hand: drop or release some of them and their arrays"
        )
    elif not feed.ended:
        yield from shared.evicted()
