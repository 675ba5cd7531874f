"""Publishes copies of arrays as frames: in leases of their own, or in slots of a publisher that the channel keeps."""

from __future__ import annotations

import time
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import ref

import numpy as np

from poolbridge._array import sources as _sources
from poolbridge._array.copies import copy_into
from poolbridge._client.operations import allocate, ready
from poolbridge._client.publisher import COMPLETE, BasePublisher
from poolbridge._cuda import cuda as _cuda, stream as _cuda_stream
from poolbridge._memory import dlpack as _dlpack, tensor as _tensor
from poolbridge._order import fences as _fences
from poolbridge._session.flow import Do, Flow
from poolbridge._session.lease_state import LeaseState, Token
from poolbridge._session.producer import send
from poolbridge._wire.messages import Fence
from poolbridge.errors import (
    DeviceMemoryError,
    PoolLimitError,
)

if TYPE_CHECKING:
    from poolbridge._array.sources import Source
    from poolbridge._memory.tensor import Description
    from poolbridge._session.producer import Producer
    from poolbridge._session.session import Session
    from poolbridge._wire.messages import ChannelIdentity

# Numbers of seconds. A channel gets a publisher if two copies with the same layout follow each other within `_SOON`
# seconds. If the pool has no room for the publisher, the publisher asks again after `_LATER` seconds.
_SOON: Final = 1.0
_LATER: Final = 1.0
# The thread of the event loop itself copies arrays of at most this number of bytes, because it takes longer to let
# another thread copy them.
_SMALL: Final = 256 << 10


class _Layout(NamedTuple):
    """What the slots of a publisher are made for: the description of a copy, and whether streams may copy."""

    description: Description
    on_gpu: bool


@lru_cache(maxsize=256)
def _layout_on_cpu(dtype: np.dtype[Any], shape: tuple[int, ...]) -> _Layout:
    """Return the layout of a copy of a NumPy array. Cached, because `source_of` takes longer than a copy."""
    return _Layout(_tensor.describe(shape, dtype), on_gpu=False)


class Copies:
    """Publishes copies of arrays in one channel, and keeps a publisher for copies of one layout.

    While a call uses the publisher, it is not in `_kept`. If two threads or tasks publish at the same time, the second
    one finds no publisher, and uses a lease. If a signal handler raises an exception in between, the publisher is
    dropped, and its finaliser closes it.

    Parameters
    ----------
    session, channel
        The session, and the service's description of the channel.
    """

    def __init__(self, session: Session, channel: ChannelIdentity) -> None:
        self._session = session
        self._channel = channel
        self._kept: list[_CopyPublisher] = []  # at most one
        self._newest: ref[_CopyPublisher] | None = None
        self._last: tuple[_Layout | None, float] = None, 0.0  # the layout and the time of the last copy

    def publish(self, producer: Producer, given: Any, *, meta: bytes, timeout: float | None, stream: Any) -> Flow[int]:
        """Let a stream of the GPU, or the CPU, copy `given`, and publish the copy. Return the frame's number."""
        if type(given) is np.ndarray:
            source, layout = None, _layout_on_cpu(given.dtype, given.shape)
        else:
            source = _sources.source_of(given)
            description = _tensor.describe(source.shape, source.element.name)
            layout = _Layout(description, source.ordinal is not None and source.contiguous)
        began = time.monotonic()
        publisher = self._take(layout, began)
        if publisher is not None:
            try:
                number = yield from publisher.publish_copy(given, source, meta, timeout, stream)
            finally:
                self._put_back(publisher)
            if number is not None:
                return number
            timeout = None if timeout is None else max(timeout - (time.monotonic() - began), 0.0)
        description = layout.description
        state = yield from allocate(self._session, description, self._channel.pool, timeout=timeout)
        try:
            yield from _fill(state, given, source, stream)
            fence = yield from ready(state, None)
            number = yield from send(producer, state, description, meta=meta, fence=fence, event=b"", timeout=timeout)
        except BaseException:
            if not state.released:
                state.end()
            raise
        if fence is not None:
            self._session.keep(given, fence)
        return number

    def _take(self, layout: _Layout, now: float) -> _CopyPublisher | None:
        """Return the publisher for a copy, which the caller has to put back; None: the copy needs a lease."""
        (last, then), self._last = self._last, (layout, now)
        again = last == layout and now - then < _SOON
        try:
            publisher = self._kept.pop()
        except IndexError:  # there is none, or another call uses it
            newest = None if self._newest is None else self._newest()
            if not again or (newest is not None and newest.is_open and newest.layout == layout):
                return None
        else:
            if publisher.layout == layout and (again or publisher.has_arenas):
                return publisher
            if not again:  # copies of two layouts in turn let the publisher of one of them live
                self._put_back(publisher)
                return None
        publisher = _CopyPublisher(self._session, self._channel, layout)
        self._newest = ref(publisher)
        return publisher

    def _put_back(self, publisher: _CopyPublisher) -> None:
        if self._newest is not None and self._newest() is publisher and publisher.is_open:
            self._kept.append(publisher)


class _CopyPublisher(BasePublisher):
    """Publishes copies of arrays of one layout. The program never gets an array of a slot."""

    def __init__(self, session: Session, channel: ChannelIdentity, layout: _Layout) -> None:
        super().__init__(session, None, channel, layout.description, None)
        self.layout = layout

    @property
    def has_arenas(self) -> bool:
        """Whether the publisher has memory."""
        return bool(self._slots.arenas)

    @property
    def is_open(self) -> bool:
        """Whether the publisher is not closed."""
        return not self._slots.closed

    def publish_copy(
        self, given: Any, source: Source | None, meta: bytes, timeout: float | None, stream: Any
    ) -> Flow[int | None]:
        """Copy `given` into a slot, publish the slot, and return the frame's number; None: there is no slot."""
        slots, lender, mark = self._slots, None, COMPLETE
        try:
            array = slots.take()
            if array is None:
                if not (yield from self._has_slot(timeout)):
                    return None
                array = self._array_on_loan()  # `array` keeps the slot mapped during the copy
            if source is not None or type(array) is not np.ndarray:
                lender = self._order_loan()
                yield from self._know_timelines(lender)
                yield from _fill(lender, given, source, stream)
                if lender.streams is not None:
                    mark = yield from self._complete(lender)
            elif given.nbytes <= _SMALL:
                np.copyto(array, given)
            else:
                yield Do(partial(np.copyto, array, given))
            number: int = slots.send(meta, *mark) or (yield from self._deliver(meta, mark, timeout))
        except BaseException:
            if lender is None or lender.streams is None:
                slots.put_back()
            else:  # a stream may write the slot, and no fence says until when
                self._close()
            raise
        own = self._session.timelines.own
        if mark is not COMPLETE and own is not None:
            self._session.keep(given, Fence(own.id, *mark))
        return number

    def _has_slot(self, timeout: float | None) -> Flow[bool]:
        """Put a slot on loan, and return whether there is one. Wait for a slot, but not for the first arena."""
        slots = self._slots
        if not slots.arenas and time.monotonic() < self._refused:
            return False
        try:
            yield from self._alone(self._lend(timeout if slots.arenas else 0.0, self.layout.on_gpu or None))
        except (PoolLimitError, DeviceMemoryError):
            if not slots.arenas:
                self._refused = time.monotonic() + _LATER
            return False
        return True

    def _array(self, twin: LeaseState) -> Any:
        twin.released = False
        self._session.sent_states.discard(twin)
        return twin.array() if twin.memory.pool.on_cpu and twin.description.element.in_numpy else Token(twin)

    def _on_streams(self, state: LeaseState, stream: Any) -> bool:
        return stream is not None and state.memory.pool.device[0] == _dlpack.CUDA


def _fill(state: LeaseState, given: Any, source: Source | None, stream: Any) -> Flow[None]:
    """Let a stream of the GPU, or the CPU, copy `given` into the memory of a lease."""
    pool = state.memory.pool
    if source is not None and source.ordinal is not None and source.contiguous and pool.device[0] == _dlpack.CUDA:
        if (own := _copy_on_device(state, source, stream)) is not None:
            yield Do(partial(_cuda_stream.synchronize_stream, pool.device[1], own))
    else:
        yield Do(partial(copy_into, state, given))


def _copy_on_device(state: LeaseState, source: Source, stream: Any) -> int | None:
    """Queue the copy. Return the stream that the caller must wait for; None: the caller need not wait.

    The program may write the array after the publication, on a stream of its own. So the caller must wait for the copy
    unless the stream that writes the array copies it, too, or nobody writes the array.
    """
    ordinal = state.memory.pool.device[1]
    own = None
    if stream is None:
        # Copy on the stream that the array names. If the array names no stream, copy on poolbridge's own stream, and
        # let the array's library make that stream wait for the array's data.
        stream = source.stream if source.stream is not None else _cuda.own_stream(ordinal)
        if source.stream is None:
            own = None if source.lasting else stream
            _sources.order(source, stream)
    _fences.name_stream(state, stream)
    key = next(reversed(state.streams or {}))
    nbytes = state.description.nbytes
    if nbytes:
        _cuda_stream.copy(ordinal, key.handle, state.address(write=True), source.address, nbytes)
    return own
