"""A session: the protocol's state, the mappings that belong to it, and the leases that use them.

The blocking and the asyncio client are both thin drivers around this; it never waits for the network itself.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ReferenceType, ref

from msgspec import UnsetType

from poolbridge import _errors, _order, _process
from poolbridge._channel_messages import Ack, Credit, Forget, Seal, Unsubscribe
from poolbridge._errors import (
    ClientClosedError,
    ConnectionLostError,
    ForkError,
    PoolbridgeError,
    ProtocolError,
)
from poolbridge._feed import Feed
from poolbridge._messages import Dropped, Release, Reply
from poolbridge._packet import MAX_ARRAY
from poolbridge._ring import SIZE, Ring
from poolbridge._session_members import SessionMembers
from poolbridge._shared_messages import Wanted

if TYPE_CHECKING:
    from poolbridge._channel_messages import Frame
    from poolbridge._hold import Hold
    from poolbridge._known import Call, KnownBlock
    from poolbridge._messages import Grant, Request, Ticket
    from poolbridge._transport import Transport

_OUTBOX_MAX = 65_536
_PATIENCE = 10.0
_RING_FILES = 2


class Driver(Protocol):
    """What carries a session: a thread, or an event loop."""

    def want_write(self) -> None:
        """Call `Session.flush` when the socket takes packets again; never waits."""

    def ringing(self) -> None:
        """Look into the ring that the transport has within some 10 ms, and settle if anybody asks that; never waits."""

    def background(self, work: Callable[[], None]) -> None:
        """Do work soon that may wait for a device, elsewhere; never waits, never raises."""


class Session(SessionMembers):
    """One connection and what belongs to it. Thread-safe.

    Parameters
    ----------
    transport
        The connected socket; owned from now on.
    """

    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self.transport = transport
        self.pid = _process.pid
        self.orphaned = False
        self._closing = False
        self.patience = _PATIENCE
        self.lost: set[int] = set()
        self.ring_asked = False
        self._kept: deque[tuple[int, int, object]] = deque()
        self._undecided: list[tuple[Feed, Grant, tuple[Ticket, ...]]] = []
        self._unsettled: deque[Callable[[], None]] = deque()
        self._settling = threading.Lock()
        self._fault: ProtocolError | None = None  # what the service did that sending found
        self.holds: dict[int, ReferenceType[Hold]] = {}
        self._driver: Driver | None = None

    def carried_by(self, driver: Driver) -> None:
        """Say who moves this session's packets."""
        self._driver = driver

    def check_usable(self) -> None:
        """Raise if this session has ended or belongs to another process.

        Raises
        ------
        ForkError
            This is a forked child.
        ClosedError
            The client was closed or the connection lost.
        """
        if _process.pid != self.pid:
            raise ForkError(
                f"this client belongs to process {self.pid}; after a fork, and best after spawn or exec, "
                "connect again in the child"
            )
        if self.ended is not None:
            raise type(self.ended)(str(self.ended))

    # Packets

    def ask(self, request: Request, reply_type: type[Reply], on_done: Callable[[], object]) -> Call:
        """Send a request; `on_done` is called once the answer is there. Does not wait."""
        self.check_usable()
        self.settle()
        try:
            with self._lock:
                # Again, for here it cannot change: a request that begins after the end would wait for ever.
                self.check_usable()
                call = self.core.start(request, reply_type, on_done)
                self._flush()
        except BaseException:
            if request.q and self.ended is None:  # a signal handler's, perhaps after it was sent
                with self._lock:
                    self.core.forsake(request)
                    self._flush()
            raise
        return call

    def abandon(self, call: Call) -> None:
        """Stop waiting for a request; what it still grants is given back."""
        if _process.pid != self.pid or self.ended is not None:
            return
        with self._lock:
            self.core.abandon(call)
            self._flush()

    def flush(self) -> bool:
        """Send what waits to be sent; True if nothing is left."""
        with self._lock:
            self._flush()
            return not self.core.outbox

    def _flush(self) -> None:
        outbox = self.core.outbox
        if self.ended is not None:
            outbox.clear()
            return
        try:
            if not self.transport.send(outbox):
                if len(outbox) > _OUTBOX_MAX:
                    raise ConnectionLostError(f"the service has not taken {len(outbox)} packets: given up")
                if self._driver is not None:
                    self._driver.want_write()
        except ConnectionLostError:
            # Replies that came before may still be there to be read; the reader will find the end of the connection.
            outbox.clear()
            if self._driver is None:
                raise
        except ProtocolError as error:
            # Not `lose`, which takes the lock: the reader finds the end of the connection, and this is why.
            outbox.clear()
            self._fault = ProtocolError(*error.args)
            self.transport.shutdown()

    def receive(self, *, readable: bool = False) -> bool:
        """Take what is in the ring, or one packet of the socket. `readable` says that the socket has something.

        Returns
        -------
        bool
            False if there was none.

        Raises
        ------
        ConnectionLostError, ProtocolError
            The session has ended; every request that waited fails with the same error.
        """
        try:
            came = self.transport.receive(readable=readable)
            if came is None:
                return False
            packets, descriptors = came
            core = self.core
            with self._lock:
                for packet in packets:
                    for block in core.receive(packet, descriptors):
                        self._unmap(block)
                if core.news:
                    self._hear()
                if core.outbox:
                    self._flush()
        except PoolbridgeError as error:
            error = self._reason(error)
            self.lose(error)
            raise error from None
        return True

    def _reason(self, error: PoolbridgeError) -> PoolbridgeError:
        """Give the reason behind an error that ends the session."""
        if self._closing:
            # What was on its way while blocks were dropped may be on one of them.
            return ClientClosedError("the client is closed")
        if self._fault is not None:
            return ProtocolError(*self._fault.args)
        goodbye = self.core.goodbye
        if not isinstance(error, ConnectionLostError) or goodbye is None:
            return error
        if not self.core.epoch:  # there never was a session to lose
            return _errors.from_wire(goodbye.c, goodbye.m)
        return ConnectionLostError(f"the service said goodbye ({goodbye.c}): {goodbye.m}. So {_errors.SESSION_LOST}")

    # Leases

    def write_holds(self, pool: int) -> list[Hold]:
        """Give the holds of write leases in a pool, the newest first."""
        found = []
        for reference in reversed(list(self.holds.values())):
            hold = reference()
            if hold is not None and hold.write and not hold.released and hold.grant.pl == pool:
                found.append(hold)
        return found

    def give_back(self, grant: Grant, feed: Feed | None = None) -> None:
        """End a lease that nothing was made of, from wherever the garbage collector may be: never waits, never raises.

        Parameters
        ----------
        grant
            The lease.
        feed
            Of the subscription whose frame it is, if it is one's.
        """
        if _process.pid == self.pid:
            if feed is not None:
                feed.open[grant.id] = feed.taken
            self._lock.later(partial(self._release, grant, (), failed=False, feed=feed, alone=True))

    def let_go(self, hold: Hold, *, failed: bool, alone: bool = False) -> None:
        """End the lease of a hold without waiting; never raises.

        Where the end of a device's work has to be waited for, that happens in the background. `alone` says that nobody
        has the hold any more, and nobody said what becomes of its frame: see `_release`.
        """
        if _process.pid != self.pid:
            return
        if hold.sent:
            self._lock.later(partial(self._forget, hold.grant))
            return
        tickets = _order.done_at_once(hold)
        if tickets is not None or self._driver is None:
            self.release(hold, tickets or (), failed=failed, alone=alone)
        else:
            self._driver.background(partial(_order.done, hold, partial(self.release, hold, failed=failed, alone=alone)))

    def release(self, hold: Hold, tickets: tuple[Ticket, ...], *, failed: bool, alone: bool = False) -> None:
        """End a lease; `tickets` say when the work on its memory is done. Never waits, never raises."""
        self._lock.later(partial(self._release, hold.grant, tickets, failed=failed, feed=hold.feed, alone=alone))

    def _release(
        self,
        grant: Grant,
        tickets: tuple[Ticket, ...],
        *,
        failed: bool,
        feed: Feed | None = None,
        alone: bool = False,
    ) -> None:
        """End a lease.

        A frame of a queue that nobody has any more, and that is not settled, is acknowledged when the next is asked
        for. It goes back to the queue if none is.
        """
        self.holds.pop(grant.id, None)
        if alone and feed is not None and feed.back(grant.id):
            if feed.auto and not feed.closed and self.ended is None:
                self._undecided.append((feed, grant, tickets))
                return
            failed = True
        self._end_lease(grant, tickets, feed, failed=failed)

    def _end_lease(self, grant: Grant, tickets: tuple[Ticket, ...], feed: Feed | None, *, failed: bool) -> None:
        settled = feed is None or feed.open.pop(grant.id, None) is None
        if feed is not None and feed.shared is not None:
            counted = feed.shared.release(grant, tickets, settled=settled, back=failed)
            feed.shared.tell_settled()
            self._released(self.core.forget(grant, tickets) if counted else None)
        elif feed is not None or not self.spares.take_back(grant, tickets):
            self._released(self.core.release(grant, tickets, failed=failed))

    def _decide(self, feed: Feed | None, *, back: bool) -> None:
        """End the leases of frames that nobody has any more: all, or those of one subscription."""
        undecided, self._undecided = self._undecided, []
        for one in undecided:
            if feed is None or one[0] is feed:
                self._end_lease(one[1], one[2], one[0], failed=back)
            else:
                self._undecided.append(one)

    def release_frames(
        self, frames: Sequence[Frame], feed: Feed, tickets: tuple[Ticket, ...], *, back: bool = False
    ) -> None:
        """End the leases of frames that no hold was made of; those of a queue may go `back` to it; never waits."""
        if _process.pid == self.pid:
            # A finaliser does this itself where no driver is left, perhaps in the thread that holds the lock.
            self._lock.later(partial(self._release_frames, frames, tickets, back=back and feed.queue))

    def _release_frames(self, frames: Sequence[Frame], tickets: tuple[Ticket, ...], *, back: bool) -> None:
        core = self.core
        grants: list[Any] = [frame.l for frame in frames]
        for at in range(0, len(grants), MAX_ARRAY):
            first, *others = [grant.id for grant in grants[at : at + MAX_ARRAY]]
            core.tell(Release(l=first, fl=back, dt=tickets, al=tuple(others)))
        self._flush()  # sessions that wait for the memory need not wait for what follows
        for grant in grants:
            idle = core.forget(grant, tickets)
            if idle is not None:
                self._unmap(idle)
        if core.outbox:
            self._flush()

    # Frames

    def settle_frame(self, feed: Feed, lease: int, *, back: bool) -> bool:
        """Acknowledge a frame, or give it back to its queue; False if it was settled before. Its lease lives on."""
        if _process.pid != self.pid:
            self.check_usable()
        with self._lock:
            if lease not in feed.open:
                return False
            del feed.open[lease]
            if feed.shared is not None:
                feed.shared.settle(lease, back=back)
                feed.shared.tell_settled()
                return True
            self.core.tell(Ack(l=lease, bk=back))
            self._flush()
        return True

    def asks(self, feed: Feed) -> None:
        """Acknowledge the frames of a subscription that is asked for the next, if that is how it is."""
        if feed.auto and (self._undecided or feed.holds_up):
            self._acknowledge(feed)

    def _acknowledge(self, feed: Feed) -> None:
        if _process.pid != self.pid:
            self.check_usable()
        with self._lock:
            self._decide(feed, back=False)
            if feed.shared is not None:
                for lease in feed.open:
                    feed.shared.settle(lease, back=False)
                feed.open.clear()
            elif feed.open:
                first, *others = feed.open
                feed.open.clear()
                self.core.tell(Ack(l=first, al=tuple(others)))
            self._flush()

    def settle_soon(self, settle: Callable[[], None]) -> None:
        """Have something released before the next request, and within some 10 ms; by any thread."""
        self._unsettled.append(settle)
        if self._driver is not None:
            self._driver.ringing()

    def settle(self) -> None:
        """Release what was to be released soon; what another thread began to release is released then as well.

        An error of the device is not raised: it is whose who uses that next, not this request's or the driver's.
        """
        while self._unsettled:
            with self._settling:
                if not self._unsettled:
                    return
                try:
                    self._unsettled[0]()
                except PoolbridgeError:
                    pass  # what was released is released all the same
                finally:
                    # Only now: a thread that still finds it waits for the lock.
                    self._unsettled.popleft()

    def later(self, work: Callable[[], None]) -> None:
        """Have something done that may wait, for a finaliser; never waits, never raises."""
        if _process.pid == self.pid and self._driver is not None:
            self._driver.background(work)

    def lend(self, hold: Hold) -> Hold:
        """Make a hold for an array that outlives a lease: it keeps the block mapped as the lease does."""
        lender = hold.lender()
        with self._lock:
            block = self.core.blocks.get(hold.grant.bl)
            if block is not None:
                block.leases += 1
                lender.sent = True
        return lender

    def leave_to_arrays(self, lender: Hold) -> None:
        """Have a lease end with the arrays whose memory `lender` keeps mapped. The lock is held."""
        self.holds[lender.grant.id] = ref(lender)
        lender.sent = lender.released = False
        self.disown(lender.grant)

    def keep_array(self, grant: Grant, array: tuple[Any, Any, Any], most: int) -> None:
        """Keep an array with its block, for the frames to come."""
        with self._lock:
            block = self.core.blocks.get(grant.bl)
            if block is None or block.recalled:
                return
            if len(block.arrays) >= most:
                block.arrays.clear()
            block.arrays.append(array)

    def sent(self, hold: Hold, ticket: Ticket | None, *, keeps: bool = False) -> None:
        """Note that a lease has ended with the sending of its frame; arrays of it keep the block mapped.

        `keeps`: so does a channel that has the lease now.
        """
        hold.seal()
        with self._lock:
            kept = self.holds.get(hold.grant.id)
            if kept is not None and kept() is hold:  # a lease that is a channel's may have come back meanwhile
                del self.holds[hold.grant.id]
            block = self.core.blocks.get(hold.grant.bl)
            if block is not None and ticket is not None:
                block.used(ticket)
            if keeps:
                return
            if hold.tokens or hold.unaccounted or hold.promise is not None:
                hold.sent = True
            else:
                self._forget(hold.grant)

    def unsend(self, hold: Hold, ticket: Ticket | None = None) -> None:
        """Give back a lease that may have been sent or not: nobody knows. `ticket` stands for work on it."""
        with self._lock:
            self.holds.pop(hold.grant.id, None)
            self.spares.published(hold.grant)
            self.core.tell(Release(l=hold.grant.id, fl=True, dt=() if ticket is None else (ticket,)))
            self._flush()
            hold.sent = True

    def _forget(self, grant: Grant) -> None:
        self._released(self.core.forget(grant))

    def _released(self, idle: KnownBlock | None) -> None:
        if idle is not None:
            self._unmap(idle)
        self._flush()
        if self.orphaned and self.ended is None and not self.holds and self._driver is not None:
            self._driver.background(self.close)

    # Timelines and channels

    def use_ring(self, size: int) -> None:
        """Carry packets through the ring that the service has sent, if this process can."""
        descriptors, self.core.ring = self.core.ring, None
        if descriptors is None:
            return
        try:
            if size == SIZE and len(descriptors) == _RING_FILES:
                ring = Ring(*descriptors.peek())
                with self._lock:
                    if self.ended is None:
                        self.transport.use(ring)
                    else:
                        ring.close()
        finally:
            descriptors.close()
        if self._driver is not None:
            self._driver.ringing()

    def adopt(self, timeline: int, *, own: bool) -> None:
        """Map the page of a timeline that the service has sent, unless another thread has done it."""
        with self._lock:
            # A session that went on without the page would take what its tickets stand for as done.
            self.check_usable()
            self._adopt(timeline, own=own)

    def _adopt(self, timeline: int, *, own: bool) -> None:
        descriptors = self.core.pages.pop(timeline, None)
        if descriptors is None:
            return
        fd = descriptors.one()
        try:
            if self.timelines.add(self.core.epoch, timeline, fd, own=own) and own:
                self.core.tell(Seal())
                self._flush()
        finally:
            os.close(fd)

    def pay(self, feed: Feed) -> None:
        """Give the credit back of a frame that came without a lease."""
        if not feed.ended:
            with self._lock:
                self.core.tell(Credit(sb=feed.id, n=1))
                self._flush()

    def feed(self, subscription: int) -> Feed:
        """Give the feed of a subscription that the service has just made."""
        feed = self.core.feeds.get(subscription)
        if feed is None:
            self.check_usable()
            feed = Feed(subscription)
            feed.lose(None)  # it has ended already
        return feed

    def keep(self, source: object, ticket: Ticket) -> None:
        """Keep what a stream copies from until it has done so."""
        self._kept.append((ticket.wd, ticket.v, source))
        self._drop_kept()

    def _drop_kept(self) -> None:
        own = self.timelines.own
        while self._kept and (own is None or own.reached(*self._kept[0][:2])):
            self._kept.popleft()

    def unsubscribe(self, feed: Feed) -> None:
        """Want no more frames of a subscription, and give back those that nobody took; never waits, never raises."""
        if _process.pid == self.pid and not feed.closed:
            self._lock.later(partial(self._unsubscribe, feed))

    def _unsubscribe(self, feed: Feed) -> None:
        feed.closed, more = True, not feed.ended
        frames, feed.frames = list(feed.frames), deque()
        feed.lose(None)
        if feed.shared is not None:
            self._leave(feed.shared)
        elif more and self.ended is None:
            # First, or what goes back would come here again.
            # Until the reply, what was on its way comes and is given back.
            forget = partial(self.core.feeds.pop, feed.id, None)
            self.core.start(Unsubscribe(sb=feed.id), Reply, forget)
            self._flush()
        self._decide(feed, back=True)
        for frame in frames:
            if not isinstance(frame.l, UnsetType):
                self._end_lease(frame.l, (), feed, failed=feed.queue)
        self._flush()

    def _hear(self) -> None:
        """Take the news that the core has for this session. The lock is held."""
        news, self.core.news = self.core.news, []
        for notice in news:
            if isinstance(notice, Forget):
                self.timelines.forget(notice.tl)
                continue
            if isinstance(notice, Wanted):
                self.spares.want(notice.pl)
                continue
            self.lost.update(notice.bf)
            for reference in list(self.holds.values()):
                hold = reference()
                if hold is not None and hold.grant.bf in notice.bf:
                    hold.lost = True

    # The end

    def lose(self, error: PoolbridgeError) -> None:
        """End the session because the connection failed. Leases still held keep their memory mapped.

        The socket is shut down, not closed: its driver closes it when nobody waits for it any more.
        """
        with self._lock:
            if self.ended is None:
                # A copy: the traceback of the one that is raised keeps every array in its frames alive.
                self.ended = type(error)(*error.args)
                self._drop_kept()
                self._decide(None, back=True)
                self._end_members()
                self._let_go()
            self.core.lose(error)
        self.transport.shutdown()

    def prepare_close(self) -> Dropped | None:
        """Release every lease that no array uses, and unmap what is then idle.

        Returns
        -------
        Dropped or None
            The last request, whose reply says that the service has seen all of it; None if there is nothing to say.
        """
        for reference in list(self.holds.values()):
            hold = reference()
            if hold is not None:
                hold.close()
        with self._lock:
            if self.ended is not None or not self.core.epoch:
                return None
            self._decide(None, back=True)
            self._end_members()
            idle = [block for block in self.core.blocks.values() if not block.leases]
            busy = bool(self.core.outbox) or bool(self.core.blocks)
            self._closing = True
            for block in idle:
                self._unmap(block)
        return Dropped(bl=()) if busy else None

    def close(self) -> None:
        """End the session. Idempotent. Memory that arrays use stays mapped until they are gone."""
        if _process.pid != self.pid:
            self.transport.close()
            return
        with self._lock:
            if self.ended is None and self.core.epoch:  # nobody waits for what the service says to it
                self._end_members()
                self._flush()
        self.lose(ClientClosedError("the client is closed"))

    def close_when_unused(self) -> None:
        """End the session because its client was dropped; if arrays are alive, when the last of them is gone."""
        if self.holds:
            self.orphaned = True
        else:
            self.close()
