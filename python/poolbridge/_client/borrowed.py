"""Iterates over a channel's frames as arrays. An array is made once and used again for later frames in its memory.

If the array of a frame exists already, poolbridge makes only one Python object for the frame: the native frame.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, cast

import numpy as np

from poolbridge._client.lease import AsyncLease, Lease
from poolbridge._client.publisher import LoanedArrays, wrapped
from poolbridge._client.tracing import Operation, bytes_of, traced
from poolbridge._order import fences as _fences
from poolbridge._order.captures import CAPTURES
from poolbridge._session.consumer import Kept, claim, fences_of, map_claimed, receive
from poolbridge._sys import process as _process
from poolbridge._sys.finaliser import while_running
from poolbridge._sys.uncopied import Uncopied
from poolbridge._wire.meta import unpack_meta
from poolbridge.errors import (
    InvalidArgumentError,
)

if TYPE_CHECKING:
    from poolbridge import _native
    from poolbridge._session.consumer import Consumer
    from poolbridge._session.flow import AsyncRun, Flow, Run
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.session import Session
    from poolbridge._wire.messages import Fence
    from poolbridge._wire.meta import MetaValue

# For this number of seconds after the stream has written a fence, the iterator only collects the frames that the
# program has used, at most `most_unfenced` of them. Then the stream writes one fence for all collected frames.
_TOGETHER_SECONDS: Final = 0.001


def _place(state: LeaseState) -> tuple[Any, ...]:
    """Return what frames with the same memory and description have in common; see `SessionBlock.arrays`."""
    tensor, arrays = state.grant.tensor, tuple(state.description.named.items())
    return state.memory.base, tensor.dtype, tensor.shape, tensor.strides, tensor.offset, arrays


def _receives(arrays: BaseBorrowedArrays) -> Operation:
    return Operation("receive", channel=arrays._name)  # noqa: SLF001


def _received(operation: Operation, result: Any, owner: BaseBorrowedArrays) -> None:
    if owner._frame is not None:  # noqa: SLF001
        operation.nbytes = bytes_of(result)
        operation.seq, operation.dropped, operation.meta = owner.seq, owner.dropped, owner.meta


class BaseBorrowedArrays(Uncopied):
    """The code that `BorrowedArrays` and `AsyncBorrowedArrays` share.

    The attributes below raise `InvalidArgumentError` before the program has the first array, and after `release`.

    Attributes
    ----------
    seq, time, time_ns, meta, dropped, delivery
        The attributes of the frame whose array the iterator returned last; see `Frame`.
    """

    _lease_type: ClassVar[Any]  # of the leases for `wrap`

    def __init__(
        self,
        session: Session,
        run: Any,
        join: Callable[[], Flow[Consumer]],
        name: str,
        *,
        wrap: Callable[[Any], Any] | None,
        stream: Any,
    ) -> None:
        self._session = session
        self._traced = session.tracer is not None
        self._run = run
        self._join = join  # a method of the subscription, so the subscription stays alive
        self._name = name  # of the channel
        self._wrap = np.asarray if wrap is None else wrap
        self._stream = stream
        self._key = self._wrap, stream is not None  # by which arrays are kept: see `_make`
        self._consumer: Consumer | None = None
        self._follower: _fences.Follower | None = None
        # The frame and the lease state of the array that the iterator returned last. If that array existed already when
        # the iterator took the frame, the frame has no lease state: `_lease_state` is None.
        self._frame: _native.Frame | None = None
        self._lease_state: LeaseState | None = None
        # `_unfenced`: earlier frames; the stream has not written their fence yet. The frames keep their arrays, and so
        # their blocks stay mapped. `_together_until`: the monotonic time until which the iterator adds to `_unfenced`.
        self._unfenced: list[_native.Frame] = []
        self._together_until = 0.0

    # Taking

    @traced(_receives, _received)
    def _next(self) -> Flow[Any]:
        """Return the array of the next frame. If no frame will come any more, `_frame` is None at the end."""
        self._consumer = yield from self._join()
        frame = self._offered(self._consumer)
        array = None if frame is None else self._existing(frame)
        return array if array is not None else (yield from self._finish(frame))

    def _offered(self, consumer: Consumer) -> _native.Frame | None:
        """Release the last array's frame. Return the next frame, if it can be taken without a wait."""
        self._let_go()
        consumer.asks()
        return consumer.at_once()

    def _finish(self, frame: _native.Frame | None) -> Flow[Any]:
        """Wait for a frame if `frame` is None, and do for its array what cannot be done at once."""
        consumer = cast("Consumer", self._consumer)
        if frame is None:
            frame = yield from receive(consumer, None)
            array = None if frame is None else self._existing(frame)
            if frame is None or array is not None:
                return array
        self._fence()
        return self._claimed(frame, claim(consumer, frame) or (yield from map_claimed(consumer, frame)))

    def _swap(self) -> _native.Frame | None:
        """Release the last array's frame and take the next frame in one step. If this is not possible, return None."""
        frame, consumer = self._frame, self._consumer
        if frame is None or consumer is None or self._lease_state is not None:
            return None
        if consumer.credit.unsettled or consumer.requeued or consumer.early or consumer.receiving or consumer.left:
            return None
        if self._follower is None:
            taken = consumer.swap(frame.number)
        elif len(self._unfenced) >= consumer.most_unfenced or time.monotonic() > self._together_until:
            return None
        else:
            taken = consumer.soon()
            if taken is None:
                return None
            self._unfenced.append(frame)
        self._frame = None
        return taken

    def _existing(self, frame: _native.Frame) -> Any:
        """Return the array of a frame if the array exists and the program can use it at once; otherwise return None."""
        kept, follower, consumer = frame.object, self._follower, self._consumer
        if kept is None or self._session.lost or consumer is None:
            return None
        if kept.key is not self._key and kept.key != self._key:  # to compare the identity first is faster
            return None
        array, native = kept.array, consumer.native
        try:
            if follower is not None:
                known = follower.before(frame, waiting=self._fence)
            else:
                known = self._stream is None and (not frame.value or self._complete(fences_of(frame)))
        except Exception:
            self._frame, native.offered = frame, None
            self._let_go()
            raise
        if not known:
            return None
        self._frame, native.offered = frame, None
        if consumer.left and consumer.has_dropped(frame):
            self._frame = None
            return None
        return array

    def _complete(self, fences: tuple[Fence, ...]) -> bool:
        """Whether all `fences` of a frame are reached, so that the CPU can use the frame now."""
        for fence in fences:
            page = self._session.timelines.page(fence.timeline)
            if page is None or not page.reached(fence.word, fence.value) or page.died(fence.word, fence.value):
                return False
        return True

    def _claimed(self, frame: _native.Frame, state: LeaseState) -> Any:
        """Return the array of a frame that has a lease state. If this fails, the iterator then takes a later frame."""
        native = cast("Consumer", self._consumer).native
        try:
            array = self._prepare(frame, state)
        except Exception:
            native.offered = None
            raise
        self._frame, self._lease_state, native.offered = frame, state, None
        return array

    def _prepare(self, frame: _native.Frame, state: LeaseState) -> Any:
        """Let the stream or the CPU wait for the producer's work. Find or make the frame's array, and return it."""
        if state.memory.pool.on_cpu and self._stream is None:
            _fences.before_cpu(state)
        elif self._stream is None:
            raise InvalidArgumentError(
                f"arrays of memory of {state.memory.pool.device_name} need stream=, the stream that uses them"
            )
        else:
            _fences.name_stream(state, self._stream)
            if self._follower is None:
                self._follower = _fences.follower(state, self._stream)
        array = self._find(state)
        if array is None:
            array = self._make(state)
        consumer = self._consumer
        if consumer is not None and self._find(state) is array:
            consumer.keep(frame, Kept(array, state.grant.tensor, consumer.layout(state.grant), self._key))
        return array

    def _find(self, state: LeaseState) -> Any:
        block = self._session.core.blocks.get(state.grant.block)
        if block is not None:
            for key, array in block.arrays.get(_place(state), ()):
                if key == self._key:
                    return array
        return None

    def _make(self, state: LeaseState) -> Any:
        twin = self._session.keep_mapped(state)
        twin.fences = state.fences  # for the streams of a `wrap` that copies
        try:
            # For `wrap`, memory of kind `pinned` is the GPU's if a stream uses it.
            array, kept = wrapped(self._lease_type(self._run, twin), self._wrap, on_gpu=self._stream is not None)
        finally:
            twin.released = True
            # The frame's release waits for the work that `wrap` has queued, and for unknown streams, such as those of
            # PyTorch's copies between memory of kind `pinned` and a GPU.
            unknown = twin.unordered and self._stream is None
            state.unordered |= unknown
            if twin.streams is not None:
                state.streams = {**(state.streams or {}), **twin.streams}
        if kept and not unknown:  # a copy cannot be used again, and a frame without a state does not wait
            with self._session.lock:
                block = self._session.core.blocks.get(state.grant.block)
                if block is not None:
                    block.keep_array(_place(state), (self._key, array))
        return array

    # Letting go

    def release(self) -> None:
        """Release the frame of the last array now, and not only at the request for the next array. Idempotent."""
        if _process.pid != self._session.pid:
            self._session.check_usable()
        self._let_go()

    def _let_go(self) -> None:
        # First release the frame, then clear the attributes. If an interrupt (KeyboardInterrupt) comes between the two,
        # the next call of `_let_go` releases the frame again, which does no harm.
        frame, state = self._frame, self._lease_state
        if state is not None:
            state.end()
        elif frame is not None:
            self._unfenced.append(frame)
        self._fence()
        self._frame = self._lease_state = None

    def _fence(self) -> None:
        """Release the frames in `_unfenced`. If a stream uses these frames, it writes one common fence for them."""
        consumer = self._consumer
        if not self._unfenced or consumer is None:
            return
        end = partial(consumer.end_lones, self._unfenced, back=False)
        if self._follower is None:
            end()
        else:
            CAPTURES.run(partial(self._follower.done, end))
            self._together_until = time.monotonic() + _TOGETHER_SECONDS
        self._unfenced = []

    @while_running
    def __del__(self) -> None:
        frame, consumer, frames = self._frame, self._consumer, self._unfenced
        if frame is not None and self._lease_state is None:  # a lease state ends by itself
            frames.append(frame)
        if not frames or consumer is None:
            return
        # When the program requests the next array, the iterator acknowledges the last frame. The program has made no
        # request after this frame's array, so a frame of a queue goes back to the queue.
        end = partial(consumer.end_lones, frames, back=consumer.queue)
        if self._follower is None:
            end()
        else:
            self._session.later(partial(self._follower.done, end))

    # The frame

    @property
    def _current(self) -> _native.Frame:
        if self._frame is None:
            raise InvalidArgumentError("there is no frame: ask for the next array first")
        return self._frame

    @property
    def seq(self) -> int:
        """The frame's number in its channel, counted from 1."""
        return self._current.number

    @property
    def time(self) -> float:
        """When the frame was published, in seconds since 1970, as `time.time` counts."""
        return self._current.time / 1e9

    @property
    def time_ns(self) -> int:
        """When the frame was published, in nanoseconds since 1970, as `time.time_ns` counts."""
        return self._current.time

    @property
    def meta(self) -> dict[str, MetaValue]:
        """What the producer published about the frame, by key; see `Channel.publish`."""
        return unpack_meta(self._current.meta)

    @property
    def dropped(self) -> int:
        """How many frames were missed between the previous frame and this frame; see `Frame.dropped`."""
        return self._current.missed

    @property
    def delivery(self) -> int:
        """How often subscribers have got this frame of a queue, with this time; see `Frame.delivery`."""
        return self._current.delivery


class BorrowedArrays(BaseBorrowedArrays, Iterator[Any]):
    """An iterator over a channel's frames as arrays. Each array is valid until the next array is requested.

    `Subscription.arrays` makes this iterator.
    """

    _run: Run
    _lease_type: ClassVar = Lease

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._traced:
            self._let_go()
            array = self._run(self._next())
        else:
            consumer = self._consumer
            frame = self._swap() or (None if consumer is None else self._offered(consumer))
            array = None if frame is None else self._existing(frame)
            if array is None:
                array = self._run(self._next() if consumer is None else self._finish(frame))
        if self._frame is None:
            raise StopIteration
        # The iterator keeps the dict for later frames, so the program gets a copy, which it may change.
        return dict(array) if type(array) is LoanedArrays else array


class AsyncBorrowedArrays(BaseBorrowedArrays, AsyncIterator[Any]):
    """An asynchronous iterator over a channel's frames as arrays. An array is valid until the next array is requested.

    `AsyncSubscription.arrays` makes this iterator.
    """

    _run: AsyncRun
    _lease_type: ClassVar = AsyncLease

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        self.release()
        array = await self._run(self._next())
        if self._frame is None:
            raise StopAsyncIteration
        return dict(array) if type(array) is LoanedArrays else array
