"""Iterates over a channel's frames as arrays. An array is made once and used again for later frames in its block.

If the array of a frame exists already, poolbridge makes only one Python object for the frame: the native frame.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, cast

import numpy as np

from poolbridge._client.lease import AsyncLease, Lease
from poolbridge._order import order as _order
from poolbridge._order.captures import CAPTURES
from poolbridge._session.consumer import Kept, fences_of
from poolbridge._sys import process as _process
from poolbridge._sys.finaliser import while_running
from poolbridge._sys.uncopied import Uncopied
from poolbridge.errors import (
    InvalidArgumentError,
)

if TYPE_CHECKING:
    from poolbridge import _native
    from poolbridge._session.consumer import Consumer
    from poolbridge._session.flow import AsyncRun, Run
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.session import Session
    from poolbridge._wire.messages import Fence

# For this number of seconds after the stream has written a fence, the iterator only collects the frames that the
# program has used, at most `most_unfenced` of them. Then the stream writes one fence for all collected frames.
_TOGETHER_SECONDS: Final = 0.001


def _place(state: LeaseState) -> tuple[Any, ...]:
    """Return what frames with the same memory and description have in common; see `SessionBlock.arrays`."""
    tensor = state.grant.tensor
    return state.memory.base, tensor.dtype, tensor.shape, tensor.strides, tensor.offset


class BaseBorrowedArrays(Uncopied, ABC):
    """The code that `BorrowedArrays` and `AsyncBorrowedArrays` share.

    The attributes below raise `InvalidArgumentError` before the program has the first array, and after `release`.

    Attributes
    ----------
    seq, time, time_ns, meta, dropped
        The attributes of the frame whose array the iterator returned last; see `Frame`.
    """

    def __init__(self, session: Session, wrap: Callable[[Any], Any] | None, stream: Any) -> None:
        self._session = session
        self._wrap = np.asarray if wrap is None else wrap
        self._stream = stream
        self._key = self._wrap, stream is not None  # by which arrays are kept: see `_make`
        self._consumer: Consumer | None = None
        self._follower: _order.Follower | None = None
        # The frame and the lease state of the array that the iterator returned last. If that array existed already when
        # the iterator took the frame, the frame has no lease state: `_lease_state` is None.
        self._frame: _native.Frame | None = None
        self._lease_state: LeaseState | None = None
        # `_unfenced`: numbers of earlier frames; the stream has not written their fence yet. `_together_until`: the
        # monotonic time until which the iterator adds numbers to `_unfenced`.
        self._unfenced: list[int] = []
        self._together_until = 0.0

    # Taking

    def _swap(self) -> _native.Frame | None:
        """Release the last array's frame and take the next frame in one step. If this is not possible, return None."""
        frame, consumer = self._frame, self._consumer
        if frame is None or consumer is None or self._lease_state is not None:
            return None
        if consumer.busy or consumer.unsettled:
            return None
        if self._follower is None:
            taken = consumer.swap(frame.number)
        elif len(self._unfenced) >= consumer.most_unfenced or time.monotonic() > self._together_until:
            return None
        else:
            taken = consumer.soon()
            if taken is None:
                return None
            self._unfenced.append(frame.number)
        self._frame = None
        return taken

    def _existing(self, frame: _native.Frame) -> Any:
        """Return the array of a frame if the array exists and the program can use it at once; otherwise return None."""
        kept, follower, consumer = frame.object, self._follower, self._consumer
        if kept is None or kept.key != self._key or self._session.lost or consumer is None:
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
            _order.before_cpu(state)
        elif self._stream is None:
            raise InvalidArgumentError(
                f"arrays of memory of {state.memory.pool.device_name} need stream=, the stream that uses them"
            )
        else:
            _order.name_stream(state, self._stream)
            if self._follower is None:
                self._follower = _order.follower(state, self._stream)
        array = self._find(state)
        if array is None:
            array = self._make(state)
        consumer = self._consumer
        if consumer is not None and self._find(state) is array:
            consumer.keep(frame, Kept(array, state.grant.tensor, self._key))
        return array

    def _find(self, state: LeaseState) -> Any:
        block = self._session.core.blocks.get(state.grant.block)
        if block is not None:
            for key, array in block.arrays.get(_place(state), ()):
                if key == self._key:
                    return array
        return None

    def _make(self, state: LeaseState) -> Any:
        twin = self._session.lend(state)
        try:
            lease = self._lease(twin)
            lease._on_gpu = self._stream is not None  # noqa: SLF001 - for `wrap`, memory of kind `pinned` is the GPU's
            array = self._wrap(lease)
        finally:
            twin.released = True
        if twin.tokens or twin.unaccounted:  # otherwise the array is a copy of this frame, and cannot be used again
            self._session.keep_array(state.grant, _place(state), (self._key, array))
        return array

    @abstractmethod
    def _lease(self, twin: LeaseState) -> Any:
        """Make the lease that is passed to `wrap`."""

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
            self._unfenced.append(frame.number)
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
        frame, consumer, numbers = self._frame, self._consumer, self._unfenced
        if frame is not None and self._lease_state is None:  # a lease state ends by itself
            numbers.append(frame.number)
        if not numbers or consumer is None:
            return
        # When the program requests the next array, the iterator acknowledges the last frame. The program has made no
        # request after this frame's array, so a frame of a queue goes back to the queue.
        end = partial(consumer.end_lones, numbers, back=consumer.queue)
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
    def meta(self) -> dict[str, str]:
        """The texts that the producer published with the frame, by key; see `Channel.publish`."""
        return self._current.meta

    @property
    def dropped(self) -> int:
        """How many frames were missed between the previous frame and this frame; see `Frame.dropped`."""
        return self._current.missed


class BorrowedArrays(BaseBorrowedArrays, Iterator[Any]):
    """An iterator over a channel's frames as arrays. Each array is valid until the next array is requested.

    `Subscription.arrays` makes this iterator.
    """

    def __init__(
        self,
        consumer: Consumer,
        *,
        run: Run,
        take: Callable[[None], _native.Frame | None],
        claim: Callable[[_native.Frame], LeaseState],
        wrap: Callable[[Any], Any] | None,
        stream: Any,
    ) -> None:
        super().__init__(consumer.session, wrap, stream)
        self._consumer = consumer
        self._run = run
        # Methods of the subscription. They keep the subscription alive.
        self._take = take
        self._claim = claim

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        frame = self._swap()
        if frame is None:
            self._let_go()
            frame = self._take(None)
            if frame is None:
                raise StopIteration
        array = self._existing(frame)
        if array is None:
            self._fence()
            array = self._claimed(frame, self._claim(frame))
        return array

    def _lease(self, twin: LeaseState) -> Lease:
        return Lease(self._run, twin)


class AsyncBorrowedArrays(BaseBorrowedArrays, AsyncIterator[Any]):
    """An asynchronous iterator over a channel's frames as arrays. An array is valid until the next array is requested.

    `AsyncSubscription.arrays` makes this iterator.
    """

    def __init__(
        self,
        session: Session,
        *,
        run: AsyncRun,
        start: Callable[[], Awaitable[Consumer]],
        take: Callable[[None], Awaitable[_native.Frame | None]],
        claim: Callable[[_native.Frame], Awaitable[LeaseState]],
        wrap: Callable[[Any], Any] | None,
        stream: Any,
    ) -> None:
        super().__init__(session, wrap, stream)
        self._run = run
        # Methods of the subscription. They keep the subscription alive.
        self._start = start
        self._take = take
        self._claim = claim

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        self.release()
        self._consumer = await self._start()
        frame = await self._take(None)
        if frame is None:
            raise StopAsyncIteration
        array = self._existing(frame)
        if array is None:
            array = self._claimed(frame, await self._claim(frame))
        return array

    def _lease(self, twin: LeaseState) -> AsyncLease:
        return AsyncLease(self._run, twin)
