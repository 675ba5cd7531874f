"""Subscriptions: the frames of a channel, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

from poolbridge._client import channel_operations as _channel_operations
from poolbridge._client import operations as _operations
from poolbridge._client.borrowed import AsyncBorrowedArrays, BorrowedArrays
from poolbridge._client.channel import info_of
from poolbridge._client.frame import AsyncFrame, BaseFrame, Frame, pass_on
from poolbridge._session.consumer import claim, receive
from poolbridge._sys.errors import InvalidArgumentError

if TYPE_CHECKING:
    from poolbridge import _native
    from poolbridge._client.channel import AsyncChannel, Channel
    from poolbridge._session.consumer import Consumer
    from poolbridge._session.flow import AsyncRun, Run
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.session import Session
    from poolbridge._sys.literals import AckMode, FullPolicy


class BaseSubscription:
    """What the blocking and the asyncio subscription have in common."""

    def __init__(self, session: Session, consumer: Consumer | None, ack: str) -> None:
        self._session = session
        self._consumer = consumer
        self._ack = ack
        self._last: Callable[[], BaseFrame | None] = _none

    def _pass(self) -> None:
        """Let go of the frame that an iteration had before, unless frames are acknowledged by hand."""
        last = self._last()
        if last is not None and self._ack == "auto":
            self._last = _none
            pass_on(last)

    def _check_auto(self) -> None:
        if self._ack != "auto":
            raise InvalidArgumentError(
                "arrays() acknowledges each frame when the next is asked for: subscribe without "
                'ack="manual", or iterate over the subscription itself'
            )

    @property
    def closed(self) -> bool:
        """Whether it was closed, or no frame will come any more."""
        return self._consumer is not None and self._consumer.ended

    def _close(self) -> None:
        if self._consumer is not None:
            self._session.unsubscribe(self._consumer)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._close()


class Subscription(BaseSubscription):
    """The frames of a channel, for one thread to take one after the other; a context manager.

    Asking for the next frame acknowledges those before it, and iteration lets go of them; arrays that were made from
    them live on. With ``ack="manual"`` it does neither: `Frame.ack`, `Frame.requeue` and `Frame.release` do. Iteration
    ends when the channel is closed: in a queue, once every frame is acknowledged. It raises `ProducerDiedError` at a
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

    _consumer: Consumer

    def __init__(self, run: Run, channel: Channel, consumer: Consumer, ack: str) -> None:
        super().__init__(consumer.session, consumer, ack)
        self._run = run
        self.channel = channel
        self.spin = 0.0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Frame:
        self._pass()
        frame = self._take(None)
        if frame is None:
            raise StopIteration
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
            None if the channel was closed.

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
        return self._take(seconds)

    def _next(self, seconds: float | None) -> _native.Frame | None:
        """Give the next frame once it is there; None if none will come any more."""
        consumer = self._consumer
        consumer.asks()
        return consumer.at_once() or self._run(receive(consumer, seconds, self.spin))

    def _claim(self, frame: _native.Frame) -> LeaseState:
        """Make a lease state of a frame."""
        return self._run(claim(self._consumer, frame))

    def _take(self, seconds: float | None) -> Frame | None:
        frame = self._next(seconds)
        return None if frame is None else Frame(self._run, self._claim(frame), self._consumer, frame)

    def arrays(self, wrap: Callable[[Any], Any] | None = None, *, stream: Any = None) -> BorrowedArrays:
        """Iterate over the frames as arrays that are made once and used again: the fastest way to take frames.

        Each array is good until the next is asked for, which lets go of its frame; then the memory is written again.
        What is to live longer is copied, or taken as a `Frame` by iterating over the subscription itself.

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
        return BorrowedArrays(
            self._consumer, run=self._run, take=self._next, claim=self._claim, wrap=wrap, stream=stream
        )

    def close(self) -> None:
        """Want no more frames; those that were taken stay. Idempotent."""
        self._close()

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
        session: Session,
        run: AsyncRun,
        find: Callable[[str, float | None], Awaitable[AsyncChannel]],
        channel: AsyncChannel | str,
        *,
        credit: int,
        oldest: bool,
        full: FullPolicy | None,
        ack: AckMode,
        timeout: float | None,
    ) -> None:
        super().__init__(session, None, ack)
        self._run = run
        self._find = find
        self._wanted = channel
        self._subscribe = partial(
            _channel_operations.subscribe,
            session,
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

    async def _start(self) -> Consumer:
        if self._consumer is None:
            wanted = self._wanted
            opened = await self._find(wanted, self._timeout) if isinstance(wanted, str) else wanted
            self.channel = opened
            self._consumer = await self._run(self._subscribe(info_of(opened)))
        return self._consumer

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
        frame = await self._next(seconds)
        return None if frame is None else AsyncFrame(self._run, await self._claim(frame), await self._start(), frame)

    async def _next(self, seconds: float | None) -> _native.Frame | None:
        """Give the next frame once it is there; None if none will come any more."""
        consumer = await self._start()
        consumer.asks()
        return consumer.at_once() or await self._run(receive(consumer, seconds, 0.0))

    async def _claim(self, frame: _native.Frame) -> LeaseState:
        """Make a lease state of a frame."""
        return await self._run(claim(await self._start(), frame))

    def arrays(self, wrap: Callable[[Any], Any] | None = None, *, stream: Any = None) -> AsyncBorrowedArrays:
        """Iterate over the frames as arrays that are made once and used again; see `Subscription.arrays`."""
        self._check_auto()
        self._pass()
        return AsyncBorrowedArrays(
            self._session,
            run=self._run,
            start=self._start,
            take=self._next,
            claim=self._claim,
            wrap=wrap,
            stream=stream,
        )

    async def close(self) -> None:
        """Want no more frames; those that were taken stay. Idempotent."""
        self._close()

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<poolbridge.AsyncSubscription to {self._name!r}, {'closed' if self.closed else 'open'}>"


def _none() -> None:
    return None
