"""Orders the work of several processes on the same memory.

A process gets each buffer together with fences. A fence names a word of a timeline and a value: the process may use the
memory only when the word has reached this value. A stream of a GPU waits for the fences by itself. The CPU waits for
the fences with a time limit. When a session publishes or releases a buffer, the streams that used the buffer write
words of the session's own timeline (``timeline.py``), and the session sends the fences for these words with the buffer.

Sometimes streams cannot write words: the service has no timelines, the GPU does not support such writes, a stream is
the per-thread default stream of another thread, or the user named no stream. Then `_fall_back` waits for the device
instead.

While the program captures a stream's work into a CUDA graph, this module queues neither writes nor waits on the stream,
because the graph would repeat them at each launch. The CPU waits for the fences instead. If the program releases a
buffer during the capture, the session ends the buffer's lease only after the capture. An operation that cannot wait for
the end of the capture raises `StreamCaptureError`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from poolbridge._cuda import cuda as _cuda, stream as _cuda_stream
from poolbridge._memory import dlpack as _dlpack
from poolbridge._order import event as _event
from poolbridge._order.streams import stream_key
from poolbridge._order.timeline import StreamKey, Timeline
from poolbridge._sys import process as _process
from poolbridge._wire.limits import MAX_DONE
from poolbridge._wire.messages import Fence
from poolbridge.errors import (
    ContentFailedError,
    DeviceMemoryError,
    DriverError,
    InvalidArgumentError,
    PoolLimitError,
    ProducerDiedError,
    StreamCaptureError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from poolbridge._memory.kinds import BlockMemory
    from poolbridge._native import Follower as _NativeFollower, Frame
    from poolbridge._order.event import Event
    from poolbridge._order.timelines import Timelines
    from poolbridge._wire.messages import Grant
else:
    try:
        from poolbridge._native import Follower as _NativeFollower
    except ImportError:  # without the native module there are no channels, and so no followers
        _NativeFollower = object

# The CPU polls a fence before it makes a stream wait for the fence. The first poll takes at most `_POLL_SECONDS`. If a
# poll ends before the fence is reached, the stream waits for the fence, and the next poll may take twice as long, up to
# `_LONGEST_POLL_SECONDS`. A longer poll gives the GPU time to finish the waits that are already in its queue.
_POLL_SECONDS: Final = 20e-6
_LONGEST_POLL_SECONDS: Final = 100e-6

EndLease: TypeAlias = "Callable[[tuple[Fence, ...]], None]"
"""A function that ends a lease. Its argument is the lease's fences. The function neither waits nor raises."""


class FenceSession(Protocol):
    """The part of a session that this module uses; see `poolbridge._session.session.Session`."""

    pid: int
    patience: float
    timelines: Timelines

    def check_usable(self) -> None:
        """Raise if the session has ended or belongs to another process."""


class Held(Protocol):
    """The part of a lease's state that this module uses; see `poolbridge._session.lease_state.LeaseState`."""

    grant: Grant
    memory: BlockMemory
    fences: tuple[Fence, ...]
    event: Event | None
    streams: dict[StreamKey, tuple[Fence, ...] | None] | None
    unordered: bool
    named: bool
    write: bool
    promise: Fence | None
    lost: bool

    @property
    def session(self) -> FenceSession:
        """The session that has the lease."""

    @property
    def single(self) -> bool:
        """Whether the lease's release can send only one fence, which must cover all work. True for leases of frames."""


_REFUSED: Final = (DriverError, DeviceMemoryError)
"""What a call of the driver raises if the driver refuses it."""

# A thread holds this lock while it changes the `fences` or the `streams` of a lease, and meanwhile calls nothing. The
# collector of garbage can run in this thread at any moment, and release other leases.
_changing = threading.RLock()


def _forked() -> None:
    global _changing  # noqa: PLW0603 - another thread of the parent may have had it
    _changing = threading.RLock()


os.register_at_fork(after_in_child=_forked)


# Before the memory is used


def before_use(state: Held, stream: Any) -> None:
    """Make a stream wait until it may use the memory, and note that the stream uses the memory.

    Parameters
    ----------
    state
        The lease.
    stream
        See `stream_key`.

    Raises
    ------
    ValueError
        `stream` is no stream, or is not None for memory of the CPU, which has no streams.
    ContentFailedError
        The content will never be complete. `ProducerDiedError` is such an error.
    WaitTimeoutError
        The CPU waited for the content, and the content was not complete within the session's time limit.
    """
    device = state.memory.pool.device
    if device[0] == _dlpack.CPU and stream is None:
        before_cpu(state)
        return
    key = stream_key(device, stream)
    if key is None:
        state.unordered = True
    elif state.streams is None or state.streams.get(key) is not state.fences:
        with _changing:
            if state.streams is None:
                state.streams = {}
            streams = state.streams
            streams.setdefault(key, None)  # before the wait, which can fail: the stream may have earlier work
        # Other threads that use the stream do not rely on this wait before it is queued.
        waited = _make_wait(state, key) if state.fences else ()
        with _changing:
            streams[key] = waited


def before_cpu(state: Held) -> None:
    """Wait until the CPU may use the memory. Raises the errors of `wait`."""
    if state.fences:
        wait(state)


def before_copy(state: Held) -> None:
    """Wait until the CPU may copy from the memory or to it: as `before_cpu`, and for streams that may write the memory.

    Memory that the CPU cannot access is copied by the GPU, which waits for these streams.
    """
    before_cpu(state)
    if not state.write or not (state.streams or state.unordered) or not state.memory.pool.on_cpu:
        return
    own = _own(state)
    fences = _written(own, _streams(state)) if own is not None else ()
    if own is None or not fences:
        _fall_back(state)
    for fence in fences:
        while own is not None and not own.page.wait(fence.word, fence.value, 1.0):
            pass


def add_fence(state: Held, fence: Fence, by: StreamKey | None = None) -> None:
    """Let later work of this process on the memory wait for a fence, also on streams that have used the memory.

    The stream `by` need not wait, because it writes the fence.
    """
    with _changing:
        known = state.fences
        state.fences = (*known, fence)
        if by is not None and state.streams and state.streams.get(by) is known:
            state.streams[by] = state.fences


def after_others(state: Held, stream: Any) -> Callable[[], object] | None:
    """Make a stream wait for the other streams that have used the memory.

    If it cannot, return a function by which the CPU waits for them.
    """
    key = stream_key(state.memory.pool.device, stream)
    others = [other for other in _streams(state) if other != key]
    if not others:
        return None
    own = state.session.timelines.streams_of(state.memory.pool.device[1])
    if key is None or own is None or not all(one.reachable for one in others):
        return partial(_fall_back, state)
    try:
        _join(state, own, others, key)
    except (*_REFUSED, PoolLimitError):
        return partial(_fall_back, state)
    return None


def name_stream(state: Held, stream: Any) -> None:
    """Call `before_use` for a stream that the user named, and note that the user names all streams of the lease."""
    before_use(state, stream)
    state.named = True


def stream_that_copies(state: Held, stream: Any) -> int:
    """Call `name_stream` for the stream on which the caller queues a copy, and return the stream's handle.

    Raises
    ------
    InvalidArgumentError
        `stream` is -1, which asks for no order.
    """
    key = stream_key(state.memory.pool.device, stream)
    if key is None:
        raise InvalidArgumentError("stream -1 asks for no order: name the stream that copies the array")
    name_stream(state, stream)
    return key.handle


def name_event(state: Held, event: Event) -> None:
    """Make a stream wait for `event`, so that the lease's next fence also covers the work before `event`.

    This session may not know all streams that use the memory. The user says that `event` covers the work of the unknown
    streams. The caller sets `named` back once it has the fence: later work of unknown streams is not covered.
    """
    ordinal = state.memory.pool.device[1]
    key = next((key for key in reversed(_streams(state)) if key.reachable), None)
    if key is None:
        key = StreamKey(ordinal, _cuda.own_stream(ordinal))
        before_use(state, key.handle)
    _cuda_stream.wait_for_event(ordinal, key.handle, event.handle)
    state.named = True


def check_promise(state: Held) -> None:
    """Raise if this process has promised the content, which it may still write, and has not completed it.

    Raises
    ------
    InvalidArgumentError
        The promise is open.
    ContentFailedError
        The promise has failed.
    """
    promise = state.promise if state.write else None
    page = state.session.timelines.page(promise.timeline) if promise is not None else None
    if promise is None or page is None:
        return
    title = f"the content of buffer {state.grant.buffer}"
    if page.died(promise.word, promise.value):
        raise ContentFailedError(f"{title} is incomplete; its promise failed: {page.reason(promise.word)}")
    if not page.reached(promise.word, promise.value):
        raise InvalidArgumentError(
            f"{title} is promised and not complete, so it cannot be copied: publish the lease in place, in its own "
            "pool and alone, or complete the promise first"
        )


def ready_event(state: Held) -> Event | None:
    """Return the event that the producer published with the content; None if there is none. Opens the event if needed.

    Raises
    ------
    EventUnavailableError
        This process cannot open the event.
    """
    if state.event is None and state.grant.event:
        state.event = _event.open_event(state.memory.pool.home[1], state.grant.event)
    return state.event


def stream_to_follow(state: Held) -> int | None:
    """Return a stream that a library must wait for if it names no stream of its own; None if no wait is needed."""
    state.unordered = True
    if not _unreached(state):
        return None
    ordinal = state.memory.pool.device[1]
    stream = _cuda.own_stream(ordinal)
    _make_wait(state, StreamKey(ordinal, stream))
    return stream


def wait(state: Held, seconds: float | None = None) -> None:
    """Wait on the CPU until this process may use the memory.

    Raises
    ------
    ContentFailedError
        The content will never be complete. `ProducerDiedError` is such an error.
    WaitTimeoutError
        The content was not complete within `seconds`, or within the session's time limit if `seconds` is None.
    """
    limit = state.session.patience if seconds is None else seconds
    deadline = time.monotonic() + limit
    for fence in _unreached(state):
        page = state.session.timelines.page(fence.timeline)
        if page is None or page.wait(fence.word, fence.value, max(deadline - time.monotonic(), 0)):
            continue
        raise is_late(state, limit)
    _unreached(state)


def is_late(state: Held, seconds: float) -> WaitTimeoutError:
    """Return the error to raise when the content was not complete within `seconds`."""
    return WaitTimeoutError(
        f"buffer {state.grant.buffer} is not ready after {seconds:g} s: another process still works on it"
    )


def check(state: Held) -> None:
    """Raise if this process knows that the content will never be complete.

    Raises
    ------
    ContentFailedError
        The process that wrote the content says that it cannot complete the content.
    ProducerDiedError
        The process that wrote the content died before it completed the content.
    """
    if lost(state):
        reason = next(filter(None, map(partial(_reason, state), state.grant.wait)), "")
        if reason:
            raise ContentFailedError(f"buffer {state.grant.buffer} is incomplete; its producer says: {reason}")
        raise ProducerDiedError(
            f"buffer {state.grant.buffer} is incomplete: the process that wrote it died before finishing"
        )


def lost(state: Held) -> bool:
    """Whether this process knows that the content will never be complete."""
    if _process.pid != state.session.pid:
        state.session.check_usable()  # a forked child has no pages to read
    if not state.lost and not state.grant.write:
        for fence in state.grant.wait:
            page = state.session.timelines.page(fence.timeline)
            if page is not None and page.died(fence.word, fence.value):
                state.lost = True
    return state.lost


def _reason(state: Held, fence: Fence) -> str:
    """Return why the content failed, as the process that must write the fence says; "" if it gave no reason."""
    page = state.session.timelines.page(fence.timeline)
    return page.reason(fence.word) if page is not None and page.died(fence.word, fence.value) else ""


def _unreached(state: Held) -> tuple[Fence, ...]:
    """Return the fences of a lease that are not reached yet. The lease forgets the fences that are reached.

    A fence also counts as reached when the process that must write the fence has died. The holder of a write lease may
    then use the memory, because the dead process does not use it any more. For a read lease, `check` raises an error.
    """
    fences = state.fences
    if fences:
        timelines = state.session.timelines
        left = []
        for fence in fences:
            page = timelines.page(fence.timeline)
            if page is None and state.single and not state.grant.write:
                # This lease is of a frame, and the service has forgotten the timeline of the frame's fence: the service
                # does not know which processes read a frame. This process cannot know whether the content is complete,
                # so the content counts as failed.
                state.session.check_usable()
                state.lost = True
            elif page is not None and not page.reached(fence.word, fence.value):
                left.append(fence)
        check(state)  # `check` comes before the fences are forgotten, so that every later use raises, too
        with _changing:
            if state.fences is fences and len(left) < len(fences):  # otherwise another thread has added a fence
                state.fences = tuple(left)
                streams = state.streams or {}
                streams.update({key: state.fences for key, waits in streams.items() if waits is fences})
    return state.fences


def _make_wait(state: Held, key: StreamKey) -> tuple[Fence, ...]:
    """Make a stream wait for the lease's fences that are not reached yet, and return these fences."""
    left = _unreached(state)
    if not left:
        return left
    if _cuda_stream.captured(key.ordinal, key.handle):
        wait(state)
        return left
    timelines = state.session.timelines
    own = timelines.streams_of(key.ordinal)
    word = own.word(key) if own is not None else None
    for fence in left:
        page = timelines.page(fence.timeline)
        if page is None:
            continue
        address = page.on_device(key.ordinal) if own is not None else 0
        if own is None or not address:
            wait(state)
            return left
        if word is not None and fence.timeline == own.id and fence.word == word.index:
            continue  # the fence belongs to earlier work of the same stream
        timelines.waits(own, key, [fence.timeline])
        page.await_writers()
        _cuda_stream.wait(key.ordinal, key.handle, address + 8 * fence.word, fence.value)
    return left


class Follower(_NativeFollower):
    """Orders the work of one stream that uses a channel's frames one after the other, without a `LeaseState` for each.

    While a stream waits for a fence, the GPU switches to the work of another process, and later switches back. If
    several processes use the GPU, these switches take much longer than most waits for a fence. So the CPU polls the
    fence first. If the fence is reached during the poll, the stream need not wait.

    Parameters
    ----------
    own
        The timeline that the stream writes.
    key
        The stream.
    timelines
        The timelines of the session whose frames the stream uses.
    stream
        The user's stream object. The follower keeps a reference to this object, so that the stream is not destroyed.
    synchronize
        A function that waits for all GPUs that may use the memory. It does not use the memory object of a block: the
        block may be unmapped before the follower calls the function.

    Attributes
    ----------
    anywhere
        Whether every thread can queue work on the stream.
    key
        The stream.
    """

    key: StreamKey
    own: Timeline
    timelines: Timelines

    def __init__(
        self, own: Timeline, key: StreamKey, timelines: Timelines, stream: Any, synchronize: Callable[[], None]
    ) -> None:
        self.own, self.id, self.words = own, own.id, own.words
        self.is_owned, self.acquire, self.release = own.lock.owned, own.lock.acquire, own.lock.release
        self.key = key
        self.timelines = timelines
        self._stream = stream
        self.anywhere = not key.thread
        self.capturing, self.function = _cuda_stream.write_functions(key.handle)
        self.stream = key.handle
        self.address = own.page.on_device(key.ordinal) if self.function else 0
        self.fence = Fence
        self.patience = self.shortest = _POLL_SECONDS
        self.longest = _LONGEST_POLL_SECONDS
        self._synchronize = synchronize

    def before(
        self,
        fences: Sequence[tuple[int, int, int]] | Frame,
        *,
        write: bool = False,
        waiting: Callable[[], None] | None = None,
    ) -> bool:
        """Make the stream wait until it may use a frame's memory. Return False if the caller must use `before_use`.

        `before_use` can wait in more cases, but it needs a `LeaseState`.

        Parameters
        ----------
        fences
            A sequence with the timeline, the word and the value of each fence; or a frame, which has one fence or no
            fence.
        write
            Whether the stream writes the memory. If so, a fence also counts as reached when the process that must write
            the fence has died.
        waiting
            If the stream must wait, `before` calls this function first and then queues the wait.
        """
        if not (self.anywhere or self.key.reachable):
            return False
        behind = self.poll(fences, write)
        if not behind:
            return behind is not None
        if waiting is not None:
            waiting()
        return self._await(behind)

    def _await(self, fences: list[tuple[int, int, int]]) -> bool:
        """Make the stream wait for fences. Return False if the caller must use `before_use` with a `LeaseState`."""
        timelines, key, words = self.timelines, self.key, []
        if _cuda_stream.captured(key.ordinal, key.handle):
            return False
        timelines.waits(self.own, key, [timeline for timeline, _, _ in fences])
        for timeline, word, value in fences:
            page = timelines.page(timeline)  # the call of `waits` keeps the page mapped
            address = page.on_device(key.ordinal) if page is not None else 0
            if page is None or not address:
                return False
            page.await_writers()
            words += [address + 8 * word, value]
        _cuda_stream.wait_for_words(key.ordinal, key.handle, words)
        return True

    def write(self) -> Fence | None:
        """Make the stream write its next fence, and return the fence; return None if the stream cannot write it."""
        if self.timelines.own is not self.own or not (self.anywhere or self.key.reachable):
            return None
        fence: Fence | None = self.queue()
        if fence is not None:
            return fence
        try:
            return self.own.write(self.key)
        except (*_REFUSED, PoolLimitError):
            return None

    def done(self, end_lease: EndLease) -> None:
        """Call `end_lease` with a fence that covers the stream's work so far.

        If the stream cannot write a fence, wait for the device and call `end_lease` without fences. Raises the errors
        of `poolbridge._order.fences.done`.
        """
        if self.timelines.own is not self.own or not _tell(self.own, self.key, end_lease, self._synchronize):
            _after(self._synchronize, end_lease)


def follower(state: Held, stream: Any) -> Follower | None:
    """Make a `Follower` for the stream of a lease. Return None if several streams or none use the lease's memory.

    Also return None if the stream cannot write fences.
    """
    own = _own(state)
    if own is None or state.streams is None or len(state.streams) != 1:
        return None
    return Follower(own, next(iter(state.streams)), state.session.timelines, stream, state.memory.pool.synchronize)


# After the memory was used


def must_wait(state: Held) -> bool:
    """Whether `ready` or `done` must wait: on the CPU for fences, or in `_fall_back` for the device."""
    if state.memory.pool.device[0] == _dlpack.CPU:
        return bool(state.fences)
    used = bool(state.streams) or state.unordered
    return used and (state.promise is not None or _own(state) is None)


def done(state: Held, end_lease: EndLease) -> None:
    """Make fences that are reached when this process's work on the memory is done, and pass the fences to `end_lease`.

    Parameters
    ----------
    state
        The lease.
    end_lease
        The function that ends the lease with the fences. `done` calls it exactly once, unless `done` raises
        `StreamCaptureError` or what a handler of a signal raised. It gets no fences if the work is already done, if
        `done` has waited for the device, or if the driver failed. It must neither wait nor raise.

    Raises
    ------
    StreamCaptureError
        The program is capturing the work of a stream into a graph. `done` has not called `end_lease`: call `done` again
        later.
    """
    if not state.streams and not state.unordered:
        end_lease(())
        return
    own, streams = _own(state), _streams(state)
    if own is None:
        _after(state.memory.synchronize, end_lease)
    elif len(streams) > 1:
        try:
            for key in streams:
                _cuda_stream.refuse_capture(key.ordinal, key.handle)
            fences = _single(state, own) if state.single else _written(own, streams)
        except _REFUSED:
            fences = ()
        if fences:
            end_lease(fences)
        else:
            _after(state.memory.synchronize, end_lease)
    elif not _tell(own, streams[0], end_lease, state.memory.synchronize):
        _after(state.memory.synchronize, end_lease)


def _tell(own: Timeline, key: StreamKey, end_lease: EndLease, synchronize: Callable[[], None]) -> bool:
    """Pass a stream's next fence to `end_lease`, and make the stream write it. Return False if it was not called."""
    try:
        return key.reachable and own.tell(key, end_lease, synchronize)
    except PoolLimitError:
        return False


def _after(synchronize: Callable[[], None], end_lease: EndLease) -> None:
    """Wait until the device has done its work, and call `end_lease` without fences. Raises the errors of `done`."""
    try:
        synchronize()
    except _REFUSED:
        end_lease(())
        raise
    end_lease(())


def _written(own: Timeline, streams: Iterable[StreamKey], *, wait: bool = True) -> tuple[Fence, ...]:
    """Make each stream write a fence and return the fences; return an empty tuple if a stream cannot write."""
    try:
        fences = [own.write(key, wait=wait) for key in streams]
    except (*_REFUSED, PoolLimitError):
        return ()
    written = tuple([fence for fence in fences if fence is not None])
    return written if len(written) == len(fences) else ()


def _single(state: Held, own: Timeline) -> tuple[Fence, ...]:
    """Return one fence that covers the work of all the lease's streams; return an empty tuple if this fails."""
    try:
        fence = _joined(state, own, _streams(state))
    except (*_REFUSED, PoolLimitError):
        return ()
    return () if fence is None else (fence,)


def done_at_once(state: Held) -> tuple[Fence, ...] | None:
    """Make and return the fences as `done` does; return None if the caller must call `done` instead.

    This function never waits, because finalisers call it.
    """
    if not state.streams and not state.unordered:
        return ()
    own, streams = _own(state), _streams(state)
    if own is None or (state.single and len(streams) > 1):
        return None
    try:
        return _written(own, streams, wait=False) or None
    except StreamCaptureError:
        return None


def ready(state: Held) -> Fence | None:
    """Return a fence that is reached when the content is complete; None if the content is complete now.

    For memory of the CPU, `ready` may wait for fences. For memory of a GPU, `ready` may wait for the device.
    """
    device, promise = state.memory.pool.device, state.promise
    if device[0] == _dlpack.CPU:
        before_cpu(state)
        return promise
    if promise is not None:
        # The fence of the promise is the only fence for the content, so this fence must cover the work of the streams
        # too. A stream of this process must not wait for this fence, because this process may never complete the
        # promise. So the CPU waits until the streams have done their work.
        if state.streams or state.unordered:
            _fall_back(state)
        return promise
    if not state.streams and not state.unordered:
        if not _unreached(state):
            return None
        before_use(state, _cuda.own_stream(device[1]))
    own = _own(state)
    if own is None:
        _fall_back(state)
        return None
    streams = _streams(state)
    try:
        fence = _joined(state, own, streams)
    except (*_REFUSED, PoolLimitError):
        fence = None
    if fence is None:
        _fall_back(state)
    else:
        add_fence(state, fence, by=streams[-1])
    return fence


def _joined(state: Held, own: Timeline, streams: Sequence[StreamKey]) -> Fence | None:
    """Make the last of the lease's streams wait for the others, and then write a fence. Return the fence.

    Return None if the timeline is closed.
    """
    *others, last = streams
    if others:
        for key in streams:
            _cuda_stream.refuse_capture(key.ordinal, key.handle)
    _join(state, own, others, last)
    return own.write(last)


def _join(state: Held, own: Timeline, others: Sequence[StreamKey], last: StreamKey) -> None:
    """Make a stream wait for the present work of other streams."""
    for key in others:
        fence = own.write(key)
        if fence is None:
            raise PoolLimitError("no fence can be made now: a handler of a signal runs while this thread makes one")
        state.session.timelines.waits(own, last, [own.id])
        address = own.page.on_device(key.ordinal) + 8 * fence.word
        _cuda_stream.wait(last.ordinal, last.handle, address, fence.value)


def _own(state: Held) -> Timeline | None:
    """Return the session's timeline if all streams that used the memory are known and can write words; else None."""
    if state.unordered and not state.named:
        return None
    streams = _streams(state)
    if not streams or len(streams) > MAX_DONE or not all(key.reachable for key in streams):
        return None
    return state.session.timelines.streams_of(state.memory.pool.device[1])


def _streams(state: Held) -> list[StreamKey]:
    return list(state.streams) if state.streams is not None else []


def _fall_back(state: Held) -> tuple[Fence, ...]:
    """Wait until the device has done all work of this process, and return no fences.

    This function does not ask whether a stream is being captured, because the stream may not exist any more.
    """
    state.memory.synchronize()
    return ()
