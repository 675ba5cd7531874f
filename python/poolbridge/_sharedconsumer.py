"""Consumers of shared channels: taking frames, and letting go of them."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from poolbridge._channel_messages import Frame as Notice
from poolbridge._errors import ClientClosedError, ClosedError, ForkError, LeaseReleasedError, ProtocolError
from poolbridge._feed import Feed
from poolbridge._membership import NATIVE, Membership
from poolbridge._messages import Channel, Grant, Tensor, Ticket
from poolbridge._operations import Ask, Flow
from poolbridge._shared_messages import Map, MapReply

if TYPE_CHECKING:
    from poolbridge import _native
    from poolbridge._session import Session

_LEAST_SLOTS: Final = 64
# What stands for a lease here: the service grants none for frames of shared memory.
_ids = count(-1, -1)


class Kept:
    """An array that was made once for the frames of a producer in a block, and what it was made of and by."""

    __slots__ = ("array", "tensor", "wrap")

    def __init__(self, array: Any, tensor: Tensor, wrap: Any) -> None:
        self.array = array
        self.tensor = tensor
        self.wrap = wrap


class SharedConsumer(Membership):
    """A session's consumer in one channel.

    Parameters
    ----------
    session, channel, native, member
        See `Membership`.
    feed
        What is known of its frames that are not settled.
    credit
        How many these may be at a time.

    Attributes
    ----------
    early
        What was taken for one who did not wait for it any more, in order.
    """

    def __init__(
        self, session: Session, channel: Channel, native: _native.Consumer, member: int, *, feed: Feed, credit: int
    ) -> None:
        super().__init__(session, channel, "consumer", native, member)
        self.native = native
        self.feed = feed
        self.credit = credit
        self.early: deque[Any] = deque()
        self._settled: threading.Event | None = None
        self._looking = threading.Lock()
        self._slots = max(1 << (2 * channel.cp - 1).bit_length(), _LEAST_SLOTS)
        self._frames: dict[int, _native.Frame] = {}  # by the id of the grant
        self._counted: set[int] = set()  # ids of grants that count for their blocks
        self._given: set[int] = set()  # numbers that were given back while they stayed in hand
        self._tickets: dict[int, tuple[int, int]] = {}  # word and value by slot of the number
        self._left = False

    def _add(self, slot: int, member: int, fd: int) -> None:
        self.native.add_track(slot, member, fd)

    # Taking

    @property
    def has_credit(self) -> bool:
        """Whether another frame may be taken."""
        return len(self.feed.open) < self.credit

    @property
    def busy(self) -> bool:
        """Whether a frame is to be taken first that a thread has taken, or is about to take."""
        return bool(self.early) or self._looking.locked()

    def await_credit(self, seconds: float | None) -> None:
        """Wait until another frame may be taken, or none will come any more."""
        self._settled = settled = threading.Event()
        if not self.has_credit and not self.feed.ended:
            settled.wait(seconds)

    def tell_settled(self) -> None:
        """Have the thread that waits for credit look again: a frame was settled, or none will come any more."""
        settled = self._settled
        if settled is not None:
            settled.set()

    def at_once(self) -> _native.Frame | None:
        """Give the next frame if it is there and nothing else has to be done."""
        if self.busy or self.feed.ended or not self.has_credit:
            return None
        try:
            return self._taken(self.native.take(0.0))
        except ClosedError:
            return None

    def _taken(self, got: Any) -> _native.Frame | None:
        """Give what was taken if it is a frame; what came instead is for `receive`."""
        if type(got) is NATIVE.Frame:
            frame: _native.Frame = got
            return frame
        if got is not NATIVE.Condition.TIMEOUT:
            self.early.append(got)
        return None

    def swap(self, number: int) -> _native.Frame | None:
        """Let go of a frame that has no grant and give the next if it is there: the fastest way."""
        if number in self._given:
            self.end_lone(number, back=False)
            return None
        try:
            self.native.release(number)
            return self._taken(self.native.take(0.0))
        except (ClosedError, LeaseReleasedError):
            return None

    def look(self, spin: float, seconds: float | None) -> None:
        """Wait for a frame, or for what comes instead, and put it where `receive` finds it."""
        with self._looking:
            if self.early:
                return
            try:
                got: Any = self.native.take(seconds, spin)
            except ClosedError:
                got = NATIVE.Condition.EVICTED
            self.early.append(got)
        if self._left:
            self._drop_early()

    def notice(self, frame: _native.Frame) -> Notice:
        """Give a frame in the form in which the service would send it, with a lease that is none of the service's."""
        kept = frame.object
        if kept is not None:
            tensor = kept.tensor
        else:
            dtype, shape, strides, offset = frame.description or ("", (), None, 0)
            tensor = Tensor(dt=dtype, sh=shape, st=strides or (), of=offset)
        value, timeline = frame.value, frame.timeline
        grant = Grant(
            id=next(_ids),
            bf=frame.buffer,
            ge=0,
            pl=self.channel.pl,
            bl=frame.block,
            bs=0,
            n=frame.nbytes,
            t=tensor,
            wt=(Ticket(timeline, frame.word, value),) if value and timeline else (),
            ev=frame.event or b"",
        )
        if grant.wt:
            with self.session._lock:  # noqa: SLF001 - of one family
                self.session.timelines.pin(grant.wt)
        self._frames[grant.id] = frame
        self.feed.taken = frame.number
        notice = self.describe(frame)
        notice.l = grant
        return notice

    def describe(self, frame: _native.Frame) -> Notice:
        """Give what is known of a frame as the service would tell it, without a lease."""
        return Notice(sb=self.feed.id, sq=frame.number, ts=frame.time, mt=frame.meta, dr=frame.missed)

    def count(self, grant: Grant) -> bool:
        """Count a frame for its block; False if this session does not know the block.

        Raises
        ------
        ProtocolError
            The frame is larger than its block.
        """
        with self.session._lock:  # noqa: SLF001 - of one family
            block = self.session.core.blocks.get(grant.bl)
            if block is None:
                return False
            if grant.n > block.size or block.pool != self.channel.pl:
                raise ProtocolError(f"a buffer of {grant.n} bytes does not fit into block {block.id} of {block.size}")
            if grant.id not in self._counted:
                block.leases += 1
                self._counted.add(grant.id)
            grant.bs, grant.ge = block.size, block.generation
        return True

    def learn(self, grant: Grant) -> Flow[None]:
        """Ask how to map a frame's block, if this session does not know it, and count the frame for it."""
        while not self.count(grant):
            yield Ask(Map(ch=self.channel.id, bl=grant.bl), MapReply)

    def frame(self, grant: Grant) -> _native.Frame | None:
        """Give the frame that a grant stands for, while it is in hand."""
        return self._frames.get(grant.id)

    def keep(self, frame: _native.Frame, kept: Kept) -> None:
        """Keep an array for the frames of a producer in a block with a description."""
        with self.session._lock:  # noqa: SLF001
            block = self.session.core.blocks.get(frame.block)
            if block is not None and not block.recalled and not self._left:
                self.native.keep(frame.producer, frame.block, frame.description_id, kept)

    def forget(self, block: int) -> None:
        """See `Membership.forget`."""
        try:
            self.native.forget(block)
        except ClosedError:
            pass  # with all that was kept

    # Letting go

    def settle(self, id_: int, *, back: bool) -> None:
        """Acknowledge the frame of a grant, or give it back; it stays in hand. The session's lock is held."""
        frame = self._frames.get(id_)
        if frame is not None:
            self._settle(frame.number, back=back)

    def _settle(self, number: int, *, back: bool) -> None:
        try:
            if back:
                self._given.add(number)
                self.native.give_back(number)
            else:
                self.native.ack(number)
        except (ClosedError, LeaseReleasedError):
            pass  # it has ended otherwise

    def release(self, grant: Grant, tickets: tuple[Ticket, ...], *, settled: bool, back: bool) -> bool:
        """Let go of the frame of a grant; gives whether it counted for its block. The session's lock is held."""
        frame = self._frames.get(grant.id)
        if frame is not None:
            if not settled and frame.number in self._given:
                self.settle(grant.id, back=back)  # it is in hand twice: which one ends has to be said
            del self._frames[grant.id]
            self.session.timelines.unpin(grant.wt)
            self.let_go(frame.number, tickets, back=back and self.feed.queue)
            if frame.number in self._given and all(other.number != frame.number for other in self._frames.values()):
                self._given.discard(frame.number)
        if grant.id not in self._counted:
            return False
        self._counted.remove(grant.id)
        return True

    def end_lone(self, number: int, tickets: tuple[Ticket, ...] = (), *, back: bool) -> None:
        """Let go of a frame that has no grant."""
        if number in self._given:
            self._settle(number, back=back)
        self.let_go(number, tickets, back=back)

    def let_go(self, number: int, tickets: tuple[Ticket, ...] = (), *, back: bool) -> None:
        """Let go of a frame, after which the work of `tickets`, one at most, may go on; never waits."""
        word, value = (tickets[0].wd, tickets[0].v) if tickets else (0, 0)
        if self._end_frame(number, word, value, back=back) is NATIVE.Condition.TICKET_PENDING:
            self.session.later(partial(self._end_after, number, word, value, back=back))

    def _end_frame(self, number: int, word: int, value: int, *, back: bool, settled: bool = False) -> Any:
        try:
            end = self.native.requeue if back else self.native.release
            result = end(number, word, value, settled)
        except (ClosedError, LeaseReleasedError, ForkError):
            return None
        if value and result is not NATIVE.Condition.TICKET_PENDING:
            self._tickets[number & (self._slots - 1)] = word, value
        if self._left and not self.native.in_hand:
            self.native.close()
        return result

    def _end_after(self, number: int, word: int, value: int, *, back: bool) -> None:
        """Let go of a frame once the ticket is reached that its own would take the place of."""
        before, own = self._tickets.get(number & (self._slots - 1)), self.session.timelines.own
        while before is not None and own is not None and not own.page.wait(*before, 1.0):
            pass
        self._end_frame(number, word, value, back=back, settled=True)

    def _drop_early(self) -> None:
        while self.early:
            got = self.early.popleft()
            if isinstance(got, NATIVE.Frame):
                self.let_go(got.number, back=self.feed.queue)

    # The end

    def leave(self) -> None:
        """Take no more; what is in hand stays so. The session's lock is held."""
        if self._left:
            return
        self._left = True
        self.tell_settled()
        self.native.leave()
        self._drop_early()
        for block in self.session.core.blocks:
            self.native.forget(block)
        if not self.native.in_hand:
            self.native.close()

    def end(self) -> None:
        """See `Membership.end`; what is not settled goes back to a queue."""
        for id_ in list(self.feed.open):
            self.settle(id_, back=self.feed.queue)
        self.feed.open.clear()
        self.leave()
        error = self.session.ended or ClientClosedError("the client is closed")
        self.feed.lose(type(error)(*error.args))
