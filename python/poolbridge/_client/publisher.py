"""Publishes arrays as frames. A publisher makes an array for each chunk of its arenas, and uses it many times."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Never, Self, TypeVar, cast

import numpy as np

from poolbridge._array.arrays import state_of
from poolbridge._client.lease import AsyncLease, Lease
from poolbridge._client.operations import allocate, check_timeout, check_wrap, ready
from poolbridge._client.tracing import Operation, meta_of, published, traced
from poolbridge._memory import tensor as _tensor
from poolbridge._order import fences as _fences
from poolbridge._order.streams import stream_key
from poolbridge._session.calls import Call
from poolbridge._session.flow import Do, Flow, Sleep
from poolbridge._session.grants import know_timeline, map_state, mapped_state
from poolbridge._session.producer import Sending, deliver, producer_of
from poolbridge._session.returns import Arena, Chunks
from poolbridge._sys import process as _process
from poolbridge._sys.finaliser import while_running
from poolbridge._sys.native import NATIVE
from poolbridge._sys.uncopied import Uncopied
from poolbridge._wire.messages import Alloc, Fence, GrantReply
from poolbridge._wire.meta import pack_meta
from poolbridge.errors import (
    ClosedError,
    DeviceMemoryError,
    InvalidArgumentError,
    LeaseReleasedError,
    PoolLimitError,
)

if TYPE_CHECKING:
    from poolbridge._memory.tensor import Description
    from poolbridge._session.flow import AsyncRun, Run
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.producer import Producer
    from poolbridge._session.session import Session
    from poolbridge._wire.messages import ChannelIdentity
    from poolbridge._wire.meta import MetaValue


_T = TypeVar("_T")

# A chunk begins at a multiple of this number of bytes in its arena.
_ALIGNMENT: Final = 512
# The first arena has a chunk for each frame that the channel keeps, for the array on loan, and for a frame that a
# consumer releases late. A publisher of small frames (at most `_SMALL` bytes) has `_MORE` chunks besides: then it looks
# for chunks that came back only once in several frames. If streams write the arrays, it has `_MORE_ON_STREAMS` chunks
# besides: then the readers' streams are more often done with a chunk before the publisher uses the chunk again.
_LEAST: Final = 2
_MORE: Final = 4
_MORE_ON_STREAMS: Final = 16
_SMALL: Final = 256 << 10
# Numbers of seconds. For `_PATIENCE` seconds after the service refused another arena, a publisher does not ask again.
# While it waits for the answer, and a GPU still reads chunks that came back, it looks for both every `_LOOK` seconds.
_PATIENCE: Final = 0.2
_LOOK: Final = 5e-3
_NUMBERS: Final = (float, int)
# A fence has a word and a value. The word 0 and the value 0 mean: there is no fence, because the content is complete.
COMPLETE: Final = 0, 0


def _loans(publisher: BasePublisher, *_of: Any, **_options: Any) -> Operation:
    return Operation("allocate", channel=publisher._channel.name, nbytes=publisher._description.nbytes)  # noqa: SLF001


def _publishes(publisher: BasePublisher, *, meta: Mapping[str, MetaValue] | None, **_options: Any) -> Operation:
    return replace(_loans(publisher), name="publish", meta=meta_of(meta))


class LoanedArrays(dict[str, Any]):
    """The arrays of a frame of several arrays, by their names, which the program writes."""

    def __setitem__(self, name: str, value: Any) -> None:
        """Refuse another array; ``loan[name] += 1`` sets the same array again."""
        if self.get(name) is not value:
            self._refuse()

    def _refuse(self, *_: Any, **_arrays: Any) -> Never:
        raise TypeError("the arrays of a loan stay: write into them, as in loan['name'][:] = …")

    update = setdefault = __ior__ = pop = popitem = clear = __delitem__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def wrapped(lease: Any, wrap: Callable[[Any], Any], *, on_gpu: bool) -> tuple[Any, bool]:
    """Let `wrap` make an array of a lease, or a dict of the arrays of a frame of several arrays.

    Returns
    -------
    array
        The array, or the dict.
    kept
        Whether the array, or each of the arrays, is in the lease's memory and keeps the lease.
    """
    lease._on_gpu = on_gpu  # noqa: SLF001
    state = state_of(lease)
    if not state.description.named:
        array = wrap(lease)
        return array, bool(state.tokens or state.unaccounted) and array is not None
    arrays, kept = {}, True
    for name in state.description.named:
        one = lease[name]
        before = len(state.tokens)
        arrays[name] = wrap(one)
        del one
        kept = kept and len(state.tokens) >= before
    return LoanedArrays(arrays), kept


class BasePublisher(Uncopied):
    """The base class of `Publisher`, `AsyncPublisher` and the publisher of copies in `copies`.

    At most one chunk is on loan: from when it was chosen until it is published or put back. The array on loan is its
    array.
    """

    _lease_type: ClassVar[Any]  # of the leases for `wrap`

    def __init__(
        self,
        session: Session,
        run: Any,
        channel: ChannelIdentity,
        description: Description,
        wrap: Callable[[Any], Any] | None,
    ) -> None:
        self._session = session
        self._traced = session.tracer is not None
        self._run = run
        self._channel = channel
        self._description = description
        self._wrap = check_wrap(wrap)
        self._chunks = Chunks(channel.pool)
        self._stride = max(-(-description.nbytes // _ALIGNMENT), 1) * _ALIGNMENT
        self._written = False  # whether streams write the arrays
        self._unknown = False  # whether streams that nobody names may write the arrays
        self._decided = False  # whether a loan has decided `_written`
        self._most = 1  # the greatest number of chunks for which the publisher has asked for an arena
        self._refused = 0.0  # until when the publisher does not ask for another arena

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of every array: the number of elements along each axis."""
        return self._description.shape

    @property
    def dtype_name(self) -> str:
        """Name of the element type, such as ``"float32"``."""
        return self._description.element.name

    def _check_free(self, timeout: float | None) -> None:
        """Check the time limit. Check that the publisher is open and that no other call of the publisher waits."""
        check_timeout(timeout)
        if self._chunks.busy or self._chunks.closed or _process.pid != self._session.pid:
            self._check_open()
            raise InvalidArgumentError("another call of this publisher waits: make a publisher for each thread or task")

    def _check_open(self) -> None:
        self._session.check_usable()
        if self._chunks.closed:
            raise ClosedError(f"this publisher of channel {self._channel.name!r} was closed")

    def _alone(self, flow: Flow[_T]) -> Flow[_T]:
        """Run `flow`. Until `flow` ends, other calls of this publisher raise `InvalidArgumentError`."""
        self._chunks.busy = True
        try:
            return (yield from flow)
        finally:
            self._chunks.busy = False

    # Loans

    @traced(_loans)
    def _loan(self, timeout: float | None, stream: Any) -> Flow[Any]:
        """Do what `loan` cannot do at once."""
        self._check_free(timeout)
        if self._chunks.take() is None:
            yield from self._alone(self._make_loan(timeout, stream))
        if (self._written or stream is not None) and not (self._chunks.follow(stream) or self._follows(stream)):
            yield from self._alone(self._follow(stream))
        return self._array_on_loan()

    def _make_loan(self, timeout: float | None, stream: Any) -> Flow[None]:
        """Do what `Chunks.take` cannot do at once: get an arena, wait for a chunk, or make the array of a chunk."""
        session, chunks, seconds = self._session, self._chunks, check_timeout(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        producer = yield from producer_of(session, self._channel)
        if chunks.producer is not producer:
            self._publish_with(producer)
        while not chunks.put_on_loan():
            self._check_open()
            if chunks.arenas:
                yield from self._await_chunk(producer, deadline)
            else:
                yield from self._begin(producer, deadline, stream)
        loan = chunks.loan
        if loan is None or chunks.closed:
            self._check_open()
        elif loan[3] is None:
            self._make()

    def _array_on_loan(self) -> Any:
        self._keeper()
        return (self._chunks.loan or (None,))[-1]

    def _publish_with(self, producer: Producer) -> None:
        own = self._session.timelines.own
        _, described = producer.describe(self._description)
        self._chunks.publish_with(
            producer.native,
            self._session.timelines,
            0 if own is None else own.id,
            producer.description_ids(),
            described,
            self._description.nbytes,
        )
        self._chunks.producer = producer

    def _make(self) -> None:
        """Make the array of the chunk on loan."""
        chunks, session = self._chunks, self._session
        try:
            loan = chunks.loan
            if loan is None:
                raise ClosedError(f"this publisher of channel {self._channel.name!r} was closed")
            twin = session.keep_mapped(loan[0].state.part(loan[1], self._description.nbytes, self._description))
            if not twin.sent:
                self._check_open()
            loan[0].arrays.add(twin)
            chunks.fit(self._array(twin), twin)
        except BaseException:
            chunks.put_back()
            raise

    def _array(self, twin: LeaseState) -> Any:
        """Make an array of a chunk. If streams write it, `wrap` sees memory of kind ``pinned`` as memory of the GPU."""
        twin.released = False
        twin.written = {}  # the array stays writeable after a publication, because later frames use the array again
        try:
            lease, on_gpu = self._lease_type(self._run, twin), self._chunks.on_streams
            array, kept = wrapped(lease, self._wrap or np.asarray, on_gpu=on_gpu)
        finally:
            twin.released = True
            if twin.unordered and not on_gpu:  # PyTorch's copies between memory of kind `pinned` and a GPU
                self._unknown = True
            twin.streams = None  # `loan` names the streams that write the array
            twin.unordered = twin.unordered and not on_gpu
        if not kept:
            raise InvalidArgumentError(
                "wrap= returned no array of the lease's memory: expected an array that keeps the lease, not a copy"
            )
        return array

    # Arenas

    def _begin(self, producer: Producer, deadline: float | None, stream: Any) -> Flow[None]:
        """Get the first arena: with fewer chunks if the pool has not enough room. Wait only for one of one chunk."""
        more = 0 if self._stride > _SMALL else _MORE if stream is None else _MORE_ON_STREAMS
        size = self._most = self._channel.capacity + _LEAST + more
        while True:
            left = 0.0 if size > 1 else None if deadline is None else max(deadline - time.monotonic(), 0.0)
            try:
                state = yield from allocate(self._session, self._chunks_of(size), self._channel.pool, timeout=left)
                break
            except (PoolLimitError, DeviceMemoryError):
                if size == 1:
                    raise
                size //= 2
        try:
            if not self._decided:
                self._chunks.on_streams = self._written = self._on_streams(state, stream)
                self._decided = True
        except BaseException:
            state.end()
            raise
        self._session.add_arena(self._chunks, Arena(state, producer, size, self._stride))

    def _chunks_of(self, size: int) -> Description:
        return _tensor.describe((size, self._stride), "uint8")

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

    def _await_chunk(self, producer: Producer, deadline: float | None) -> Flow[None]:
        """Wait until a chunk came back, or until the publisher has another arena.

        The service may be stopped, so the flow waits for chunks, too, while it waits for the service's answer.
        """
        session, chunks, began = self._session, self._chunks, time.monotonic()
        # Each size is the first one, doubled or halved. So an arena fills the block of an arena that went back: a
        # smaller arena would use up the whole block.
        while self._most < chunks.counts[0]:
            self._most *= 2
        most = size = self._most
        call: Call | None = None
        try:
            while True:
                self._check_open()
                roused = producer.native.roused
                left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                yield from _collect(producer, left)
                if chunks.put_on_loan() or not chunks.arenas:
                    return
                pending = [Fence(*fence) for fence in chunks.pending]
                if call is not None and call.done:
                    try:
                        reply: Any = call.result()
                        call = None  # the next statement must directly follow, as in `allocate`
                        state = mapped_state(session, reply.grant) or (yield from map_state(session, reply.grant))
                    except (PoolLimitError, DeviceMemoryError):
                        call, size = None, size // 2
                        if not size:
                            size, self._refused = most, time.monotonic() + _PATIENCE
                        continue
                    session.tally.granted(state.grant.nbytes)
                    session.add_arena(chunks, Arena(state, producer, size, self._stride))
                    return
                if call is None and not pending and time.monotonic() >= self._refused and not session.core.owed:
                    request = Alloc(pool=self._channel.pool, tensor=self._chunks_of(size).to_wire(), wait=0)
                    call = session.ask(request, GrantReply, producer.native.rouse)
                    continue
                if left == 0 and (call is None or time.monotonic() >= began + _PATIENCE):
                    raise self._no_chunk()
                pause = min(left or _PATIENCE, _PATIENCE)
                if pending:  # the CPU has to write the chunks, and a GPU still reads them
                    yield from self._await_fences(pending, pause if call is None else min(pause, _LOOK))
                else:
                    yield Sleep(partial(producer.await_back, roused=roused), pause)
        finally:
            if call is not None:
                session.abandon(call)
            session.tally.waited(began)

    def _await_fences(self, fences: list[Fence], seconds: float) -> Flow[None]:
        session = self._session
        for timeline in session.timelines.unknown(session.core.epoch, fences):
            yield from know_timeline(session, timeline)
        for fence in fences:
            page = session.timelines.page(fence.timeline)
            if page is not None and not page.reached(fence.word, fence.value):
                yield Sleep(partial(page.wait, fence.word, fence.value), seconds)
                return

    def _no_chunk(self) -> PoolLimitError:
        channel, pool = self._channel, self._session.pool_info(self._channel.pool)
        return PoolLimitError(
            f"all {self._chunks.counts[0]} chunks of this publisher are in use: channel {channel.name!r} keeps up to "
            f"{channel.capacity} frames, its consumers hold the others, and pool {pool.name if pool else ''!r} has "
            "no room for more chunks: release frames sooner, or make the pool larger"
        )

    # Order on streams

    def _keeper(self) -> LeaseState:
        """Return the state that keeps the array on loan mapped.

        Raises
        ------
        LeaseReleasedError
            No array is on loan.
        """
        loan = self._chunks.loan
        if self._chunks.closed or _process.pid != self._session.pid:
            self._check_open()
        if loan is None or loan[2] is None:
            self._session.check_usable()
            raise LeaseReleasedError("there is no array to publish: call loan() first, once for each frame")
        keeper: LeaseState = loan[2]
        return keeper

    def _order_loan(self) -> LeaseState:
        """Return the state of the array on loan, with the fences for which its writers wait, and with their stream."""
        keeper, chunks = self._keeper(), self._chunks
        keeper.fences = tuple([Fence(*fence) for fence in chunks.fences])
        if chunks.following is not None and keeper.streams is None:
            keeper.streams, keeper.named = {chunks.following.key: keeper.fences}, True
        chunks.following = None
        return keeper

    def _know_timelines(self, keeper: LeaseState) -> Flow[None]:
        """Map the timelines of the fences for which the writers of the array on loan wait."""
        session = self._session
        for timeline in session.timelines.unknown(session.core.epoch, keeper.fences):
            yield from know_timeline(session, timeline)

    def _follows(self, stream: Any) -> bool:
        """Make `stream` wait until it may write the array on loan. False: the caller has to call `_follow`."""
        keeper, chunks = self._keeper(), self._chunks
        follower = chunks.follower
        if follower is None or not (stream is chunks.stream or (type(stream) is int and stream == chunks.stream)):
            return False
        if chunks.following is follower:
            return bool(follower.anywhere or follower.key.reachable)
        if chunks.following is not None or keeper.streams is not None or not follower.before(chunks.fences, write=True):
            return False
        chunks.following = follower
        return True

    def _follow(self, stream: Any) -> Flow[None]:
        """Do what `_follows` cannot do at once: make `stream` wait until it may write the array on loan."""
        chunks, keeper = self._chunks, self._keeper()
        pool = keeper.memory.pool
        if stream is None:
            raise InvalidArgumentError(
                f"arrays of memory of {pool.device_name} need stream=, the stream that writes them"
            )
        if stream_key(pool.device, stream) is None:
            raise InvalidArgumentError("stream -1 asks for no order: name the stream that writes the array")
        if not chunks.on_streams:
            raise InvalidArgumentError(
                "this publisher's arrays are written by the CPU, as its first loan() named no stream: "
                "make another publisher for arrays that streams write"
            )
        yield from self._know_timelines(self._order_loan())
        _fences.name_stream(keeper, stream)
        follower = _fences.follower(keeper, stream)
        if follower is not None:
            chunks.stream, chunks.follower = stream, follower
            chunks.following, keeper.streams = follower, None

    def _fence_at_once(self, stream: Any) -> tuple[int, int] | None:
        """Make the fence that is reached when the array on loan is complete, and return the fence's word and value.

        None: the caller has to call `_fence`.
        """
        chunks = self._chunks
        self._keeper()
        follower = chunks.following
        if follower is None or (stream is not None and stream is not chunks.stream and not self._follows(stream)):
            return None
        fence = follower.write()
        if fence is None:
            return None
        chunks.fences = [(fence.timeline, fence.word, fence.value)]
        return fence.word, fence.value

    def _fence(self, stream: Any) -> Flow[tuple[int, int]]:
        """Make the fence that is reached when the array on loan is complete, and return the fence's word and value.

        If the array is complete already, make no fence and return 0 and 0.
        """
        chunks, keeper = self._chunks, self._keeper()
        if self._unknown and stream is None:
            yield Do(keeper.memory.synchronize)
            self._check_open()
            return COMPLETE
        if stream is not None or (chunks.following is None and keeper.streams is None):
            yield from self._follow(stream)
        self._order_loan()
        return (yield from self._complete(keeper))

    def _complete(self, keeper: LeaseState) -> Flow[tuple[int, int]]:
        """Make the fence of the work of the streams of `keeper` on the array on loan. Return the same as `_fence`.

        When the frame is sent, the caller sets `keeper.streams` to None: the chunk's next loan has streams of its own.
        """
        fence = yield from ready(keeper, None)
        self._check_open()
        self._chunks.fences = [] if fence is None else [(fence.timeline, fence.word, fence.value)]
        keeper.fences = ()
        return COMPLETE if fence is None else (fence.word, fence.value)

    # Publishing

    @traced(_publishes, published)
    def _publish(self, *, meta: Mapping[str, MetaValue] | None, timeout: float | None, stream: Any) -> Flow[int]:
        packed = pack_meta(meta)
        sent = self._send(packed, timeout, stream)
        return sent if type(sent) is int else (yield from self._finish(packed, sent, timeout, stream))

    def _finish(self, packed: bytes, mark: Any, timeout: float | None, stream: Any) -> Flow[int]:
        """Do what `_send` could not do at once; `mark` is its result."""
        self._check_free(timeout)
        if mark is None:
            mark = yield from self._alone(self._fence(stream))
        chunks, keeper = self._chunks, self._keeper()
        streams, keeper.streams = keeper.streams, None
        try:
            number: int = chunks.send(packed, *mark) or (yield from self._alone(self._deliver(packed, mark, timeout)))
        except BaseException:
            if chunks.loan is not None and chunks.loan[2] is keeper:  # the same streams may write the array again
                keeper.streams = streams
            raise
        return number

    def _send(self, packed: bytes, timeout: float | None, stream: Any) -> Any:
        """If it is possible without a wait, publish the array on loan and return the frame's number.

        Otherwise, for example if the channel is full, the array stays on loan. The method then returns the word and the
        value of the array's fence, or None if the caller has to call `_fence`.
        """
        chunks, valid = self._chunks, timeout is None or _is_time(timeout)
        if not self._written and stream is None:
            if self._unknown:
                return None
            return (chunks.send(packed) if valid else None) or COMPLETE
        sent = chunks.send_after(packed, stream) if valid else None
        if sent is not None:
            return sent
        mark = self._fence_at_once(stream)
        return (chunks.send(packed, *mark) if valid and mark is not None else None) or mark

    def _deliver(self, packed: bytes, mark: tuple[int, int], timeout: float | None) -> Flow[int]:
        """Wait for a free place in the channel and publish the array on loan. On a timeout, the array stays on loan."""
        self._keeper()
        sending = _LoanSending(self._chunks, packed, mark)
        return (yield from deliver(sending, check_timeout(timeout)))

    def _close(self) -> None:
        if _process.pid == self._session.pid:
            self._chunks.closed = True
            self._session.close_chunks(self._chunks)

    @while_running
    def __del__(self) -> None:
        if hasattr(self, "_refused"):
            self._close()

    def __repr__(self) -> str:
        return (
            f"<poolbridge.{type(self).__name__} of {self._description.text} "
            f"in channel {self._channel.name!r}{', closed' if self._chunks.closed else ''}>"
        )


def _collect(producer: Producer, left: float | None) -> Flow[None]:
    """Take back what came back to a producer, without waiting for it."""
    came = producer.await_back(0.0)
    if came is NATIVE.Condition.UNKNOWN_MEMBER:
        yield from producer.meets(left)
    elif came is NATIVE.Condition.EVICTED:
        yield from producer.evicted()


def _is_time(timeout: float) -> bool:
    """Whether `timeout` is certainly a valid time limit. If False, `_check_free` checks it and may raise an error."""
    return type(timeout) in _NUMBERS and timeout >= 0


class _LoanSending(Sending):
    """The publication of an array on loan. The publication may have to wait for a free place in the channel."""

    def __init__(self, chunks: Chunks, packed: bytes, mark: tuple[int, int]) -> None:
        super().__init__(cast("Producer", chunks.producer))  # an array is on loan, so there is a producer
        self._chunks = chunks
        self._meta = packed
        self._mark = mark

    def attempt(self, seconds: float | None = 0.0) -> Any:
        """See `Sending.attempt`."""
        return self._chunks.publish(self._meta, *self._mark, seconds)


class Publisher(BasePublisher):
    """Publishes frames of one shape from arrays that are made once and used again. `Channel.publisher` returns it.

    `loan` returns an array to write, and `publish` publishes the array as the channel's next frame. Do not use the
    array after `publish`: the consumers read the array's memory, and a later `loan` returns the same array. One thread
    at a time may use a publisher. A publisher is a context manager: the end of the ``with`` block closes the publisher.
    If an array is on loan when the publisher is closed, the array stays valid as long as the program keeps it.
    """

    _run: Run
    _lease_type: ClassVar = Lease

    def loan(self, timeout: float | None = None, *, stream: Any = None) -> Any:
        """Return an array of a chunk that no consumer uses. Until `publish`, each call returns the same array.

        Parameters
        ----------
        timeout
            How many seconds to wait until a chunk comes back or the pool has room for more; 0: do not wait; None, the
            default: no limit.
        stream
            The stream that writes the array, as in `BaseLease.used_on`; required for memory of a GPU. The stream waits
            until the readers' streams are done with the memory. The calling thread waits for the readers' streams only
            if `stream` cannot wait for these streams by itself. Call `loan` again to name another stream that writes
            the same array.

        Returns
        -------
        array
            The array that ``wrap`` made, by default a `numpy.ndarray`, of the publisher's shape and dtype. Its content
            is undefined, and is often the content of an older frame. For frames of several arrays, a dict of arrays:
            write into them, as in ``loan["image"][:] = …``.

        Raises
        ------
        PoolLimitError, DeviceMemoryError
            All chunks are in use, and the pool or the machine has no memory for more.
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
        array = None if self._traced or not (timeout is None or _is_time(timeout)) else self._chunks.take()
        if array is not None and (self._written or stream is not None) and not self._chunks.follow(stream):
            array = None  # an error's traceback may keep this stack frame
            if self._follows(stream):
                return self._array_on_loan()
        return self._run(self._loan(timeout, stream)) if array is None else array

    def publish(
        self, meta: Mapping[str, MetaValue] | None = None, *, timeout: float | None = None, stream: Any = None
    ) -> int:
        """Publish the array that `loan` returned last as the channel's next frame. Do not use the array after the call.

        If the call raises an exception that is not listed below, such as `KeyboardInterrupt`, the frame may be
        published or not. Call `loan` again after such an exception.

        Parameters
        ----------
        meta
            A map for the consumers; see `Channel.publish`.
        timeout
            Seconds to wait for a free place in the channel; 0: do not wait; None, the default: no limit.
        stream
            Another stream that writes the array, besides the streams that the program passed to `loan`. Consumers wait
            for the work that is queued on all these streams at the time of the call. Before it wrote, this stream must
            have waited for one of the others: earlier readers may still use the memory. Better name it by `loan`.

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
        StreamCaptureError
            The program captures a CUDA graph, and the work on the array is captured, or the call has to wait for the
            GPU: it does so if `wrap` gives memory of kind ``pinned`` to PyTorch or JAX. The array stays on loan.
        """
        if self._traced:
            return self._run(self._publish(meta=meta, timeout=timeout, stream=stream))
        packed = pack_meta(meta)
        sent = self._send(packed, timeout, stream)
        return sent if type(sent) is int else self._run(self._finish(packed, sent, timeout, stream))

    def close(self) -> None:
        """Close the publisher. Idempotent.

        Its memory goes back when its last frame has come back and the program has none of its arrays any more.
        """
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class AsyncPublisher(BasePublisher):
    """Publishes frames of one shape from arrays that are made once and used again; see `Publisher`.

    `AsyncChannel.publisher` makes a publisher. One task at a time may use the publisher. A publisher is an asynchronous
    context manager.
    """

    _run: AsyncRun
    _lease_type: ClassVar = AsyncLease

    async def loan(self, timeout: float | None = None, *, stream: Any = None) -> Any:
        """Return an array of a buffer that no consumer uses; see `Publisher.loan`."""
        array = None if self._traced or not (timeout is None or _is_time(timeout)) else self._chunks.take()
        if array is not None and (self._written or stream is not None) and not self._chunks.follow(stream):
            array = None  # an error's traceback may keep this stack frame
            if self._follows(stream):
                return self._array_on_loan()
        return await self._run(self._loan(timeout, stream)) if array is None else array

    async def publish(
        self, meta: Mapping[str, MetaValue] | None = None, *, timeout: float | None = None, stream: Any = None
    ) -> int:
        """Publish the array that `loan` returned last as the channel's next frame; see `Publisher.publish`."""
        if self._traced:
            return await self._run(self._publish(meta=meta, timeout=timeout, stream=stream))
        packed = pack_meta(meta)
        sent = self._send(packed, timeout, stream)
        return sent if type(sent) is int else await self._run(self._finish(packed, sent, timeout, stream))

    async def close(self) -> None:
        """Close the publisher. Idempotent.

        Its memory goes back when its last frame has come back and the program has none of its arrays any more.
        """
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()
