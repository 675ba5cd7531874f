"""Defines subscriptions, which are iterators over the frames of a channel; ``borrowed.py`` iterates over arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import ref

from poolbridge._client import channel_operations as _channel_operations, operations as _operations
from poolbridge._client.borrowed import AsyncBorrowedArrays, BorrowedArrays
from poolbridge._client.channel import BaseChannel, Channel, check_service, info_of
from poolbridge._client.frame import AsyncFrame, BaseFrame, Frame, pass_on
from poolbridge._client.tracing import Operation, traced
from poolbridge._session.consumer import claim, map_claimed, receive
from poolbridge._sys.finaliser import while_running
from poolbridge._sys.uncopied import Uncopied
from poolbridge.errors import (
    InvalidArgumentError,
)

if TYPE_CHECKING:
    from poolbridge._client.channel import AsyncChannel
    from poolbridge._session.consumer import Consumer
    from poolbridge._session.flow import AsyncRun, Flow, Run
    from poolbridge._session.session import Session
    from poolbridge._sys.literals import AckMode, FullPolicy, NoProducers


def _receives(subscription: BaseSubscription, *_of: Any) -> Operation:
    return Operation("receive", channel=subscription._name)  # noqa: SLF001


def _received(operation: Operation, result: BaseFrame | None, **_owner: Any) -> None:
    if result is not None:
        operation.pool, operation.nbytes = result.pool, result.nbytes
        operation.seq, operation.dropped, operation.meta = result.seq, result.dropped, result.meta


class BaseSubscription(Uncopied):
    """The code that `Subscription` and `AsyncSubscription` share."""

    _frame_type: ClassVar[Any]
    _channel_type: ClassVar[type[BaseChannel]] = BaseChannel
    _consumer: Consumer | None = None

    def __init__(
        self,
        session: Session,
        run: Any,
        opened: Callable[..., Flow[Any]],
        channel: Any,
        *,
        credit: int,
        oldest: bool,
        full: FullPolicy | None,
        ack: AckMode,
        no_producers: NoProducers,
        timeout: float | None,
    ) -> None:
        self._session = session
        self._run = run
        self._opened = opened
        self._wanted = channel
        self._subscribe = partial(
            _channel_operations.subscribe,
            session,
            credit=credit,
            oldest=oldest,
            full=full,
            ack=ack,
            no_producers=no_producers,
            timeout=timeout,
        )
        self._ack = ack
        self._joining = False
        self._last: Callable[[], BaseFrame | None] = _none
        self.channel: Any = None

    @property
    def _name(self) -> str:
        return self._wanted.name if isinstance(self._wanted, BaseChannel) else self._wanted

    def _join(self) -> Flow[Consumer]:
        """Return the consumer. The first call joins the channel."""
        if self._consumer is None:
            if self._joining:
                raise InvalidArgumentError(
                    "another call of this subscription waits: subscribe once for each thread or task"
                )
            self._joining = True
            try:
                consumer = yield from self._join_wanted()
            finally:
                self._joining = False
            self._consumer = consumer
        return self._consumer

    def _join_wanted(self) -> Flow[Consumer]:
        wanted = self._wanted
        if isinstance(wanted, self._channel_type):
            check_service(wanted, self._session)
            consumer: Consumer = yield from self._subscribe(info_of(wanted))
            self.channel = wanted
            return consumer
        consumer = yield from self._subscribe(wanted)
        try:
            self.channel = yield from self._opened(consumer.channel)
        except BaseException:
            self._session.unsubscribe(consumer)
            raise
        return consumer

    def _take(self, seconds: float | None) -> Flow[Any]:
        """Take the next frame. If an error interrupts this flow, the frame stays in the native consumer's `offered`."""
        consumer = self._consumer
        if consumer is None:
            consumer = yield from self._join()
        consumer.asks()
        native = consumer.at_once() or (yield from receive(consumer, seconds))
        if native is None:
            return None
        state = claim(consumer, native) or (yield from map_claimed(consumer, native))
        return self._frame_type(self._run, state, consumer, native)

    _take_traced = traced(_receives, _received)(_take)

    def _receive(self, seconds: float | None) -> Flow[Any]:
        """Take the next frame, and trace that. Without a tracer, `_take_traced` takes 0.15 µs more than `_take`."""
        return self._take(seconds) if self._session.tracer is None else self._take_traced(seconds)

    def _pass(self) -> None:
        """Release the frame that the iteration returned last. Do nothing if the subscription has ``ack="manual"``."""
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
        """Whether the subscription was closed, or will get no more frames for another reason."""
        return self._consumer is not None and self._consumer.ended

    @property
    def producers(self) -> list[tuple[int, str]]:
        """The process id of each producer, and how it left the channel; see it after a loop.

        ``""``: it takes part. ``"left"``: it left, or closed its client. ``"lost"``: its process was killed, or ended
        without closing the client. ``"closed"``: an operator ended it. ``"error"``: the service did. If another
        producer got the place of one that left, that one is missing. Once the subscription has ended, the list stays.
        """
        return [] if self._consumer is None else list(self._consumer.presence.producers())

    def _close(self) -> None:
        if self._consumer is not None:
            self._session.unsubscribe(self._consumer)

    @while_running
    def __del__(self) -> None:
        self._close()


class Subscription(BaseSubscription):
    """An iterator over the frames of a channel, for one thread. `Client.subscribe` makes a subscription.

    A subscription is a context manager: the end of the ``with`` block closes the subscription. With ``ack="auto"``, the
    call for the next frame acknowledges the earlier frames. Iteration also releases the earlier frames; arrays that
    were made from these frames stay valid. With ``ack="manual"`` the program calls `Frame.ack`, `Frame.requeue` or
    `Frame.release` for each frame, or uses the frame's ``with`` block.

    When the channel is closed, iteration ends: in a broadcast, when this subscription has taken all frames; in a queue,
    when all frames are acknowledged. Iteration raises `ContentFailedError` at a frame whose content will never be
    complete, because the producer died or reported a failure. Iterate again to get the next frame. Iteration raises
    `ClosedError` if the subscription can get no more frames for another reason, for example because the pool was
    destroyed.

    A program may take a frame of a queue and never acknowledge the frame, for example because it leaves a loop at this
    frame. The frame then goes back to the queue at one of the following times, and another consumer gets the frame.
    After `close`, the frame goes back when the frame object and its arrays are gone. When the client is closed or the
    client's process ends, all frames that are not acknowledged go back.

    Attributes
    ----------
    channel
        The channel.
    """

    _frame_type: ClassVar = Frame
    _channel_type: ClassVar = Channel

    _run: Run
    _consumer: Consumer  # the client joins the channel before the program gets the subscription
    channel: Channel

    @property
    def spin(self) -> float | None:
        """How many seconds a thread that waits for a frame polls before it sleeps. Polling uses a whole CPU.

        None, the default: the thread polls for 100 µs if frames came during recent polls, and if no other program
        needed the CPU at that time. 0: the thread does not poll. A thread that polls notices a new frame sooner than a
        thread that sleeps.
        """
        return self._consumer.spin

    @spin.setter
    def spin(self, seconds: float | None) -> None:
        self._consumer.spin = seconds

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Frame:
        self._pass()
        frame: Frame | None = self._run(self._receive(None))
        if frame is None:
            raise StopIteration
        self._last = ref(frame)
        self._consumer.native.offered = None
        return frame

    def receive(self, timeout: float | None = None) -> Frame | None:
        """Take the next frame.

        With ``ack="auto"`` the call acknowledges the earlier frames. Unlike iteration, the call does not release the
        earlier frames: the producer cannot use the memory of a frame again while the frame object exists.

        Parameters
        ----------
        timeout
            How many seconds to wait; 0: do not wait; None, the default: no limit.

        Returns
        -------
        Frame or None
            The frame; None if the channel was closed and no frame is left, or if this subscription was closed.

        Raises
        ------
        WaitTimeoutError
            No frame came within `timeout`; the message says since when none came, and who the producers are or since
            when there is none. Or this subscription held as many unacknowledged frames as its ``credit`` allows, during
            all this time.
        ContentFailedError
            The frame's content will never be complete. The next call of `receive` takes the next frame.
        FrameCorruptError
            A `ContentFailedError`: what the producer wrote about the frame cannot be true. The frame is acknowledged.
        ProtocolError
            Another member has destroyed the order of the channel's frames. The subscription has ended.
        InvalidArgumentError
            Another thread or task is taking a frame of this subscription: subscribe once for each.
        PoolLimitError
            This subscription holds 256 frames, which is the limit: release some frames and their arrays.
        NoProducersError
            A `ClosedError`: no producer is left, and the subscription has ``no_producers="fail"``.
        ClosedError
            The subscription will get no more frames: the pool was destroyed, the client was closed or the connection is
            lost.
        """
        seconds = _operations.check_timeout(timeout)
        frame: Frame | None = self._run(self._receive(seconds))
        self._consumer.native.offered = None
        return frame

    def arrays(self, wrap: Callable[[Any], Any] | None = None, *, stream: Any = None) -> BorrowedArrays:
        """Iterate over the frames as arrays. This is the fastest way to receive frames.

        poolbridge makes one array for each block or chunk of an arena, and uses it for later frames there with the same
        description. Each array is valid until the program asks for the next array. Then poolbridge releases the
        array's frame, and the producer may write the memory again. If the program needs the data for a longer time,
        copy the data, or iterate over the subscription itself, which returns `Frame` objects.

        Parameters
        ----------
        wrap
            A function that makes an array from a lease, such as ``cupy.from_dlpack``; None: `numpy.asarray`, for memory
            of the CPU. PyTorch and JAX may copy memory of kind ``pinned`` on streams that they do not name: without
            `stream`, each frame then has an array of its own, and goes back when the GPU has done all work so far. For
            a frame of several arrays, the function is called for each, with a `LeaseView`, and the iterator returns a
            dict.
        stream
            The stream on which the program uses the arrays, as in `BaseLease.used_on`; required for memory of a GPU.
            Before poolbridge returns an array, it makes the stream wait until the frame is complete. When the program
            asks for the next array, poolbridge notes the work that is queued on the stream. The producer writes the
            memory again only after this work is done. In a broadcast that drops no frames, if frames come less than
            1 ms apart, poolbridge releases several frames together: a frame may stay unreleased until a later frame is
            released. At most an eighth of the channel's capacity, and at most 16 frames, stay unreleased in this way.

        Returns
        -------
        BorrowedArrays
            An iterator. Its attributes ``seq``, ``time``, ``time_ns``, ``meta`` and ``dropped`` describe the frame
            whose array the iterator returned last. The iterator ends in the same cases as iteration over the
            subscription, and raises the same errors.

        Raises
        ------
        InvalidArgumentError
            The subscription has ``ack="manual"``, or `wrap` is not a function. The iterator raises this error if the
            memory is memory of a GPU and the program passed no `stream`.
        """
        self._check_auto()
        self._pass()
        wrap = _operations.check_wrap(wrap)
        return BorrowedArrays(self._session, self._run, self._join, self._name, wrap=wrap, stream=stream)

    def close(self) -> None:
        """End the subscription. Frames that the program has taken stay usable. Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<poolbridge.Subscription to {self.channel.name!r}, {'closed' if self.closed else 'open'}>"


class AsyncSubscription(BaseSubscription):
    """An asynchronous iterator over the frames of a channel, for one task; see `Subscription`.

    `AsyncClient.subscribe` makes a subscription. The subscription is an asynchronous context manager. The subscription
    joins the channel when the program enters the ``async with`` block or asks for the first frame.

    Attributes
    ----------
    channel
        The channel; None before the subscription has joined the channel.
    """

    _frame_type: ClassVar = AsyncFrame

    _run: AsyncRun
    channel: AsyncChannel | None

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
        seconds = _operations.check_timeout(timeout)
        frame: AsyncFrame | None = await self._run(self._receive(seconds))
        if self._consumer is not None:
            self._consumer.native.offered = None
        return frame

    def arrays(self, wrap: Callable[[Any], Any] | None = None, *, stream: Any = None) -> AsyncBorrowedArrays:
        """Iterate over the frames as arrays; see `Subscription.arrays`."""
        self._check_auto()
        self._pass()
        wrap = _operations.check_wrap(wrap)
        return AsyncBorrowedArrays(self._session, self._run, self._join, self._name, wrap=wrap, stream=stream)

    async def close(self) -> None:
        """End the subscription. Frames that the program has taken stay usable. Idempotent."""
        self._close()

    async def __aenter__(self) -> Self:
        await self._run(self._join())
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<poolbridge.AsyncSubscription to {self._name!r}, {'closed' if self.closed else 'open'}>"


def join(subscription: BaseSubscription) -> Flow[Consumer]:
    """Return the flow in which a subscription joins its channel, for modules of this package only."""
    return subscription._join()  # noqa: SLF001 - of one family


def _none() -> None:
    return None
