"""Implements consumers. A consumer takes frames of a channel, acknowledges or requeues them, and releases them."""

from __future__ import annotations

import threading
import time
from _thread import start_new_thread
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from poolbridge._order import fences as _fences
from poolbridge._session.flow import Ask, Flow, Sleep
from poolbridge._session.grants import map_state, mapped_state
from poolbridge._session.membership import Membership, join
from poolbridge._sys import process as _process
from poolbridge._sys.deferred import Flag
from poolbridge._sys.native import NATIVE
from poolbridge._wire.messages import ChannelIdentity, Doubt, Fence, Grant, Join, Map, MapReply, Tensor
from poolbridge.errors import (
    ClientClosedError,
    ClosedError,
    ContentFailedError,
    ForkError,
    FrameCorruptError,
    InvalidArgumentError,
    LeaseReleasedError,
    NoProducersError,
    PoolbridgeError,
    PoolLimitError,
    ProtocolError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from poolbridge import _native
    from poolbridge._memory.session_blocks import SessionBlock
    from poolbridge._order.timeline import Timeline
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._session.session import Session

_T = TypeVar("_T")

# How many frames may share a fence: the channel's capacity divided by `_PLACES`, but at most `_MOST_UNFENCED`.
_PLACES: Final = 8
_MOST_UNFENCED: Final = 16
# How many seconds `soon` polls for another frame. If the frame comes, it can share a fence with earlier frames.
_SOON: Final = 20e-6
# The service makes no grant for a frame, so the consumer makes a grant itself. The ids of such grants are negative.
_ids = count(-1, -1)
_FRAME: Final = getattr(NATIVE, "Frame", None)  # None without the native module: then there are no channels


# How a producer left, by the number in the roster; see docs/streams.md.
_ENDINGS: Final = ("", "left", "lost", "error", "closed", "shutdown")
_SAID: Final = {
    "": "takes part",
    "left": "left",
    "lost": "was killed, or ended without closing its client",
    "closed": "was ended by an operator",
}
# How many producers that left an error names.
_MOST_NAMED: Final = 8

# The greatest number of arrays that a consumer keeps for frames of several arrays.
_MOST_ARRAYS: Final = 16384


class Kept:
    """An array that the consumer uses for each frame of one producer with one block and description.

    `key` says how the array was made.
    """

    __slots__ = ("array", "key", "layout", "tensor")

    def __init__(self, array: Any, tensor: Tensor, layout: bytes, key: object) -> None:
        self.array = array
        self.tensor = tensor
        self.layout = layout
        self.key = key


def fences_of(frame: _native.Frame) -> tuple[Fence, ...]:
    """Return the fences that must be reached before the program uses a frame: one fence or no fence."""
    value, timeline = frame.value, frame.timeline
    return (Fence(timeline, frame.word, value),) if value and timeline else ()


class Presence:
    """Who publishes in a channel, as a consumer sees it. What was seen last stays when the consumer is closed."""

    def __init__(self, native: _native.Consumer) -> None:
        self._native = native
        self._abandoned, self._newest = 0, 0
        self._producers: list[tuple[int, str]] = []

    def producers(self) -> list[tuple[int, str]]:
        """Return the process id of each producer, and how it left; see `Subscription.producers`."""
        with suppress(ClosedError, ForkError):
            self._abandoned, found, self._newest = self._native.producers
            self._producers = [(pid, _ENDINGS[min(ending, len(_ENDINGS) - 1)]) for pid, ending in found]
        return self._producers

    def text(self) -> str:
        """Say who publishes in the channel, or how the producers left, for an error text."""
        found = self.producers()
        if self._abandoned:
            left = [f"pid {pid} {_SAID.get(ending, 'was ended by the service')}" for pid, ending in found[:_MOST_NAMED]]
            left += [f"and {len(found) - _MOST_NAMED} more"] * (len(found) > _MOST_NAMED)
            return f"no producer is left{_since(self._abandoned)}: {', '.join(left)}"
        present = [str(pid) for pid, ending in found if not ending]
        return f"producers are there: pid {', '.join(present)}" if present else "no producer has joined yet"

    def silence(self) -> str:
        """Say since when no frame came, and who publishes in the channel, for an error text."""
        present = self.text()
        return f"no frame came{_since(self._newest)}; {present}"


class Credit:
    """Says whether a consumer may take another frame: at most `most` frames may be unsettled."""

    def __init__(self, most: int) -> None:
        self.most = most
        # Ids of the grants whose frames are neither acknowledged nor requeued. The session's lock guards this set.
        self.unsettled: set[int] = set()
        self.over = False  # whether no frame will come any more
        self._changed: Flag | None = None

    @property
    def left(self) -> bool:
        """Whether another frame may be taken."""
        return len(self.unsettled) < self.most

    def wait(self, seconds: float | None) -> None:
        """Wait until credit is left or `over` is true, but at most `seconds` seconds (None: no limit)."""
        self._changed = changed = Flag()
        try:
            if not self.left and not self.over:
                changed.wait(seconds)
        finally:
            if self._changed is changed:  # a thread of a later call may wait, too
                self._changed = None

    def tell(self) -> None:
        """Wake the thread that waits, because a frame was settled or no frame will come any more."""
        changed = self._changed
        if changed is not None:
            changed.set()


class Hand:
    """The frames that a consumer has in hand in shared memory."""

    def __init__(self, session: Session, native: _native.Consumer) -> None:
        self._session = session
        self._native = native
        self.closes = False  # whether the native consumer is closed when no frame is in hand any more

    def let_go(self, number: int, fences: tuple[Fence, ...] = (), *, back: bool) -> None:
        """Release a frame without waiting, or requeue it if `back`. `fences` has one unreached fence or none."""
        word, value = (fences[0].word, fences[0].value) if fences else (0, 0)
        own = self._session.timelines.own
        if self._end(number, word, value, own, back=back) or own is None:
            return
        after = partial(self._end_after, own, number, word, value, back=back)
        try:
            start_new_thread(after, ())  # `later` has few threads, which might wait for what this frame holds up
        except RuntimeError:  # this process may start no more threads
            self._session.later(after)

    def _end(self, number: int, word: int, value: int, own: Timeline | None, *, back: bool) -> bool:
        """Release a frame. Return False if its slot has the fence of another frame, which is not reached yet."""
        try:
            end = self._native.requeue if back else self._native.release
            result = end(number, word, value)
            if result is NATIVE.Condition.FENCE_PENDING and own is not None:
                stored = self._native.stored(number)
                if own.page.reached(*stored):
                    result = end(number, word, value, *stored)
        except (ClosedError, LeaseReleasedError, ForkError):
            return True
        if result is NATIVE.Condition.FENCE_PENDING:
            return False
        if self.closes and not self._native.in_hand:
            self._native.close()
        return True

    def _end_after(self, own: Timeline, number: int, word: int, value: int, *, back: bool) -> None:
        """Wait until the frame's own fence is reached, and then release the frame without a fence.

        The slot has the fence of another frame, which must stay. To wait for that fence instead would not be enough:
        meanwhile the slot may get the fence of a third frame.
        """
        while self._session.ended is None and not own.page.wait(word, value, 1.0):
            pass
        self._end(number, 0, 0, own, back=back)


class Consumer(Membership):
    """A session's consumer in one channel.

    Parameters
    ----------
    session, channel, native, member
        See `Membership`.
    credit
        How many taken frames may be neither acknowledged nor requeued at a time.
    full
        What the channel does when it is full because this consumer is behind. "" stands for the channel's own setting.
    auto
        Whether the consumer acknowledges all taken frames when the program asks for the next frame.
    no_producers
        See `poolbridge._sys.literals.NoProducers`.

    Attributes
    ----------
    queue
        Whether the channel is a queue.
    most_unfenced
        How many used frames the consumer may keep before it makes one fence for all of them and releases them.
    ended
        Whether no frame will come any more.
    error
        The error that says why no frame will come; None if the channel or the subscription was closed.
    left
        Whether the consumer has left the channel.
    fails
        Whether the end of the last producer is an error.
    spin
        See `Subscription.spin`.
    receiving
        Whether a thread or a task waits for a frame, or makes the lease state of the offered frame.
    early
        Results of the native `take`, in order, that are not frames and that `receive` has not used yet. A cancelled
        `receive` leaves its result here. If the result is a frame, it is in `offered` of the native consumer instead.
        The frame stays in `offered` until the program has the frame, even if a signal handler raises an error before
        that.
    """

    native: _native.Consumer

    def __init__(
        self,
        session: Session,
        channel: ChannelIdentity,
        native: _native.Consumer,
        member: int,
        *,
        credit: int,
        full: str,
        auto: bool,
        no_producers: str,
    ) -> None:
        super().__init__(session, channel, "consumer", native, member)
        native.needs_producers = no_producers != "wait"
        self.fails = no_producers == "fail"
        self.credit = Credit(credit)
        self.presence = Presence(native)
        self.auto = auto
        self.queue = channel.mode == "queue"
        # Frames share a fence only if the channel is a broadcast that drops no frames. The frames of a queue are
        # acknowledged one by one. If the channel may drop frames, producers do not wait for a consumer that keeps
        # frames, and need another block for each kept frame.
        keeps = not self.queue and (full or channel.full) in {"block", "fail"}
        self.most_unfenced = min(channel.capacity // _PLACES, _MOST_UNFENCED) if keeps else 0
        self._kept_arrays = 0  # of frames of several arrays
        self.ended = False
        self.error: PoolbridgeError | None = None
        self.left = False
        self.early: deque[Any] = deque()
        self.spin: float | None = None
        self.receiving = False
        self._undecided: list[tuple[Grant, tuple[Fence, ...]]] = []
        self._looking = threading.Lock()
        self._hand = Hand(session, native)
        self._lone_uses = session.lone_uses.setdefault(channel.pool, {})
        self._frames: dict[int, _native.Frame] = {}  # the frames that have a grant, by its id
        self.granted: Grant | None = None  # the grant that was made last
        self._dropped: int | None = None  # number of the frame that was offered when the consumer left
        self._counted: set[int] = set()  # ids of the grants that are counted as leases of their blocks
        self.requeued: set[int] = set()  # numbers of frames that were requeued while in hand; some are not any more

    def _add(self, seat: int, member: int, fd: int) -> None:
        self.native.add_track(seat, member, fd)

    # Taking

    def check_turn(self) -> None:
        """Check that no other thread or task is taking a frame: both would get the same frame.

        Raises
        ------
        InvalidArgumentError
            Another thread or task is taking a frame.
        """
        if self.receiving:
            raise InvalidArgumentError(
                "another call of this subscription waits: subscribe once for each thread or task"
            )
        self.native.check_turn()

    def alone(self, flow: Flow[_T]) -> Flow[_T]:
        """Run `flow`. Until `flow` ends, other calls of the subscription raise `InvalidArgumentError`."""
        self.check_turn()
        self.receiving = True
        try:
            return (yield from flow)
        finally:
            self.receiving = False

    def at_once(self) -> _native.Frame | None:
        """Return the next frame if it can be taken without waiting; else None."""
        if self.early or self.receiving or self._looking.locked() or self.ended or not self.credit.left:
            return None  # in the first three cases, the caller must call `receive`
        return self._try(0.0)

    def soon(self) -> _native.Frame | None:
        """Return the next frame if it comes within a few microseconds; else None. The consumer must have credit."""
        native, spin = self.native, self.spin
        seconds = min(spin, _SOON) if spin is not None else 0.0 if native.waits_asleep else _SOON
        return None if self.ended else self._try(seconds)

    def _try(self, seconds: float) -> _native.Frame | None:
        try:
            got: Any = self.native.take(seconds, seconds)
        except ClosedError:
            return None
        except ProtocolError as error:
            self.lose(error)
            return None
        if type(got) is _FRAME:
            frame: _native.Frame = got
            return frame
        self._put_aside(got)
        return None

    def _put_aside(self, got: Any) -> None:
        """Keep a result of `take` that is no frame for `receive`, unless it is a timeout."""
        if got is not NATIVE.Condition.TIMEOUT:
            self.early.append(got)

    def swap(self, number: int) -> _native.Frame | None:
        """Release the frame `number`, wait for the next frame and return it; None if the caller must call `receive`.

        The frame `number` has no grant, no frame is unsettled, and `requeued` is empty. Only the thread of a blocking
        subscription calls this method.
        """
        try:
            got: Any = self.native.swap(number, None, self.spin)
        except (ClosedError, LeaseReleasedError):
            return None
        except ProtocolError as error:
            self.lose(error)
            return None
        if type(got) is _FRAME:
            frame: _native.Frame = got
            return frame
        self._put_aside(got)
        return None

    def look(self, seconds: float | None) -> None:
        """Wait until a frame is offered, or `early` has another result of `take`."""
        with self._looking:
            if self.early or self.native.offered is not None:
                return
            try:
                got = self.native.take(seconds, self.spin)
                if type(got) is not _FRAME:  # a frame is in `offered`
                    self._put_aside(got)
            except ClosedError:
                self.early.append(NATIVE.Condition.EVICTED)
            except ProtocolError as error:
                self.lose(error)
        if self.left:
            with self.session.lock:
                self._drop_offered()

    def grant(self, frame: _native.Frame) -> Grant:
        """Make the grant of a frame, because the service makes none for frames. The frame is unsettled from now on."""
        kept = frame.object
        if kept is not None:
            tensor = kept.tensor
        else:
            dtype, shape, strides, offset = frame.description or ("", (), None, 0)
            tensor = Tensor(dtype=dtype, shape=shape, strides=strides or (), offset=offset)
        grant = Grant(
            id=next(_ids),
            buffer=frame.buffer,
            generation=0,
            pool=self.channel.pool,
            block=frame.block,
            block_nbytes=0,
            nbytes=frame.nbytes,
            base=frame.base,
            tensor=tensor,
            wait=fences_of(frame),
            event=frame.event or b"",
        )
        session = self.session
        with session.lock:
            if self.left:  # another thread has closed the subscription, which has released the frame
                raise ClosedError("this subscription was closed")
            if grant.wait:
                session.timelines.pin(grant.wait)
            self.granted = grant
            self._frames[grant.id] = frame
            self.credit.unsettled.add(grant.id)
            block = session.core.blocks.get(grant.block)
            if block is not None:
                self._count(grant, block)
        return grant

    def _count(self, grant: Grant, block: SessionBlock) -> bool:
        """Count a frame as a lease of its block; return False if it does not lie in the block."""
        if block.pool != self.channel.pool or grant.base + grant.nbytes > block.size:
            return False
        if grant.id not in self._counted:
            block.leases += 1
            self._counted.add(grant.id)
        grant.block_nbytes, grant.generation = block.size, block.generation
        return True

    def count(self, grant: Grant) -> bool:
        """Count a frame as a lease of its block; return False if this session does not know the block.

        Raises
        ------
        ProtocolError
            The frame is larger than its block, or the block belongs to another pool.
        """
        with self.session.lock:
            block = self.session.core.blocks.get(grant.block)
            if block is not None and not self._count(grant, block):
                end = grant.base + grant.nbytes
                raise ProtocolError(
                    f"a frame that ends at byte {end} does not fit into block {block.id} of {block.size}"
                )
        return block is not None

    def layout(self, grant: Grant) -> bytes:
        """See `Taker.layout`."""
        frame = self._frames[grant.id]
        layout: bytes = frame.layout if frame.object is None else frame.object.layout
        return layout

    def learn(self, grant: Grant) -> Flow[None]:
        """Count a frame as a lease of its block. If this session does not know the block, ask for the block first."""
        while not self.count(grant):
            yield Ask(Map(channel=self.channel.id, block=grant.block), MapReply)

    def keep(self, frame: _native.Frame, kept: Kept) -> None:
        """Keep the array of a frame for later frames with the same producer, block and description."""
        with self.session.lock:
            block = self.session.core.blocks.get(frame.block)
            if block is not None and not block.recalled and not self.left:
                if kept.layout:  # the program may publish another layout with each frame
                    self._kept_arrays += len(kept.array)
                    if self._kept_arrays > _MOST_ARRAYS:
                        self.native.forget()
                        self._kept_arrays = len(kept.array)
                block.lone = True
                self.native.keep(frame.producer, frame.block, frame.description_id, kept, frame.base)

    def forget(self, block: int) -> None:
        """See `Membership.forget`."""
        try:
            self.native.forget(block)
        except ClosedError:
            pass  # the native consumer is closed: closing has dropped all arrays

    def doubt(self, grant: Grant, error: PoolbridgeError) -> FrameCorruptError:
        """Release an inconsistent frame, report it to the service, and return the error that the caller must raise."""
        frame = self._frames.get(grant.id)
        number = frame.number if frame is not None else 0
        self.native.offered = None
        with self.session.lock:
            self._end(grant, (), back=False)
        return self.report(number, error)

    def report(self, number: int, why: object) -> FrameCorruptError:
        """Tell the service which frame is inconsistent, and return the error that the caller must raise."""
        self.session.tell(Doubt(channel=self.channel.id, member=self.member, sequence=number))
        return FrameCorruptError(f"frame {number} of channel {self.channel.name!r} has failed: {why}")

    # Settling

    def asks(self) -> None:
        """Note that the program asks for the next frame. Acknowledge all taken frames, except with ``ack="manual"``."""
        if self.native.offered is not None:  # a call was interrupted before it returned this frame
            self.check_turn()
            self.ungrant()
        if not self.auto or not (self.credit.unsettled or self._undecided):
            return
        if _process.pid != self.session.pid:
            self.session.check_usable()
        with self.session.lock:
            self.decide(back=False)
            self._settle_all(back=False)

    def ungrant(self) -> None:
        """Forget the grant of the offered frame, because a call was interrupted before it returned the frame."""
        with self.session.lock:
            granted = self.granted
            if granted is not None and self._is_offered(granted):
                self._end(granted, (), back=False)

    def _is_offered(self, grant: Grant) -> bool:
        """Whether a grant's frame is still in `offered`, so that the program does not have the frame yet."""
        frame = self._frames.get(grant.id)
        return frame is not None and frame is self.native.offered and not self.left

    def settle(self, grant: Grant, *, back: bool) -> bool:
        """Acknowledge a frame, or requeue it if `back`, without releasing it. Return False if it was settled before."""
        if _process.pid != self.session.pid:
            self.session.check_usable()
        with self.session.lock:
            if grant.id not in self.credit.unsettled:
                return False
            self.credit.unsettled.remove(grant.id)
            self._settle(self._frames[grant.id].number, back=back)
            self.credit.tell()
        return True

    def _settle_all(self, *, back: bool) -> None:
        for id_ in self.credit.unsettled:
            self._settle(self._frames[id_].number, back=back)
        self.credit.unsettled.clear()

    def _settle(self, number: int, *, back: bool) -> None:
        try:
            if back:
                self.requeued.add(number)
                self.native.unclaim(number)
            else:
                self.native.ack(number)
        except (ClosedError, LeaseReleasedError):
            pass  # the frame was released already, or the consumer has ended

    def goes_back(self, grant: Grant) -> bool:
        """Whether a frame that the program drops goes back to its queue: it is of a queue and not settled."""
        return self.queue and grant.id in self.credit.unsettled

    def decide(self, *, back: bool) -> None:
        """Release the frames that the program dropped without releasing or settling them; requeue them if `back`.

        The caller holds the session's lock.
        """
        while self._undecided:
            self._end(*self._undecided[0], back=back)
            del self._undecided[0]

    # Releasing

    def end_frame(self, grant: Grant, fences: tuple[Fence, ...], *, back: bool, alone: bool) -> None:
        """Release a frame. `fences` has one unreached fence or none. The caller holds the session's lock.

        `back` says that an unsettled frame goes back to its queue. `alone` says that the program has dropped the frame
        without releasing it. If such a frame is of a queue and not settled, the frame goes back to the queue: at once
        or, with ``ack="auto"``, when the subscription ends. If the program asks for another frame before the
        subscription ends, the dropped frame is acknowledged instead.
        """
        if alone and self.goes_back(grant) and not self._is_offered(grant):
            if self.auto and not self.left and self.session.ended is None:
                self._undecided.append((grant, fences))
                return
            back = True
        self._end(grant, fences, back=back)

    def _end(self, grant: Grant, fences: tuple[Fence, ...], *, back: bool) -> None:
        # If a signal handler raises an error in this method, the caller calls the method again. So this method removes
        # an entry from a set or dict only after it has done the work that needs the entry.
        settled, frame = grant.id not in self.credit.unsettled, self._frames.get(grant.id)
        if frame is not None:
            if frame is not self.native.offered or self.left:  # else `receive` returns the frame, with a new grant
                number = frame.number
                if not settled and number in self.requeued:
                    # The program requeued this frame, then took it a second time, and has not settled it since.
                    self._settle(number, back=back)
                self._hand.let_go(number, fences, back=back and self.queue)
                if self.requeued:
                    self.requeued.intersection_update(self.native.in_hand)
            del self._frames[grant.id]
            if grant.wait:
                self.session.timelines.unpin(grant.wait)
        self.credit.unsettled.discard(grant.id)
        self.credit.tell()
        if grant.id in self._counted:
            self._counted.remove(grant.id)
            self.session.disown(grant, fences)

    def end_lones(self, frames: Iterable[_native.Frame], fences: tuple[Fence, ...] = (), *, back: bool) -> None:
        """Release frames that have no grant, all with the same fence, without waiting."""
        for fence in fences:
            self._lone_uses[fence.word] = fence.value  # the timeline's lock is held, so the value is the largest one
        for frame in frames:
            number = frame.number
            if number in self.requeued:
                self._settle(number, back=back)
            self._hand.let_go(number, fences, back=back)

    def _drop_offered(self) -> None:
        """Release the offered frame, because the program will not get it. The caller holds the session's lock."""
        frame = self.native.offered
        if frame is not None and frame not in self._frames.values():  # otherwise the frame ends with its grant
            self.native.offered, self._dropped = None, frame.number
            if frame.number in self.requeued:
                self._settle(frame.number, back=True)
            self._hand.let_go(frame.number, back=self.queue)

    def has_dropped(self, frame: _native.Frame) -> bool:
        """Whether another thread, which closed the subscription, released a frame just before it was accepted."""
        with self.session.lock:
            return self._dropped == frame.number

    # Closing

    def lose(self, error: PoolbridgeError | None) -> None:
        """Note that no frame will come any more. `error` says why; None if the channel or subscription was closed."""
        if not self.ended:
            self.error = None if error is None else type(error)(*error.args)  # without a traceback
            self.ended = self.credit.over = True
        self.credit.tell()
        self.presence.producers()  # for the time after the native consumer is closed

    def check_end(self) -> None:
        """Raise the error that says why no frame will come any more, if there is one."""
        error = self.error
        if isinstance(error, ProtocolError):
            self.session.leave(self)  # else producers would wait for a consumer that takes no more frames
        if error is not None:
            raise type(error)(*error.args)

    def leave(self) -> None:
        """Take no more frames. Frames that the program has stay usable. The caller holds the session's lock."""
        if self.left:
            return
        self.lose(None)
        self.native.leave()
        self.native.forget()
        # From now on, the thread that releases the last taken frame closes the native consumer.
        self.left = self._hand.closes = True
        self._drop_offered()
        if not self.native.in_hand:
            self.native.close()
        self.decide(back=True)

    def end(self) -> None:
        """See `Membership.end`. Frames of a queue that are not settled go back to the queue."""
        error = self.session.ended or ClientClosedError("the client is closed")
        self.lose(type(error)(*error.args))
        self.decide(back=True)
        self._settle_all(back=self.queue)
        self.leave()


def consume(
    session: Session, request: Join, *, credit: int, auto: bool, no_producers: str, wait: float | None
) -> Flow[Consumer]:
    """Join a channel as a consumer; see `join`."""
    consumer: Consumer = yield from join(
        session,
        request,
        lambda channel, native, member: Consumer(
            session, channel, native, member, credit=credit, full=request.full, auto=auto, no_producers=no_producers
        ),
        wait,
    )
    try:
        if not isinstance(consumer.native.begin(True), int):
            yield from consumer.evicted()
    except BaseException:
        session.leave(consumer)
        raise
    return consumer


def receive(consumer: Consumer, seconds: float | None) -> Flow[_native.Frame | None]:
    """Wait for the next frame, take it and return it; return None if no frame will come any more.

    Raises
    ------
    InvalidArgumentError
        Another thread or task is taking a frame of this subscription.
    """
    return consumer.alone(_receive(consumer, seconds))


def _receive(consumer: Consumer, seconds: float | None) -> Flow[_native.Frame | None]:
    session, condition = consumer.session, NATIVE.Condition
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        if consumer.ended:
            consumer.check_end()
            return None
        session.check_usable()
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        got: Any = condition.TIMEOUT
        if not consumer.credit.left:
            yield Sleep(consumer.credit.wait, left)
        else:
            frame = consumer.native.offered
            if frame is None and not consumer.early:
                yield Sleep(consumer.look, left)
                frame = consumer.native.offered
            if frame is not None:
                return frame
            if consumer.early:
                got = consumer.early.popleft()
        if got is condition.UNKNOWN_MEMBER:
            yield from consumer.meets(left)
        elif got is condition.UNDELIVERABLE:
            number, deliveries = consumer.native.failed, consumer.native.spent
            session.tell(
                Doubt(channel=consumer.channel.id, member=consumer.member, sequence=number, deliveries=deliveries)
            )
            continue
        elif got is not condition.TIMEOUT:
            yield from _end_or_fail(consumer, got)
        if deadline is not None and time.monotonic() >= deadline:
            why = consumer.presence.silence()
            if not consumer.credit.left:
                why = (
                    "as many frames are not acknowledged as its credit allows: acknowledge some, by ack() or release(),"
                    " or subscribe with a larger credit="
                )
            raise WaitTimeoutError(f"channel {consumer.channel.name!r}, after {seconds:g} s: {why}")


def _since(nanoseconds: int) -> str:
    return f" since {datetime.fromtimestamp(nanoseconds // 10**9, UTC):%H:%M:%S UTC}" if nanoseconds else ""


def _end_or_fail(consumer: Consumer, got: Any) -> Flow[None]:
    """Handle a result of `take` that is no frame: note the end of the channel, or raise the result's error."""
    condition = NATIVE.Condition
    if got is condition.END:
        consumer.lose(None)
    elif got is condition.ABANDONED:
        text = f"channel {consumer.channel.name!r} is not closed, and {consumer.presence.text()}"
        consumer.lose(NoProducersError(text) if consumer.fails else None)
        consumer.session.leave(consumer)  # else a producer that comes later would wait for this consumer
    elif got is condition.DESTROYED:
        consumer.lose(consumer.destroyed())
    elif got is condition.FAILED:
        why = next(iter(consumer.unmapped.values()), "what its producer wrote about it cannot be true")
        raise consumer.report(consumer.native.failed, why)
    elif got is condition.HANDS_FULL:
        raise PoolLimitError(
            f"256 frames of channel {consumer.channel.name!r} are in hand: drop or release some of them and "
            "their arrays"
        )
    elif not consumer.ended:
        yield from consumer.evicted()


def claim(consumer: Consumer, frame: _native.Frame) -> LeaseState | None:
    """Make the `LeaseState` for a taken frame; return None if the caller must run `map_claimed`, which may wait.

    The caller empties `offered` when the program has the frame.

    Raises
    ------
    InvalidArgumentError
        Another thread or task is taking a frame of this subscription.
    ContentFailedError
        The content will never be complete. When the program asks again, it gets the next frame.
    """
    consumer.check_turn()
    consumer.receiving = True  # because a finaliser or a signal handler may ask for a frame, too
    try:
        state = mapped_state(consumer.session, consumer.grant(frame), consumer)
        if state is not None and (state.lost or state.fences):
            _check_content(consumer, frame, state)
    except BaseException:
        consumer.ungrant()
        raise
    else:
        return state
    finally:
        consumer.receiving = False


def map_claimed(consumer: Consumer, frame: _native.Frame) -> Flow[LeaseState]:
    """Make the `LeaseState` for a frame whose memory, or the pages of its fences, must first be mapped; see `claim`."""
    return consumer.alone(_map_claimed(consumer, frame))


def _map_claimed(consumer: Consumer, frame: _native.Frame) -> Flow[LeaseState]:
    try:
        state = yield from map_state(consumer.session, cast("Grant", consumer.granted), consumer)
        _check_content(consumer, frame, state)
    except BaseException:
        consumer.ungrant()
        raise
    else:
        return state


def _check_content(consumer: Consumer, frame: _native.Frame, state: LeaseState) -> None:
    try:
        _fences.check(state)
    except ContentFailedError as error:
        consumer.native.offered = None
        raise type(error)(f"frame {frame.number}: {error}") from None
