"""Arrays that are made once for each block and used again for every frame in it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

import numpy as np

from poolbridge import _dlpack, _order, _process
from poolbridge._errors import InvalidArgumentError
from poolbridge._lease import AsyncLease, Lease
from poolbridge._sharedframes import SharedFrames

if TYPE_CHECKING:
    from poolbridge._channel_messages import Frame as Notice
    from poolbridge._feed import Feed
    from poolbridge._hold import Hold
    from poolbridge._session import Session
    from poolbridge._subscription import AsyncSubscription, Subscription

# Frames that follow each other faster, in seconds, are let go of several at a time.
_QUICK = 50e-6

_clock = time.monotonic

# A block that serves ever other shapes does not keep an array for each.
_MOST_KEPT = 8


class BaseBorrowedArrays(SharedFrames):
    """What the blocking and the asyncio arrays have in common.

    Attributes
    ----------
    seq, time, time_ns, meta, dropped
        Of the frame whose array was yielded last; see `Frame`.
    """

    def __init__(self, session: Session, wrap: Callable[[Any], Any] | None, stream: Any) -> None:
        super().__init__(session, np.asarray if wrap is None else wrap, stream)
        # To be released together.
        self._spent: deque[Notice] = deque()

    def _kept(self, notice: Notice) -> Any:
        """Give the array of a frame's block and shape, if there is one and nothing has to be waited for."""
        grant: Any = notice.l
        if grant.eo or self._session.lost:
            return None
        follower = self._follower
        try:
            if (grant.wt or self._stream is not None) if follower is None else not follower.before(grant):
                return None
        except BaseException:
            if self._feed is not None:
                self._session.release_frames((notice,), self._feed, ())
            raise
        array = self._find(grant)
        if array is not None:
            self._notice = notice
        return array

    def _find(self, grant: Any) -> Any:
        block = self._session.core.blocks.get(grant.bl)
        if block is not None:
            for tensor, wrap, array in block.arrays:
                if wrap is self._wrap and tensor == grant.t:
                    return array
        return None

    def _prepare(self, notice: Notice, hold: Hold) -> Any:
        """Put the use of a frame's memory into order, and make its array if there is none."""
        if hold.memory.pool.device[0] == _dlpack.CPU:
            _order.before_cpu(hold)
        elif self._stream is None:
            raise InvalidArgumentError(f"arrays of {hold.memory.pool.device_name} need the stream= that uses them")
        else:
            _order.name_stream(hold, self._stream)
            if self._follower is None:
                self._follower = _order.follower(hold, self._stream)
        array = self._find(hold.grant)
        if array is None:
            array = self._make(hold)
        self._notice, self._hold = notice, hold
        self._keep_shared(hold.grant, array)
        return array

    def _make(self, hold: Hold) -> Any:
        twin = self._session.lend(hold)
        try:
            array = self._wrap(self._lease(twin))
        finally:
            twin.released = True
        if twin.tokens or twin.unaccounted:  # otherwise it is a copy, of this frame only
            self._session.keep_array(hold.grant, (hold.grant.t, self._wrap, array), _MOST_KEPT)
        return array

    def _lease(self, twin: Hold) -> Any:
        raise NotImplementedError

    def release(self) -> None:
        """Let go of the frame whose array was yielded last. Idempotent."""
        if _process.pid != self._session.pid:
            self._session.check_usable()
        notice, self._notice = self._notice, None
        self._let_go_shared()
        if notice is None:
            return
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.end()
        elif self._feed is not None and self._feed.shared is None:
            _release(self._session, (notice,), self._feed, self._follower)

    @property
    def _current(self) -> Notice:
        self._note_shared()
        if self._notice is None:
            raise InvalidArgumentError("there is no frame: none was asked for yet, or it was let go of")
        return self._notice

    @property
    def seq(self) -> int:
        """The frame's number in its channel, counted from 1."""
        return self._current.sq

    @property
    def time(self) -> float:
        """When it was sent, in seconds since 1970, as `time.time` counts."""
        return self._current.ts / 1e9

    @property
    def time_ns(self) -> int:
        """When it was sent, in nanoseconds since 1970, as `time.time_ns` counts."""
        return self._current.ts

    @property
    def meta(self) -> dict[str, str]:
        """What the sender said about it."""
        return self._current.mt

    @property
    def dropped(self) -> int:
        """How many frames this subscriber has missed since the last one that it got."""
        return self._current.dr

    def __del__(self) -> None:
        notice, self._notice = self._notice, None
        if self._feed is not None and self._feed.shared is not None:
            self._drop_shared()
            return
        if notice is not None and self._hold is None:
            self._spent.append(notice)
        if self._spent and self._feed is not None:
            # A queue lets go of each at once, but for the last: nobody asked for the next, so that one goes back.
            self._session.later(partial(_release, self._session, self._spent, self._feed, self._follower, back=True))


def _release(
    session: Session,
    notices: Sequence[Notice],
    feed: Feed,
    follower: _order.Follower | None,
    *,
    back: bool = False,
) -> None:
    """Let go of frames that no hold was made of, of which the stream has been given all its work."""
    release = partial(session.release_frames, notices, feed, back=back)
    if follower is None:
        release(())
    else:
        follower.done(release)


def _settle(arrays: ref[BorrowedArrays]) -> None:
    alive = arrays()
    if alive is not None:  # else its finaliser has done it
        alive._settle_meanwhile()  # noqa: SLF001 - of this module


class BorrowedArrays(BaseBorrowedArrays, Iterator[Any]):
    """Yields a channel's frames as arrays, each good until the next is asked for. Made by `Subscription.arrays`."""

    def __init__(self, subscription: Subscription, wrap: Callable[[Any], Any] | None, stream: Any) -> None:
        super().__init__(subscription._intake.session, wrap, stream)  # noqa: SLF001 - of one family
        self._subscription = subscription
        self._feed = subscription._feed  # noqa: SLF001
        self._shared = self._feed.shared
        self._asked = 0.0
        self._settles = False  # somebody will, if this does not before
        self._settling = threading.Lock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._shared is not None:
            frame = self._swap()
            if frame is None:
                self._release_shared()
                frame = self._subscription._next_shared(None)  # noqa: SLF001 - of one family
            if frame is None:
                raise StopIteration
            array = self._quick(frame)
            if array is None:
                notice = self._shared.notice(frame)
                array = self._prepare(notice, self._subscription._claim(notice))  # noqa: SLF001
            return array
        now = _clock()
        asked, self._asked = self._asked, now
        if self._notice is not None:
            self._pass(quick=now - asked < _QUICK)
        elif _process.pid != self._session.pid:
            self._session.check_usable()
        notice = self._subscription._next(None)  # noqa: SLF001 - of one family
        array = self._kept(notice)
        if array is None:
            array = self._prepare(notice, self._subscription._claim(notice))  # noqa: SLF001
        return array

    def _pass(self, *, quick: bool) -> None:
        """Let go of the frame before: together with others, if they follow each other closely."""
        feed, follower, notice = self._subscription._feed, self._follower, self._notice  # noqa: SLF001
        if self._hold is not None or _process.pid != self._session.pid:
            self.release()
            return
        assert notice is not None  # noqa: S101 - for the type checker: the caller has looked
        self._notice = None
        spent = self._spent
        now = (
            not quick
            or not feed.frames
            or len(spent) + 1 >= feed.few
            or feed.queue  # to whom a release says that the frame was dealt with
            or (follower is not None and not follower.anywhere)
        )
        if now and not spent and not self._settling.locked():
            _release(self._session, (notice,), feed, follower)
            return
        spent.append(notice)
        if now:
            self._settle()
        elif not self._settles:
            self._settles = True
            self._session.settle_soon(partial(_settle, ref(self)))

    def _settle_meanwhile(self) -> None:
        """Do as `_settle`, at any time and in any thread."""
        self._settles = False
        if self._follower is None or not self._follower.recorded:
            self._settle()  # else who asks for the next frame, or releases this one, does

    def _settle(self) -> None:
        """Release the frames that were left to be released together; what another thread began is done then as well."""
        with self._settling:
            spent = []
            while self._spent:
                spent.append(self._spent.popleft())
            if spent:
                # What was taken was used before the ticket is written, by any thread.
                _release(self._session, spent, self._subscription._feed, self._follower)  # noqa: SLF001

    def release(self) -> None:
        """Let go of the frame whose array was yielded last. Idempotent."""
        if _process.pid != self._session.pid:
            self._session.check_usable()  # before a lock is taken that a thread of the parent may have had
        if self._spent or self._settling.locked():
            self._settle()
        super().release()

    def _lease(self, twin: Hold) -> Lease:
        return Lease(self._subscription._client, twin)  # noqa: SLF001


class AsyncBorrowedArrays(BaseBorrowedArrays, AsyncIterator[Any]):
    """Yields a channel's frames as arrays, each good until the next is asked for; see `AsyncSubscription.arrays`."""

    def __init__(self, subscription: AsyncSubscription, wrap: Callable[[Any], Any] | None, stream: Any) -> None:
        super().__init__(subscription._intake.session, wrap, stream)  # noqa: SLF001 - of one family
        self._subscription = subscription

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        self.release()
        subscription = self._subscription
        self._feed = await subscription._start()  # noqa: SLF001
        if self._feed.shared is not None:
            self._shared = self._feed.shared
            frame = await subscription._next_shared(None)  # noqa: SLF001
            if frame is None:
                raise StopAsyncIteration
            array = self._quick(frame)
            if array is None:
                notice = self._shared.notice(frame)
                array = self._prepare(notice, await subscription._claim(notice))  # noqa: SLF001
            return array
        notice = await subscription._next(None)  # noqa: SLF001
        array = self._kept(notice)
        if array is None:
            array = self._prepare(notice, await subscription._claim(notice))  # noqa: SLF001
        return array

    def _lease(self, twin: Hold) -> AsyncLease:
        return AsyncLease(self._subscription._client, twin)  # noqa: SLF001
