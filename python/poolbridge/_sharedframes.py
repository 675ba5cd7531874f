"""Arrays of frames of shared memory that are made once: no object of Python is made for a frame whose array exists."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from poolbridge._messages import Ticket
from poolbridge._sharedconsumer import Kept

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolbridge import _native, _order
    from poolbridge._channel_messages import Frame as Notice
    from poolbridge._feed import Feed
    from poolbridge._hold import Hold
    from poolbridge._messages import Grant
    from poolbridge._session import Session
    from poolbridge._sharedconsumer import SharedConsumer


class _Order:
    """What a stream waits for before it uses a frame, in the form of a grant."""

    __slots__ = ("wt",)

    def __init__(self, frame: _native.Frame) -> None:
        timeline, value = frame.timeline, frame.value
        self.wt = (Ticket(timeline, frame.word, value),) if value and timeline else ()


class SharedFrames:
    """The part of borrowed arrays that knows frames of shared memory."""

    def __init__(self, session: Session, wrap: Callable[[Any], Any], stream: Any) -> None:
        self._session = session
        self._wrap = wrap
        self._stream = stream
        self._feed: Feed | None = None
        self._notice: Notice | None = None
        self._hold: Hold | None = None
        self._follower: _order.Follower | None = None
        self._shared: SharedConsumer | None = None
        # A frame whose array existed: it has neither a notice nor a hold.
        self._frame: _native.Frame | None = None

    def _swap(self) -> _native.Frame | None:
        """Let go of the frame whose array was yielded last and take the next, where that is all there is to do."""
        frame, shared = self._frame, self._shared
        if frame is None or shared is None or self._follower is not None or shared.busy or shared.feed.open:
            return None
        self._frame = self._notice = None
        return shared.swap(frame.number)

    def _quick(self, frame: _native.Frame) -> Any:
        """Give the array of a frame, if there is one and nothing has to be waited for."""
        kept, follower = frame.object, self._follower
        if kept is None or kept.wrap is not self._wrap or self._session.lost:
            return None
        self._frame = frame
        try:
            if follower is not None:
                known = follower.before(_Order(frame))  # type: ignore[arg-type] # of the grant only the tickets are looked at
            else:
                known = self._stream is None and (not frame.value or self._complete(_Order(frame)))
        except BaseException:
            self._let_go_shared()
            raise
        if known:
            return kept.array
        self._frame = None
        return None

    def _complete(self, order: _Order) -> bool:
        """Whether the CPU can use a frame now."""
        for ticket in order.wt:
            page = self._session.timelines.page(ticket.tl)
            if page is None or not page.reached(ticket.wd, ticket.v) or page.died(ticket.wd, ticket.v):
                return False
        return True

    def _keep_shared(self, grant: Grant, array: Any) -> None:
        """Keep an array that was made, for the frames to come with the same block and description."""
        shared = self._shared
        frame = shared.frame(grant) if shared is not None else None
        block = self._session.core.blocks.get(grant.bl)
        if shared is None or frame is None or block is None:
            return
        if any(kept is array for _, _, kept in block.arrays):
            shared.keep(frame, Kept(array, grant.t, self._wrap))

    def _note_shared(self) -> None:
        """Tell of a frame what a notice tells, once somebody asks."""
        if self._frame is not None and self._notice is None and self._shared is not None:
            self._notice = self._shared.describe(self._frame)

    def _release_shared(self) -> None:
        """Let go of the frame whose array was yielded last, which acknowledges it."""
        if self._frame is not None:
            self._let_go_shared()
        elif self._hold is not None:
            hold, self._hold = self._hold, None
            hold.end()
        self._notice = None

    def _let_go_shared(self) -> None:
        frame, self._frame = self._frame, None
        if frame is None or self._shared is None:
            return
        self._notice = None
        if self._follower is None:
            self._shared.end_lone(frame.number, back=False)
        else:
            self._follower.done(partial(self._shared.end_lone, frame.number, back=False))

    def _drop_shared(self) -> None:
        """Let go of the frame in a finaliser. One of a queue goes back: nobody asked for the next."""
        frame, self._frame, shared = self._frame, None, self._shared
        if frame is None or shared is None:
            return
        back = shared.feed.queue
        if self._follower is None:
            shared.end_lone(frame.number, back=back)
        else:
            self._session.later(partial(self._follower.done, partial(shared.end_lone, frame.number, back=back)))
