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
    """What has to be known of a lease; `poolbridge._session.hold.Hold` is one, and says what is what."""

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


def before_use(hold: Held, stream: Any) -> None:
    """Make a consumer's stream wait until the memory may be used, and note that it uses it.

    Parameters
    ----------
    hold
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
    device = hold.memory.pool.device
    key = stream_key(device, stream)
    if device[0] == _dlpack.CPU:
        before_cpu(hold)
    elif key is None:
        hold.unordered = True
    elif hold.streams is None:
        if hold.fences or hold.alone:
            _make_wait(hold, key)
        hold.streams = {key: None}
    elif key not in hold.streams:
        if hold.fences or hold.alone:
            _make_wait(hold, key)
        hold.streams[key] = None


def before_cpu(hold: Held) -> None:
    """Make the CPU wait until the memory may be used; raises as `wait` does."""
    if hold.fences or hold.alone:
        wait(hold)


def name_stream(hold: Held, stream: Any) -> None:
    """Note a stream that a user names; whatever used the memory otherwise is vouched for."""
    before_use(hold, stream)
    hold.named = True


def name_event(hold: Held, event: Event) -> None:
    """Have what comes after the lease come after an event; what used the memory otherwise is vouched for."""
    ordinal = hold.memory.pool.device[1]
    key = next((key for key in reversed(_streams(hold)) if key.reachable), None)
    if key is None:
        key = StreamKey(ordinal, _cuda_stream.own_stream(ordinal))
        before_use(hold, key.handle)
    _cuda_stream.wait_for_event(ordinal, key.handle, event.handle)
    hold.named = True


def ready_event(hold: Held) -> Event | None:
    """Give the event that came with the content, opened; None if none did.

    Raises
    ------
    EventUnavailableError
        It cannot be opened here.
    """
    if hold.event is None and hold.grant.ev:
        hold.event = _event.open_event(hold.memory.pool.home[1], hold.grant.ev)
    return hold.event


def _lone_event(hold: Held) -> Event | None:
    """Give the event that has to be waited for, if there is one that no fence stands for."""
    if not hold.alone:
        return None
    check(hold)
    return ready_event(hold)


def stream_to_follow(hold: Held) -> int | None:
    """Give a stream that a consumer has to wait for whose own stream is not known; None: nothing to wait for."""
    hold.unordered = True
    if not _unreached(hold) and not hold.alone:
        return None
    ordinal = hold.memory.pool.device[1]
    stream = _cuda_stream.own_stream(ordinal)
    _make_wait(hold, StreamKey(ordinal, stream))
    return stream


def wait(hold: Held, seconds: float | None = None) -> None:
    """Wait on the CPU until the memory may be used.

    Raises
    ------
    ProducerDiedError
        The content will never be complete.
    WaitTimeoutError
        It is not complete after `seconds`; left out: after the session's time limit.
    """
    limit = hold.session.patience if seconds is None else seconds
    deadline = time.monotonic() + limit
    for fence in _unreached(hold):
        page = hold.session.timelines.page(fence.tl)
        if page is None or page.wait(fence.wd, fence.v, max(deadline - time.monotonic(), 0)):
            continue
        raise WaitTimeoutError(
            f"buffer {hold.grant.bf} is not ready after {limit:g} s: the work of another process on it goes on"
        )
    _unreached(hold)
    event = _lone_event(hold)
    if event is not None:
        event.sync(max(deadline - time.monotonic(), 0))
        hold.alone = False


def check(hold: Held) -> None:
    """Raise if the buffer's writer died before the content was complete, as far as can be told by now.

    Raises
    ------
    ProducerDiedError
        The content is incomplete.
    """
    if lost(hold):
        raise ProducerDiedError(
            f"buffer {hold.grant.bf} is incomplete: the process that wrote it died before finishing"
        )


def lost(hold: Held) -> bool:
    """Whether the content is known to be incomplete."""
    if _process.pid != hold.session.pid:
        hold.session.check_usable()  # a forked child has no pages to look at
    if not hold.lost and not hold.grant.wr:
        for fence in hold.grant.wt:
            page = hold.session.timelines.page(fence.tl)
            if page is not None and page.died(fence.wd, fence.v):
                hold.lost = True
    return hold.lost


def _unreached(hold: Held) -> tuple[Fence, ...]:
    """Give the fences that the CPU has not seen reached, and forget the others.

    A reader or an earlier writer that died has let go of the memory, which is all that a writer needs to know.
    """
    if hold.fences:
        timelines = hold.session.timelines
        left = []
        for fence in hold.fences:
            page = timelines.page(fence.tl)
            if page is None and hold.single and not hold.grant.wr:
                # The page is gone. The service knows of no reader of such a frame: nothing says whether it is complete.
                hold.session.check_usable()
                hold.lost = True
            elif page is not None and not page.reached(fence.wd, fence.v):
                left.append(fence)
        hold.fences = tuple(left)
        check(hold)
    return hold.fences


def _make_wait(hold: Held, key: StreamKey) -> None:
    """Have a stream wait for what is not reached yet."""
    event = _lone_event(hold)
    if event is not None:
        _cuda_stream.wait_for_event(key.ordinal, key.handle, event.handle)
    left = _unreached(hold)
    if not left:
        return
    timelines = hold.session.timelines
    own = timelines.streams_of(key.ordinal)
    word = own.word(key) if own is not None else None
    for fence in left:
        page = timelines.page(fence.tl)
        if page is None:
            continue
        address = page.on_device(key.ordinal) if own is not None else 0
        if own is None or not address:
            wait(hold)
            return
        if word is not None and fence.tl == own.id and fence.wd == word.index:
            continue  # the stream's own earlier work
        timelines.waits(own, key, fence.tl)
        page.settle()
        _cuda_stream.wait(key.ordinal, key.handle, address + 8 * fence.wd, fence.v)


class Follower:
    """A stream that uses the frames of a channel, one after the other, and is put in order without a hold for each.

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
            page.settle()
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


def follower(hold: Held, stream: Any) -> Follower | None:
    """Give a follower for the one stream that uses a hold's memory, if it can do without one; see `Follower`."""
    own = _own(hold)
    if own is None or hold.streams is None or len(hold.streams) != 1:
        return None
    return Follower(own, next(iter(hold.streams)), hold.session.timelines, stream)


# After it was used


def must_wait(hold: Held) -> bool:
    """Whether `ready` and `done` have to wait: for the CPU's turn, or in `_fall_back`."""
    if hold.memory.pool.device[0] == _dlpack.CPU:
        return bool(hold.fences)
    used = hold.streams is not None or hold.unordered
    return used and (hold.promise is not None or _own(hold) is None)


def done(hold: Held, say: Say) -> None:
    """Say when this process's work on the memory is done.

    Parameters
    ----------
    hold
        The lease.
    say
        Called once, whatever happens, with fences, or with none if it is done: `done` waited for the device then. It
        must neither wait nor raise.
    """
    if hold.streams is None and not hold.unordered:
        say(())
        return
    own, streams = _own(hold), _streams(hold)
    if own is None:
        _after(hold.memory.synchronize, say)
    elif len(streams) > 1:
        fences: tuple[Fence, ...] = ()
        try:
            fences = (_single(hold, own) if hold.single else _written(own, streams)) or _fall_back(hold)
        finally:
            say(fences)
    elif not _tell(own, streams[0], say, hold.memory.synchronize):
        _after(hold.memory.synchronize, say)


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


def _single(hold: Held, own: Timeline) -> tuple[Fence, ...]:
    """Have one stream write for all; none if it cannot."""
    try:
        fence = _joined(hold, own)
    except (DriverError, PoolLimitError):
        return ()
    return () if fence is None else (fence,)


def done_at_once(hold: Held) -> tuple[Fence, ...] | None:
    """Do as `done` in a finaliser, which must not wait; None if that cannot be."""
    if hold.streams is None and not hold.unordered:
        return ()
    own, streams = _own(hold), _streams(hold)
    if own is None or (hold.single and len(streams) > 1):
        return None
    return _written(own, streams, wait=False) or None


def ready(hold: Held) -> Fence | None:
    """Say when the content is complete; None: it is. May wait for the device in `_fall_back`."""
    device, promise = hold.memory.pool.device, hold.promise
    if device[0] == _dlpack.CPU:
        before_cpu(hold)
        return promise
    if promise is not None:
        # It stands alone: no stream may wait for what this process may never do.
        if hold.streams is not None or hold.unordered:
            _fall_back(hold)
        return promise
    if hold.streams is None and not hold.unordered:
        if not _unreached(hold):
            return None
        before_use(hold, _cuda_stream.own_stream(device[1]))
    own = _own(hold)
    if own is None:
        _fall_back(hold)
        return None
    try:
        fence = _joined(hold, own)
    except (DriverError, PoolLimitError):
        _fall_back(hold)
        return None
    if fence is not None:
        # What this process itself does with the buffer later on has to wait as well.
        hold.fences = (*hold.fences, fence)
    return fence


def _joined(hold: Held, own: Timeline) -> Fence | None:
    """Have one stream write for all, after it has waited for the others."""
    *others, last = _streams(hold)
    for key in others:
        fence = own.write(key)
        if fence is not None:
            hold.session.timelines.waits(own, last, own.id)
            address = own.page.on_device(key.ordinal) + 8 * fence.wd
            _cuda_stream.wait(last.ordinal, last.handle, address, fence.v)
    return own.write(last)


def _own(hold: Held) -> Timeline | None:
    """Give the timeline to write, if every stream that used the memory is known and can write it from here."""
    if hold.unordered and not hold.named:
        return None
    streams = _streams(hold)
    if not streams or len(streams) > MOST_FENCES or not all(key.reachable for key in streams):
        return None
    return hold.session.timelines.streams_of(hold.memory.pool.device[1])


def _streams(hold: Held) -> list[StreamKey]:
    return list(hold.streams) if hold.streams is not None else []


def _fall_back(hold: Held) -> tuple[Fence, ...]:
    """Wait until the device has done all work of this process: then no fence is needed."""
    hold.memory.synchronize()
    return ()
