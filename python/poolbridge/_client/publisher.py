"""Publishes arrays as frames. A publisher makes one array for each block of memory, and uses the array many times."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import numpy as np

from poolbridge._client.channel_operations import check_meta
from poolbridge._client.lease import AsyncLease, Lease
from poolbridge._client.operations import allocate, await_memory, check_timeout, check_wrap, new_or_back, ready, spare
from poolbridge._order import order as _order
from poolbridge._order.streams import stream_key
from poolbridge._session.flow import Do, Flow
from poolbridge._session.grants import know_timeline
from poolbridge._session.producer import Sending, deliver, pack_meta, producer_of
from poolbridge._session.spares import Shelf, Spare
from poolbridge._sys import process as _process
from poolbridge._sys.finaliser import while_running
from poolbridge._sys.uncopied import Uncopied
from poolbridge.errors import (
    ClosedError,
    DeviceMemoryError,
    ForkError,
    InvalidArgumentError,
    LeaseReleasedError,
    PoolLimitError,
)

if TYPE_CHECKING:
    from poolbridge._memory.tensor import Description
    from poolbridge._session.flow import AsyncRun, Run
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.session import Session
    from poolbridge._wire.messages import Channel as ChannelInfo


_T = TypeVar("_T")

# A publisher of small frames (at most _SMALL bytes) has up to _MORE extra buffers. With extra buffers, the publisher
# looks for buffers that readers gave back only once in several frames. This takes less time than a look for each frame.
_MORE: Final = 4
# The number of extra buffers if streams write the arrays. This number is larger than _MORE, because then the readers'
# streams have more often finished with a buffer before the publisher uses the buffer again.
_MORE_ON_STREAMS: Final = 16
_SMALL: Final = 256 << 10
_NUMBERS: Final = (float, int)
# A fence has a word and a value. The word 0 and the value 0 mean: there is no fence, because the content is complete.
_COMPLETE: Final = 0, 0


class BasePublisher(Uncopied, ABC):
    """The code that `Publisher` and `AsyncPublisher` share.

    The array on loan is the array that `loan` returned last and that the program has not published yet.
    """

    def __init__(
        self,
        session: Session,
        run: Any,
        channel: ChannelInfo,
        description: Description,
        wrap: Callable[[Any], Any] | None,
    ) -> None:
        self._session = session
        self._run = run
        self._channel = channel
        self._description = description
        self._wrap = check_wrap(wrap)
        self._shelf = Shelf(channel.pl, most=channel.cp + 2)
        self._described = 0, b""
        self._busy = False  # whether a call of this publisher waits
        self._written = False  # whether streams write the arrays

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of every array: the number of elements along each axis."""
        return self._description.shape

    @property
    def dtype_name(self) -> str:
        """Name of the element type, such as ``"float32"``."""
        return self._description.element.name

    def _loaned(self, timeout: float | None) -> Any:
        """Return the array on loan. If there is none, return the array of a lease that came back from the channel.

        None: the caller has to call `_allocate`.
        """
        self._begin(timeout)
        shelf = self._shelf
        loan = tuple(shelf.loan)  # copied in one step: another thread may end the loan
        if loan:
            return loan[0].array
        if self._session.collect_for(shelf) <= 1 + shelf.extra and shelf.wanting:
            return None
        return self._take()

    def _take(self) -> Any:
        """Lend the array of a lease that came back from the channel, and return the array; None: no lease came back."""
        shelf = self._shelf
        try:
            spare = shelf.free.pop(0)
        except IndexError:
            return None
        shelf.used = time.monotonic()
        shelf.loan.append(spare)
        if shelf.closed:
            self._session.drop_shelf(shelf)  # another thread closed the publisher at this moment
            self._check_open()
        return spare.array

    def _begin(self, timeout: float | None) -> None:
        """Check the time limit. Check that the publisher is open and that no other call of the publisher waits."""
        check_timeout(timeout)
        if self._busy or self._shelf.closed or _process.pid != self._session.pid:
            self._check_open()
            raise InvalidArgumentError("another call of this publisher waits: make a publisher for each thread or task")

    def _check_open(self) -> None:
        self._session.check_usable()
        if self._shelf.closed:
            raise ClosedError(f"this publisher of channel {self._channel.nm!r} was closed")

    def _alone(self, flow: Flow[_T]) -> Flow[_T]:
        """Run `flow`. Until `flow` ends, other calls of this publisher raise `InvalidArgumentError`."""
        self._busy = self._shelf.busy = True
        try:
            return (yield from flow)
        finally:
            self._busy = self._shelf.busy = False

    # Order on streams

    def _on_loan(self) -> Spare:
        """Return the lease of the array on loan. Raise an error if no array is on loan or the publisher was closed."""
        loan = tuple(self._shelf.loan)  # copied in one step: another thread may end the loan
        if self._shelf.closed or _process.pid != self._session.pid:
            self._check_open()
        if not loan:
            raise self._no_loan()
        spare: Spare = loan[0]
        return spare

    def _no_loan(self) -> LeaseReleasedError:
        self._session.check_usable()
        return LeaseReleasedError("there is no array to publish: call loan() first, once for each frame")

    def _follows(self, stream: Any) -> bool:
        """Make `stream` wait until it may write the array on loan. False: the caller has to call `_follow`."""
        spare, shelf = self._on_loan(), self._shelf
        follower = shelf.follower
        if follower is None or not (stream is shelf.stream or (type(stream) is int and stream == shelf.stream)):
            return False
        if spare.follower is follower:
            return bool(follower.anywhere or follower.key.reachable)
        if spare.written or not follower.before(spare.all_fences(), write=True):
            return False
        spare.follower = follower
        return True

    def _follow(self, stream: Any) -> Flow[None]:
        """Do what `_follows` cannot do at once: make `stream` wait until it may write the array on loan."""
        session, spare = self._session, self._on_loan()
        lender = spare.lender
        if lender is None:
            raise self._no_loan()  # another thread closed the publisher at this moment
        pool = lender.memory.pool
        if stream is None:
            raise InvalidArgumentError(
                f"arrays of memory of {pool.device_name} need stream=, the stream that writes them"
            )
        if stream_key(pool.device, stream) is None:
            raise InvalidArgumentError("stream -1 asks for no order: name the stream that writes the array")
        if not self._shelf.on_streams:
            raise InvalidArgumentError(
                "this publisher's arrays are written by the CPU, as its first loan() named no stream: "
                "make another publisher for arrays that streams write"
            )
        spare.order()
        for timeline in session.timelines.unknown(session.core.epoch, spare.fences):
            yield from know_timeline(session, timeline)
        _order.name_stream(lender, stream)
        follower = _order.follower(lender, stream)
        if follower is not None:
            self._shelf.stream, self._shelf.follower = stream, follower
            spare.follower, lender.streams = follower, None

    def _fence_at_once(self, stream: Any) -> tuple[int, int] | None:
        """Make the fence that is reached when the array on loan is complete, and return the fence's word and value.

        None: the caller has to call `_fence`.
        """
        spare = self._on_loan()
        follower = spare.follower
        if follower is None or (stream is not None and stream is not self._shelf.stream and not self._follows(stream)):
            return None
        fence = follower.write()
        if fence is None:
            return None
        spare.fences, spare.after = (fence,), b""
        return fence.wd, fence.v

    def _fence(self, stream: Any) -> Flow[tuple[int, int]]:
        """Make the fence that is reached when the array on loan is complete, and return the fence's word and value.

        If the array is complete already, make no fence and return 0 and 0.
        """
        spare = self._on_loan()
        if stream is not None or not spare.written:
            yield from self._follow(stream)
        spare.order()
        lender = spare.lender
        if lender is None:
            raise self._no_loan()  # another thread closed the publisher at this moment
        fence = yield from ready(lender, None)
        lender.fences = ()
        spare.fences, spare.after = (() if fence is None else (fence,)), b""
        return (0, 0) if fence is None else (fence.wd, fence.v)

    def _send(self, texts: bytes, timeout: float | None, stream: Any) -> Any:
        """If it is possible without a wait, publish the array on loan and return the frame's number.

        Otherwise, for example if the channel is full, the array stays on loan. The method then returns the word and the
        value of the array's fence, or None if the caller has to call `_fence`.
        """
        shelf, valid = self._shelf, timeout is None or _is_time(timeout)
        if not self._written and stream is None:
            return (shelf.send(texts) if valid else None) or _COMPLETE
        sent = shelf.send_after(texts, stream) if valid else None
        if sent is not None:
            return sent
        mark = self._fence_at_once(stream)
        return (shelf.send(texts, *mark) if valid and mark is not None else None) or mark

    # Leases

    def _allocate(self, timeout: float | None, stream: Any) -> Flow[Any]:
        """Lend the program an array in a new buffer, or an array that came back from the channel; return the array."""
        session, channel, shelf, timeout = self._session, self._channel, self._shelf, check_timeout(timeout)
        producer = yield from producer_of(session, channel)
        lease = partial(allocate, session, self._description, channel.pl, at_once=True)
        state = None
        if shelf.free:
            try:
                state = yield from lease(timeout=0.0)
                shelf.extra += 1
            except (PoolLimitError, DeviceMemoryError):
                shelf.wanting = False  # there is no room for extra buffers: do without them
                if (array := self._take()) is not None:
                    return array
        if state is None:
            state = yield from spare(session, self._description, channel.pl, at_once=True)
        if state is None:
            deadline = None if timeout is None else time.monotonic() + timeout
            if timeout != 0:
                state = yield from new_or_back(session, self._description, channel.pl, timeout, shelf)
                if state is None and (array := self._take()) is not None:
                    return array
            if state is None:
                state = yield from await_memory(session, self._description, channel.pl, deadline)
        try:
            on_streams = shelf.on_streams if shelf.producer is not None else self._on_streams(state, stream)
            if not on_streams:
                yield Do(partial(_order.before_cpu, state))
            lender, array = self._make(state, on_gpu=on_streams)
        except BaseException:
            state.end()
            raise
        more = _MORE_ON_STREAMS if on_streams else _MORE
        shelf.wanting = shelf.wanting and shelf.extra < more and self._has_room(state, more)
        self._described = producer.describe(self._description)
        shelf.publish_with(producer, self._described)
        shelf.on_streams = self._written = on_streams
        own = Spare(state, state.fences)
        own.shelf, own.lender, own.array = shelf, lender, array
        state.released = True
        session.lent(state, None, apart=False)
        session.lend_to(shelf, own)
        shelf.used = time.monotonic()
        self._check_open()
        return array

    def _on_streams(self, state: LeaseState, stream: Any) -> bool:
        """Whether streams write the arrays; if not, the CPU writes them. The first call of `loan` decides this."""
        pool = state.memory.pool
        key = None if stream is None else stream_key(pool.device, stream)
        if pool.on_cpu:
            return key is not None
        if self._wrap is None:
            raise InvalidArgumentError(
                f"a publisher in memory of {pool.device_name} needs wrap=, which makes an array from a lease, "
                "such as cupy.from_dlpack"
            )
        return True

    def _has_room(self, state: LeaseState, more: int) -> bool:
        """Whether the buffers have at most _SMALL bytes and the pool is large enough for `more` extra buffers."""
        nbytes = state.grant.bs
        return nbytes <= _SMALL and state.pool.mx >= (self._shelf.most + 2 * more) * nbytes

    def _make(self, state: LeaseState, *, on_gpu: bool) -> tuple[LeaseState, Any]:
        """Make the array of a lease, and the lease state that keeps the array's memory mapped.

        If `on_gpu` is true, `wrap` sees memory of kind ``pinned`` as memory of the GPU.
        """
        twin = self._session.lend(state)
        twin.written = {}  # the array stays writeable after a publication, because later frames use the array again
        try:
            lease = self._lease(twin)
            lease._on_gpu = on_gpu  # noqa: SLF001
            array = np.asarray(lease) if self._wrap is None else self._wrap(lease)
        finally:
            twin.released = True
            twin.streams, twin.unordered = None, False  # `loan` names the streams that write the array
        if array is None or not (twin.tokens or twin.unaccounted):
            raise InvalidArgumentError(
                "wrap= returned no array of the lease's memory: expected an array that keeps the lease, not a copy"
            )
        return twin, array

    @abstractmethod
    def _lease(self, twin: LeaseState) -> Any:
        """Make the lease that the publisher passes to `wrap`."""

    def _publish_at_once(self, texts: bytes, mark: tuple[int, int]) -> int:
        """Publish the array on loan if the channel has room, and return the frame's number. Else return 0."""
        spare, result = self._taken(), None
        try:
            result = _publish(self._shelf.producer, spare, self._described, texts, mark, 0.0)
        except (ClosedError, ForkError):
            pass  # the caller then calls `_deliver`, which raises an error with the reason
        finally:
            if type(result) is not int and spare.owned:
                self._session.lend_to(self._shelf, spare)
        if type(result) is not int:
            return 0
        self._session.spares.watch()
        return result

    def _taken(self) -> Spare:
        """End the loan of the array, and return the array's lease.

        Raises
        ------
        LeaseReleasedError
            No array is on loan.
        """
        try:
            spare: Spare = self._shelf.loan.pop(0)
        except IndexError:
            raise self._no_loan() from None
        return spare

    def _deliver(self, texts: bytes, mark: tuple[int, int], timeout: float | None) -> Flow[int]:
        """Wait for a free place in the channel and publish the array on loan. On a timeout, the array stays on loan."""
        if not self._shelf.loan:
            self._session.check_usable()
            raise ClosedError(f"channel {self._channel.nm!r} was closed")
        spare = self._taken()
        sending = _LoanSending(self._shelf.producer, spare, self._described, texts, mark)
        try:
            number: int = yield from deliver(sending, check_timeout(timeout))
        except BaseException:
            if spare.owned:
                self._session.lend_to(self._shelf, spare)
            raise
        return number

    def _close(self) -> None:
        if _process.pid == self._session.pid:
            self._shelf.closed = True
            self._session.drop_shelf(self._shelf)

    @while_running
    def __del__(self) -> None:
        if hasattr(self, "_busy") and _process.pid == self._session.pid:
            self._session.drop_shelf(self._shelf)

    def __repr__(self) -> str:
        return (
            f"<poolbridge.{type(self).__name__} of {self.dtype_name}{list(self.shape)} "
            f"in channel {self._channel.nm!r}{', closed' if self._shelf.closed else ''}>"
        )


def _is_time(timeout: float) -> bool:
    """Whether `timeout` is certainly a valid time limit. If False, `_begin` checks `timeout` and may raise an error."""
    return type(timeout) in _NUMBERS and timeout >= 0


def _texts(meta: Mapping[str, str] | None) -> bytes:
    return b"" if meta is None else pack_meta(check_meta(meta))


def _publish(  # noqa: PLR0917 - as the native method
    producer: Any,
    spare: Spare,
    described: tuple[int, bytes],
    texts: bytes,
    mark: tuple[int, int],
    seconds: float | None,
) -> Any:
    """Publish the array of a publisher's lease; return the value that `poolbridge._native.Producer.publish` returns."""
    grant, lender, follower = spare.grant, spare.lender, spare.follower
    streams = None if lender is None else lender.streams
    result: Any = None
    spare.follower = None  # before the publication, for the same reason as `loans` below
    if lender is not None:
        lender.streams = None
    spare.owned = False
    producer.loans[grant.bl] = spare  # before publishing: another thread may see the block come back at once
    try:
        result = producer.native.publish(grant.bl, grant.bf, grant.n, *described, texts, *mark, None, seconds)
    finally:
        # An error does not always mean that the frame is not in the channel: a signal handler may have raised the error
        # after the frame had entered the channel.
        if type(result) is not int and not (result is None and producer.has_in_flight(grant.bl)):
            spare.owned = producer.loans.pop(grant.bl, None) is spare
            if spare.owned and lender is not None:
                spare.follower, lender.streams = follower, streams
    return result


class _LoanSending(Sending):
    """The publication of an array on loan. The publication may have to wait for a free place in the channel."""

    def __init__(
        self, producer: Any, spare: Spare, described: tuple[int, bytes], texts: bytes, mark: tuple[int, int]
    ) -> None:
        super().__init__(producer)
        self._mark = mark
        self._spare = spare
        self._described = described
        self._texts = texts

    def attempt(self, seconds: float | None = 0.0) -> Any:
        """See `Sending.attempt`."""
        if not self._spare.owned:
            raise ClosedError(f"this client has left channel {self.producer.channel.nm!r}")
        result = _publish(self.producer, self._spare, self._described, self._texts, self._mark, seconds)
        if isinstance(result, int):
            self.producer.session.spares.watch()
        return result


class Publisher(BasePublisher):
    """Publishes frames of one shape from arrays that are made once and used again. `Channel.publisher` returns it.

    `loan` returns an array to write, and `publish` publishes the array as the channel's next frame. Do not use the
    array after `publish`: the consumers read the array's memory, and a later `loan` returns the same array. One thread
    at a time may use a publisher. A publisher is a context manager: the end of the ``with`` block closes the publisher.
    If an array is on loan when the publisher is closed, the array stays valid as long as the program keeps it.
    """

    _run: Run

    def _lease(self, twin: LeaseState) -> Lease:
        return Lease(self._run, twin)

    def loan(self, timeout: float | None = None, *, stream: Any = None) -> Any:
        """Return an array of a buffer that no consumer uses. Until `publish`, each call returns the same array.

        Parameters
        ----------
        timeout
            How many seconds to wait for free memory in the pool; 0: do not wait; None, the default: no limit.
        stream
            The stream that writes the array, as in `BaseLease.used_on`; required for memory of a GPU. The stream waits
            until the readers' streams are done with the memory. The calling thread waits for the readers' streams only
            if `stream` cannot wait for these streams by itself. Call `loan` again to name another stream that writes
            the same array.

        Returns
        -------
        array
            The array that ``wrap`` made, by default a `numpy.ndarray`, of the publisher's shape and dtype. The array's
            content is undefined, and is often the content of an older frame.

        Raises
        ------
        PoolLimitError, DeviceMemoryError
            The pool or the machine has not enough free memory.
        InvalidArgumentError
            The pool has memory of a GPU, and the program passed no ``wrap`` or no `stream`. Or ``wrap`` did not return
            an array in the lease's memory. Or another call of this publisher waits.
        ValueError
            `stream` is no stream, or the memory is memory of the CPU.
        TypeError
            NumPy lacks the element type (``bfloat16``): pass a ``wrap`` to `Channel.publisher`.
        ClosedError
            The publisher was closed, or the channel was closed before the first loan.
        """
        array = self._shelf.take() if timeout is None or _is_time(timeout) else None
        if array is None:
            array = self._loaned(timeout)
            if array is None:
                array = self._run(self._alone(self._allocate(timeout, stream)))
        if (self._written or stream is not None) and not (self._shelf.follow(stream) or self._follows(stream)):
            self._run(self._alone(self._follow(stream)))
        return array

    def publish(
        self, meta: Mapping[str, str] | None = None, *, timeout: float | None = None, stream: Any = None
    ) -> int:
        """Publish the array that `loan` returned last as the channel's next frame. Do not use the array after the call.

        If the call raises an exception that is not listed below, such as `KeyboardInterrupt`, the frame may be
        published or not. Call `loan` again after such an exception.

        Parameters
        ----------
        meta
            Texts for the consumers, by key; see `Channel.publish`.
        timeout
            Seconds to wait for a free place in the channel; 0: do not wait; None, the default: no limit.
        stream
            Another stream that writes the array, besides the streams that the program passed to `loan`. Consumers wait
            for the work that is queued on all these streams at the time of the call.

        Returns
        -------
        int
            The frame's number in the channel, counted from 1.

        Raises
        ------
        LeaseReleasedError
            No array is on loan: call `loan` once for each frame.
        WaitTimeoutError
            The channel was full until `timeout` had passed. The array stays on loan.
        PoolLimitError
            The channel is full and has the setting ``full="fail"``. The array stays on loan.
        ClosedError
            The channel was closed, or the publisher was closed. If only the channel was closed, the array stays on loan
            until the publisher is closed.
        InvalidArgumentError
            `meta` is too large, `timeout` is no number of seconds, or another call of this publisher waits.
        """
        texts = _texts(meta)
        sent = self._send(texts, timeout, stream)
        if type(sent) is int:
            return sent
        self._begin(timeout)
        mark = self._run(self._alone(self._fence(stream))) if sent is None else sent
        return self._publish_at_once(texts, mark) or self._run(self._alone(self._deliver(texts, mark, timeout)))

    def close(self) -> None:
        """Close the publisher and release its buffers that are not in the channel. Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncPublisher(BasePublisher):
    """Publishes frames of one shape from arrays that are made once and used again; see `Publisher`.

    `AsyncChannel.publisher` makes a publisher. One task at a time may use the publisher. A publisher is an asynchronous
    context manager.
    """

    _run: AsyncRun

    def _lease(self, twin: LeaseState) -> AsyncLease:
        return AsyncLease(self._run, twin)

    async def loan(self, timeout: float | None = None, *, stream: Any = None) -> Any:
        """Return an array of a buffer that no consumer uses; see `Publisher.loan`."""
        array = self._shelf.take() if timeout is None or _is_time(timeout) else None
        if array is None:
            array = self._loaned(timeout)
            if array is None:
                array = await self._run(self._alone(self._allocate(timeout, stream)))
        if (self._written or stream is not None) and not (self._shelf.follow(stream) or self._follows(stream)):
            await self._run(self._alone(self._follow(stream)))
        return array

    async def publish(
        self, meta: Mapping[str, str] | None = None, *, timeout: float | None = None, stream: Any = None
    ) -> int:
        """Publish the array that `loan` returned last as the channel's next frame; see `Publisher.publish`."""
        texts = _texts(meta)
        sent = self._send(texts, timeout, stream)
        if type(sent) is int:
            return sent
        self._begin(timeout)
        mark = await self._run(self._alone(self._fence(stream))) if sent is None else sent
        return self._publish_at_once(texts, mark) or await self._run(self._alone(self._deliver(texts, mark, timeout)))

    async def close(self) -> None:
        """Close the publisher and release its buffers that are not in the channel. Idempotent."""
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
