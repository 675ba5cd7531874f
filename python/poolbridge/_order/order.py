"""The one place where work on memory is put in order between processes.

A buffer comes with fences: words of timelines and the values that they must reach before its memory is used. A stream
of a GPU is made to wait for them and goes on by itself; what only the CPU can do, the CPU waits for, with a time limit.
A session that gives a buffer away has the streams that used it write words of its timeline, and sends those along.

Where that cannot be, `_fall_back` waits for the device instead: the service has no timelines, a GPU's streams cannot
write words, the stream belongs to another thread, or nobody said which stream it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from poolbridge._cuda import cuda as _cuda
from poolbridge._cuda import stream as _cuda_stream
from poolbridge._memory import dlpack as _dlpack
from poolbridge._order import event as _event
from poolbridge._order.streams import stream_key
from poolbridge._order.timeline import StreamKey, Timeline
from poolbridge._sys import process as _process
from poolbridge._sys.errors import DriverError, PoolLimitError, ProducerDiedError, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolbridge._memory.kinds import BlockMemory
    from poolbridge._order.event import Event
    from poolbridge._order.timelines import Timelines
    from poolbridge._wire.messages import Fence, Grant

MOST_FENCES = 16

Say: TypeAlias = "Callable[[tuple[Fence, ...]], None]"
"""Ends a lease with its fences; it neither waits nor raises."""


class Owner(Protocol):
    """What has to be known of a session; `poolbridge._session.session.Session` is one."""

    pid: int
    patience: float
    timelines: Timelines

    def check_usable(self) -> None:
        """Raise if the session has ended, or this is another process."""


class Held(Protocol):
    """What has to be known of a lease; `poolbridge._session.lease_state.LeaseState` is one, and says what is what."""

    grant: Grant
    memory: BlockMemory
    fences: tuple[Fence, ...]
    event: Event | None
    alone: bool
    streams: dict[StreamKey, None] | None
    unordered: bool
    named: bool
    promise: Fence | None
    lost: bool

    @property
    def session(self) -> Owner:
        """Whose lease it is."""

    @property
    def single(self) -> bool:
        """Whether one fence has to say when all work on the memory is done."""


# Before the memory is used


def before_use(state: Held, stream: Any) -> None:
    """Make a consumer's stream wait until the memory may be used, and note that it uses it.

    Parameters
    ----------
    state
        The lease.
    stream
        See `stream_key`.

    Raises
    ------
    ValueError
        It is no stream, or memory of the CPU has none.
    ProducerDiedError
        The content will never be complete.
    WaitTimeoutError
        On the CPU: it is not complete after the session's time limit.
    EventUnavailableError
        Only an event says when it is complete, and that cannot be opened here.
    """
    device = state.memory.pool.device
    key = stream_key(device, stream)
    if device[0] == _dlpack.CPU:
        before_cpu(state)
    elif key is None:
        state.unordered = True
    elif state.streams is None:
        if state.fences or state.alone:
            _make_wait(state, key)
        state.streams = {key: None}
    elif key not in state.streams:
        if state.fences or state.alone:
            _make_wait(state, key)
        state.streams[key] = None


def before_cpu(state: Held) -> None:
    """Make the CPU wait until the memory may be used; raises as `wait` does."""
    if state.fences or state.alone:
        wait(state)


def name_stream(state: Held, stream: Any) -> None:
    """Note a stream that a user names; whatever used the memory otherwise is vouched for."""
    before_use(state, stream)
    state.named = True


def name_event(state: Held, event: Event) -> None:
    """Have what comes after the lease come after an event; what used the memory otherwise is vouched for."""
    ordinal = state.memory.pool.device[1]
    key = next((key for key in reversed(_streams(state)) if key.reachable), None)
    if key is None:
        key = StreamKey(ordinal, _cuda_stream.own_stream(ordinal))
        before_use(state, key.handle)
    _cuda_stream.wait_for_event(ordinal, key.handle, event.handle)
    state.named = True


def ready_event(state: Held) -> Event | None:
    """Give the event that came with the content, opened; None if none did.

    Raises
    ------
    EventUnavailableError
        It cannot be opened here.
    """
    if state.event is None and state.grant.ev:
        state.event = _event.open_event(state.memory.pool.home[1], state.grant.ev)
    return state.event


def _lone_event(state: Held) -> Event | None:
    """Give the event that has to be waited for, if there is one that no fence stands for."""
    if not state.alone:
        return None
    check(state)
    return ready_event(state)


def stream_to_follow(state: Held) -> int | None:
    """Give a stream that a consumer has to wait for whose own stream is not known; None: nothing to wait for."""
    state.unordered = True
    if not _unreached(state) and not state.alone:
        return None
    ordinal = state.memory.pool.device[1]
    stream = _cuda_stream.own_stream(ordinal)
    _make_wait(state, StreamKey(ordinal, stream))
    return stream


def wait(state: Held, seconds: float | None = None) -> None:
    """Wait on the CPU until the memory may be used.

    Raises
    ------
    ProducerDiedError
        The content will never be complete.
    WaitTimeoutError
        It is not complete after `seconds`; left out: after the session's time limit.
    """
    limit = state.session.patience if seconds is None else seconds
    deadline = time.monotonic() + limit
    for fence in _unreached(state):
        page = state.session.timelines.page(fence.tl)
        if page is None or page.wait(fence.wd, fence.v, max(deadline - time.monotonic(), 0)):
            continue
        raise WaitTimeoutError(
            f"buffer {state.grant.bf} is not ready after {limit:g} s: the work of another process on it goes on"
        )
    _unreached(state)
    event = _lone_event(state)
    if event is not None:
        event.sync(max(deadline - time.monotonic(), 0))
        state.alone = False


def check(state: Held) -> None:
    """Raise if the buffer's writer died before the content was complete, as far as can be told by now.

    Raises
    ------
    ProducerDiedError
        The content is incomplete.
    """
    if lost(state):
        raise ProducerDiedError(
            f"buffer {state.grant.bf} is incomplete: the process that wrote it died before finishing"
        )


def lost(state: Held) -> bool:
    """Whether the content is known to be incomplete."""
    if _process.pid != state.session.pid:
        state.session.check_usable()  # a forked child has no pages to look at
    if not state.lost and not state.grant.wr:
        for fence in state.grant.wt:
            page = state.session.timelines.page(fence.tl)
            if page is not None and page.died(fence.wd, fence.v):
                state.lost = True
    return state.lost


def _unreached(state: Held) -> tuple[Fence, ...]:
    """Give the fences that the CPU has not seen reached, and forget the others.

    A reader or an earlier writer that died has let go of the memory, which is all that a writer needs to know.
    """
    if state.fences:
        timelines = state.session.timelines
        left = []
        for fence in state.fences:
            page = timelines.page(fence.tl)
            if page is None and state.single and not state.grant.wr:
                # The page is gone. The service knows of no reader of such a frame: nothing says whether it is complete.
                state.session.check_usable()
                state.lost = True
            elif page is not None and not page.reached(fence.wd, fence.v):
                left.append(fence)
        state.fences = tuple(left)
        check(state)
    return state.fences


def _make_wait(state: Held, key: StreamKey) -> None:
    """Have a stream wait for what is not reached yet."""
    event = _lone_event(state)
    if event is not None:
        _cuda_stream.wait_for_event(key.ordinal, key.handle, event.handle)
    left = _unreached(state)
    if not left:
        return
    timelines = state.session.timelines
    own = timelines.streams_of(key.ordinal)
    word = own.word(key) if own is not None else None
    for fence in left:
        page = timelines.page(fence.tl)
        if page is None:
            continue
        address = page.on_device(key.ordinal) if own is not None else 0
        if own is None or not address:
            wait(state)
            return
        if word is not None and fence.tl == own.id and fence.wd == word.index:
            continue  # the stream's own earlier work
        timelines.waits(own, key, fence.tl)
        page.await_writers()
        _cuda_stream.wait(key.ordinal, key.handle, address + 8 * fence.wd, fence.v)


class Follower:
    """A stream that uses the frames of a channel, one after the other, put in order without a lease state for each.

    Parameters
    ----------
    own
        The timeline that the stream writes.
    key
        The stream.
    timelines
        Those of the session whose frames it uses.
    stream
        What the user named it by, kept: a stream that is gone takes no more work.

    Attributes
    ----------
    anywhere
        Whether every thread can give the stream work.
    """

    def __init__(self, own: Timeline, key: StreamKey, timelines: Timelines, stream: Any) -> None:
        self._own = own
        self._key = key
        self._timelines = timelines
        self._stream = stream
        self.anywhere = not key.thread
        # The stream's GPU as a whole: once others were told, the memory may be mapped no more.
        self._synchronize = partial(_cuda.synchronize, key.ordinal)

    def before(self, fences: tuple[Fence, ...]) -> bool:
        """Make the stream wait until a frame's memory may be used; False if that takes more than its wait."""
        timelines, own, key = self._timelines, self._own, self._key
        if timelines.own is not own or not (self.anywhere or key.reachable):
            return False
        if not fences:
            return True
        word = own.word(key)
        for fence in fences:
            if word is not None and fence.tl == own.id and fence.wd == word.index:
                continue  # the stream's own earlier work
            page = timelines.page(fence.tl)
            if page is None:
                return False
            if page.reached(fence.wd, fence.v):
                if page.died(fence.wd, fence.v):
                    return False
                continue
            address = page.on_device(key.ordinal)
            if not address:
                return False
            timelines.waits(own, key, fence.tl)
            page.await_writers()
            _cuda_stream.wait(key.ordinal, key.handle, address + 8 * fence.wd, fence.v)
        return True

    @property
    def recorded(self) -> bool:
        """Whether the stream's work is being recorded into a graph, which would write an old fence ever again."""
        return _cuda_stream.recorded(self._key.ordinal, self._key.handle)

    def done(self, say: Say) -> None:
        """Say when the stream is done with the memory of frames, as `done` does."""
        if self._timelines.own is not self._own or not _tell(self._own, self._key, say, self._synchronize):
            _after(self._synchronize, say)


def follower(state: Held, stream: Any) -> Follower | None:
    """Give a follower for the one stream that uses a lease's memory, if it can do without one; see `Follower`."""
    own = _own(state)
    if own is None or state.streams is None or len(state.streams) != 1:
        return None
    return Follower(own, next(iter(state.streams)), state.session.timelines, stream)


# After it was used


def must_wait(state: Held) -> bool:
    """Whether `ready` and `done` have to wait: for the CPU's turn, or in `_fall_back`."""
    if state.memory.pool.device[0] == _dlpack.CPU:
        return bool(state.fences)
    used = state.streams is not None or state.unordered
    return used and (state.promise is not None or _own(state) is None)


def done(state: Held, say: Say) -> None:
    """Say when this process's work on the memory is done.

    Parameters
    ----------
    state
        The lease.
    say
        Called once, whatever happens, with fences, or with none if it is done: `done` waited for the device then. It
        must neither wait nor raise.
    """
    if state.streams is None and not state.unordered:
        say(())
        return
    own, streams = _own(state), _streams(state)
    if own is None:
        _after(state.memory.synchronize, say)
    elif len(streams) > 1:
        fences: tuple[Fence, ...] = ()
        try:
            fences = (_single(state, own) if state.single else _written(own, streams)) or _fall_back(state)
        finally:
            say(fences)
    elif not _tell(own, streams[0], say, state.memory.synchronize):
        _after(state.memory.synchronize, say)


def _tell(own: Timeline, key: StreamKey, say: Say, synchronize: Callable[[], None]) -> bool:
    """Say that a stream will write a fence, and have it do so; False if it cannot: nothing was said."""
    try:
        return key.reachable and own.tell(key, say, synchronize)
    except PoolLimitError:
        return False


def _after(synchronize: Callable[[], None], say: Say) -> None:
    try:
        synchronize()
    finally:
        say(())


def _written(own: Timeline, streams: Iterable[StreamKey], *, wait: bool = True) -> tuple[Fence, ...]:
    """Have streams write fences; none if one cannot."""
    try:
        fences = [own.write(key, wait=wait) for key in streams]
    except (DriverError, PoolLimitError):
        return ()
    written = tuple([fence for fence in fences if fence is not None])
    return written if len(written) == len(fences) else ()


def _single(state: Held, own: Timeline) -> tuple[Fence, ...]:
    """Have one stream write for all; none if it cannot."""
    try:
        fence = _joined(state, own)
    except (DriverError, PoolLimitError):
        return ()
    return () if fence is None else (fence,)


def done_at_once(state: Held) -> tuple[Fence, ...] | None:
    """Do as `done` in a finaliser, which must not wait; None if that cannot be."""
    if state.streams is None and not state.unordered:
        return ()
    own, streams = _own(state), _streams(state)
    if own is None or (state.single and len(streams) > 1):
        return None
    return _written(own, streams, wait=False) or None


def ready(state: Held) -> Fence | None:
    """Say when the content is complete; None: it is. May wait for the device in `_fall_back`."""
    device, promise = state.memory.pool.device, state.promise
    if device[0] == _dlpack.CPU:
        before_cpu(state)
        return promise
    if promise is not None:
        # It stands alone: no stream may wait for what this process may never do.
        if state.streams is not None or state.unordered:
            _fall_back(state)
        return promise
    if state.streams is None and not state.unordered:
        if not _unreached(state):
            return None
        before_use(state, _cuda_stream.own_stream(device[1]))
    own = _own(state)
    if own is None:
        _fall_back(state)
        return None
    try:
        fence = _joined(state, own)
    except (DriverError, PoolLimitError):
        _fall_back(state)
        return None
    if fence is not None:
        # What this process itself does with the buffer later on has to wait as well.
        state.fences = (*state.fences, fence)
    return fence


def _joined(state: Held, own: Timeline) -> Fence | None:
    """Have one stream write for all, after it has waited for the others."""
    *others, last = _streams(state)
    for key in others:
        fence = own.write(key)
        if fence is not None:
            state.session.timelines.waits(own, last, own.id)
            address = own.page.on_device(key.ordinal) + 8 * fence.wd
            _cuda_stream.wait(last.ordinal, last.handle, address, fence.v)
    return own.write(last)


def _own(state: Held) -> Timeline | None:
    """Give the timeline to write, if every stream that used the memory is known and can write it from here."""
    if state.unordered and not state.named:
        return None
    streams = _streams(state)
    if not streams or len(streams) > MOST_FENCES or not all(key.reachable for key in streams):
        return None
    return state.session.timelines.streams_of(state.memory.pool.device[1])


def _streams(state: Held) -> list[StreamKey]:
    return list(state.streams) if state.streams is not None else []


def _fall_back(state: Held) -> tuple[Fence, ...]:
    """Wait until the device has done all work of this process: then no fence is needed."""
    state.memory.synchronize()
    return ()
