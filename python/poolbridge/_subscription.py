"""Subscriptions: the frames of a channel, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

from msgspec import UnsetType

from poolbridge import _channel_operations, _errors, _operations, _order, _shared_operations
from poolbridge._borrowed import AsyncBorrowedArrays, BorrowedArrays
from poolbridge._errors import InvalidArgumentError, WaitTimeoutError
from poolbridge._frame import AsyncFrame, BaseFrame, Frame

if TYPE_CHECKING:
    from poolbridge import _channel_messages, _native
    from poolbridge._aclient import AsyncClient
    from poolbridge._channel import AsyncChannel, Channel
    from poolbridge._client import Client
    from poolbridge._feed import Feed
    from poolbridge._hold import Hold
    from poolbridge._literals import AckMode, FullPolicy
    from poolbridge._messages import Grant
    from poolbridge._operations import Flow
    from poolbridge._session import Session


class _Intake:
    """What the blocking and the asyncio subscription have in common: a feed, and what to do with what it has."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.feed: Feed | None = None

    def begin(self, feed: Feed) -> _channel_messages.Frame | None:
        """Give the next frame that is there; None if it has to be waited for.

        Raises
        ------
        StopIteration
            The channel was shut, or the subscription closed.
        ProducerDiedError
            At this frame; the next can be taken.
        PoolbridgeError
            No frame will come any more, and why.
        """
        if not feed.frames:
            if feed.error is not None:
                raise type(feed.error)(*feed.error.args) from None
            if feed.ended:
                raise StopIteration from None
            return None
        notice = feed.frames.popleft()
        feed.taken = notice.sq
        error = notice.e
        if not isinstance(error, UnsetType):
            self.session.pay(feed)
            raise _errors.from_wire(error.c, f"frame {notice.sq}: {error.m}")
        return notice

    def held(self, feed: Feed, grant: Grant) -> Hold | None:
        """Make a hold of a frame's lease if nothing has to be waited for."""
        hold = _operations.held(self.session, grant, feed)
        return None if hold is None else _checked(hold)

    def take(self, feed: Feed, grant: Grant) -> Flow[Hold]:
        """Make a hold of a frame's lease, opening and mapping what it needs."""
        hold = yield from _operations.take(self.session, grant, feed)
        return _checked(hold)

    def close(self) -> None:
        """Want no more frames."""
        if self.feed is not None:
            self.session.unsubscribe(self.feed)


class BaseSubscription:
    """What the blocking and the asyncio subscription have in common."""

    def __init__(self, session: Session, ack: str) -> None:
        self._intake = _Intake(session)
        self._ack = ack
        self._last: Callable[[], BaseFrame | None] = _none

    def _pass(self) -> None:
        """Let go of the frame that an iteration had before, unless frames are acknowledged by hand."""
        last = self._last()
        if last is not None and self._ack == "auto":
            self._last = _none
            last._pass()  # noqa: SLF001 - of one family

    def _check_auto(self) -> None:
        if self._ack != "auto":
            raise InvalidArgumentError(
                "arrays() acknowledges each frame when the next is asked for: subscribe without "
                'ack="manual", or iterate over the subscription itself'
            )

    @property
    def closed(self) -> bool:
        """Whether it was closed, or no frame will come any more."""
        feed = self._intake.feed
        return feed is not None and feed.ended and not feed.frames

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._intake.close()


class Subscription(BaseSubscription):
    """The frames of a channel, for one thread to take one after the other; a context manager.

    Asking for the next frame acknowledges those before it, and iteration lets go of them; arrays that were made from
    them live on. With ``ack="manual"`` it does neither: `Frame.ack`, `Frame.requeue` and `Frame.release` do. Iteration
    ends when the channel is shut: in a queue, once every frame is acknowledged. It raises `ProducerDiedError` at a
    frame whose producer died before it was complete, and another error when no frame can come any more; after the
    first, iterating again goes on.

    A frame of a queue that was not acknowledged goes to another consumer when this one ends, also the frame with which
    a loop was left: when the frame and its arrays are gone and the subscription is closed, or with the client.

    Attributes
    ----------
    channel
        The channel.
    spin
        Seconds for which a wait for the next frame does not sleep: a frame that comes then is in hand sooner, at the
        price of a whole CPU meanwhile. 0 at first.
    """

    def __init__(self, client: Client, channel: Channel, feed: Feed, ack: str) -> None:
        super().__init__(client._session, ack)  # noqa: SLF001 - of one family
        self._client = client
        self.channel = channel
        self.spin = 0.0
        self._intake.feed = self._feed = feed

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Frame:
        self._pass()
        frame = self._take(None)
        self._last = ref(frame)
        return frame

    def receive(self, timeout: float | None = None) -> Frame | None:
        """Take the next frame, which acknowledges those before it; unlike an iteration it does not let go of them.

        Parameters
        ----------
        timeout
            Seconds to wait; None: no limit.

        Returns
        -------
        Frame or None
            None if the channel was shut.

        Raises
        ------
        WaitTimeoutError
            None came in time.
        ProducerDiedError
            At this frame; the next can be taken.
        ClosedError
            No frame will come any more.
        """
        seconds = None if timeout is None else _operations.check_wait(timeout) / 1000
        try:
            return self._take(seconds)
        except StopIteration:
            return None

    def _next(self, seconds: float | None) -> _channel_messages.Frame:
        """Give the next frame, which has a lease, once it is there."""
        intake, feed = self._intake, self._feed
        if feed.shared is not None:
            frame = self._next_shared(seconds)
            if frame is None:
                raise StopIteration
            return feed.shared.notice(frame)
        intake.session.asks(feed)
        while (notice := intake.begin(feed)) is None:
            intake.session.check_usable()
            if not self._client._pump.wait(feed, seconds, self.spin):  # noqa: SLF001
                raise WaitTimeoutError(f"no frame of channel {self.channel.name!r} came within {seconds:g} s")
        return notice

    def _next_shared(self, seconds: float | None) -> _native.Frame | None:
        """Give the next frame of shared memory; None if none will come any more."""
        shared = self._feed.shared
        assert shared is not None  # noqa: S101 - for the type checker: the caller has looked
        self._intake.session.asks(self._feed)
        return shared.at_once() or self._client._run(  # noqa: SLF001
            _shared_operations.receive(shared, seconds, self.spin)
        )

    def _claim(self, notice: _channel_messages.Frame) -> Hold:
        """Make a hold of a frame's lease."""
        intake, grant = self._intake, notice.l
        assert not isinstance(grant, UnsetType)  # noqa: S101 - for the type checker: the core has seen to it
        return intake.held(self._feed, grant) or self._client._run(intake.take(self._feed, grant))  # noqa: SLF001

    def _take(self, seconds: float | None) -> Frame:
        notice = self._next(seconds)
        return Frame(self._client, self._claim(notice), notice, self._feed)

    def arrays(self, wrap: Callable[[Any], Any] | None = None, *, stream: Any = None) -> BorrowedArrays:
        """Iterate over the frames as arrays that are made once and used again: the fastest way to take frames.

        Each array is good until the next is asked for, which lets go of its frame; then the memory is written again.
        What is to live longer is copied, or taken as a `Frame` by iterating over the subscription itself. Frames of a
        broadcast that are taken within 50 µs of each other while more are there are let go of together, within some
        10 ms: an eighth of the credit, if that is 16 or more.

        Parameters
        ----------
        wrap
            Makes an array of a lease: ``cupy.from_dlpack``, for example. Left out: `numpy.asarray`, for memory of the
            CPU.
        stream
            The stream on which the arrays are used: it waits until each is complete, and the memory is written again
            after the work that it has when the next array is asked for. Needed for memory of a GPU; see `used_on`.

        Returns
        -------
        BorrowedArrays
            An iterator with the ``seq``, ``time``, ``time_ns``, ``meta`` and ``dropped`` of the frame whose array it
            yielded last. It ends and raises as iteration over the subscription does.

        Raises
        ------
        InvalidArgumentError
            The subscription has ``ack="manual"``; while it yields: the memory is a GPU's, and there is no `stream`.
        """
        self._check_auto()
        self._pass()
        return BorrowedArrays(self, wrap, stream)

    def close(self) -> None:
        """Want no more frames; those that were taken stay. Idempotent."""
        self._intake.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<poolbridge.Subscription to {self.channel.name!r}, {'closed' if self.closed else 'open'}>"


class AsyncSubscription(BaseSubscription):
    """The frames of a channel, for one task to take one after the other; an asynchronous context manager.

    It subscribes when it is entered, or with the first frame that is asked for. See `Subscription`.

    Attributes
    ----------
    channel
        The channel, once it has subscribed.
    """

    def __init__(
        self,
        client: AsyncClient,
        channel: AsyncChannel | str,
        *,
        credit: int,
        oldest: bool,
        full: FullPolicy | None,
        ack: AckMode,
        timeout: float | None,
    ) -> None:
        super().__init__(client._session, ack)  # noqa: SLF001 - of one family
        self._client = client
        self._wanted = channel
        self._subscribe = partial(
            _channel_operations.subscribe,
            client._session,  # noqa: SLF001
            credit=credit,
            oldest=oldest,
            full=full,
            ack=ack,
        )
        self._timeout = timeout
        self.channel: AsyncChannel | None = None

    @property
    def _name(self) -> str:
        return self._wanted if isinstance(self._wanted, str) else self._wanted.name

    async def _start(self) -> Feed:
        if self._intake.feed is None:
            wanted = self._wanted
            opened = await self._client.open_channel(wanted, self._timeout) if isinstance(wanted, str) else wanted
            self.channel = opened
            self._intake.feed = await self._client._run(self._subscribe(opened._info))  # noqa: SLF001
        feed = self._intake.feed
        assert feed is not None  # noqa: S101 - for the type checker: it was just started
        return feed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncFrame:
        self._pass()
        frame = await self.receive()
        if frame is None:
            raise StopAsyncIteration
        self._last = ref(frame)
        return frame

    async def receive(self, timeout: float | None = None) -> AsyncFrame | None:
        """Take the next frame; see `Subscription.receive`."""
        seconds = None if timeout is None else _operations.check_wait(timeout) / 1000
        feed = await self._start()
        try:
            notice = await self._next(seconds)
        except StopAsyncIteration:
            return None
        return AsyncFrame(self._client, await self._claim(notice), notice, feed)

    async def _next(self, seconds: float | None) -> _channel_messages.Frame:
        """Give the next frame, which has a lease, once it is there."""
        feed, intake = await self._start(), self._intake
        if feed.shared is not None:
            frame = await self._next_shared(seconds)
            if frame is None:
                raise StopAsyncIteration
            return feed.shared.notice(frame)
        intake.session.asks(feed)
        try:
            while (notice := intake.begin(feed)) is None:
                intake.session.check_usable()
                if not await self._client._pump.wait(feed, seconds):  # noqa: SLF001
                    raise WaitTimeoutError(f"no frame of channel {self._name!r} came within {seconds:g} s")
        except StopIteration:
            raise StopAsyncIteration from None
        return notice

    async def _next_shared(self, seconds: float | None) -> _native.Frame | None:
        """Give the next frame of shared memory; None if none will come any more."""
        feed = await self._start()
        shared = feed.shared
        assert shared is not None  # noqa: S101 - for the type checker: the caller has looked
        self._intake.session.asks(feed)
        frame = shared.at_once()
        if frame is None:
            frame = await self._client._run(_shared_operations.receive(shared, seconds, 0.0))  # noqa: SLF001
        return frame

    async def _claim(self, notice: _channel_messages.Frame) -> Hold:
        """Make a hold of a frame's lease."""
        intake, grant, feed = self._intake, notice.l, await self._start()
        assert not isinstance(grant, UnsetType)  # noqa: S101 - for the type checker: the core has seen to it
        hold = intake.held(feed, grant)
        if hold is None:
            hold = await self._client._run(intake.take(feed, grant))  # noqa: SLF001
        return hold

    def arrays(self, wrap: Callable[[Any], Any] | None = None, *, stream: Any = None) -> AsyncBorrowedArrays:
        """Iterate over the frames as arrays that are made once and used again; see `Subscription.arrays`."""
        self._check_auto()
        self._pass()
        return AsyncBorrowedArrays(self, wrap, stream)

    async def close(self) -> None:
        """Want no more frames; those that were taken stay. Idempotent."""
        self._intake.close()

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<poolbridge.AsyncSubscription to {self._name!r}, {'closed' if self.closed else 'open'}>"


def _checked(hold: Hold) -> Hold:
    """Give a hold; raise if its content is known to be incomplete."""
    if hold.lost or hold.tickets:
        _order.check(hold)
    return hold


def _none() -> None:
    return None
