"""A session: the protocol's state, the mappings that belong to it, and the leases that use them.

The blocking and the asyncio client are both thin drivers around this; it never waits for the network itself.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ReferenceType, ref

from poolbridge._order import order as _order
from poolbridge._session.session_members import SessionMembers
from poolbridge._sys import errors as _errors
from poolbridge._sys import process as _process
from poolbridge._sys.errors import (
    ClientClosedError,
    ConnectionLostError,
    ForkError,
    PoolbridgeError,
    ProtocolError,
)
from poolbridge._wire.messages import Bye, Dropped, Forget, Release, Seal, Wanted

if TYPE_CHECKING:
    from poolbridge._memory.session_blocks import SessionBlock
    from poolbridge._session.calls import Call
    from poolbridge._session.consumer import Consumer
    from poolbridge._session.lease_state import LeaseState
    from poolbridge._wire.messages import Fence, Grant, Reply, Request
    from poolbridge._wire.transport import Transport

_OUTBOX_MAX = 65_536
_PATIENCE = 10.0


class Driver(Protocol):
    """What carries a session: a thread, or an event loop."""

    def want_write(self) -> None:
        """Call `Session.flush` when the socket takes packets again; never waits."""

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
        self._kept: deque[tuple[int, int, object]] = deque()
        self._fault: ProtocolError | None = None  # what the service did that sending found
        self.lease_states: dict[int, ReferenceType[LeaseState]] = {}
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
        try:
            with self.lock:
                # Again, for here it cannot change: a request that begins after the end would wait for ever.
                self.check_usable()
                call = self.core.start(request, reply_type, on_done)
                self._flush()
        except BaseException:
            if request.q and self.ended is None:  # a signal handler's, perhaps after it was sent
                with self.lock:
                    self.core.forsake(request)
                    self._flush()
            raise
        return call

    def abandon(self, call: Call) -> None:
        """Stop waiting for a request; what it still grants is given back."""
        if _process.pid != self.pid or self.ended is not None:
            return
        with self.lock:
            self.core.abandon(call)
            self._flush()

    def flush(self) -> bool:
        """Send what waits to be sent; True if nothing is left."""
        with self.lock:
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

    def receive(self) -> bool:
        """Take one packet of the socket.

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
            came = self.transport.receive()
            if came is None:
                return False
            core = self.core
            with self.lock:
                for block in core.receive(*came):
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

    def write_states(self, pool: int) -> list[LeaseState]:
        """Give the states of write leases in a pool, the newest first."""
        found = []
        for reference in reversed(list(self.lease_states.values())):
            state = reference()
            if state is not None and state.write and not state.released and state.grant.pl == pool:
                found.append(state)
        return found

    def give_back(self, grant: Grant, consumer: Consumer | None = None) -> None:
        """End a lease that nothing was made of, from wherever the garbage collector may be: never waits, never raises.

        Parameters
        ----------
        grant
            The lease, or what stands for that of a frame.
        consumer
            Whose frame it is, if it is a frame's.
        """
        if _process.pid == self.pid:
            self.lock.later(partial(self._release, grant, (), failed=False, consumer=consumer, alone=True))

    def let_go(self, state: LeaseState, *, failed: bool, alone: bool = False) -> None:
        """End the lease of a state without waiting; never raises.

        Where the end of a device's work has to be waited for, that happens in the background. `alone` says that nobody
        has the state any more, and nobody said what becomes of its frame: see `Consumer.end_frame`.
        """
        if _process.pid != self.pid:
            return
        if state.sent:
            self.lock.later(partial(self.disown, state.grant))
            return
        fences = _order.done_at_once(state)
        if fences is not None or self._driver is None:
            self.release(state, fences or (), failed=failed, alone=alone)
        else:
            self._driver.background(
                partial(_order.done, state, partial(self.release, state, failed=failed, alone=alone))
            )

    def release(self, state: LeaseState, fences: tuple[Fence, ...], *, failed: bool, alone: bool = False) -> None:
        """End a lease; `fences` say when the work on its memory is done. Never waits, never raises."""
        consumer = state.consumer
        self.lock.later(partial(self._release, state.grant, fences, failed=failed, consumer=consumer, alone=alone))

    def _release(
        self,
        grant: Grant,
        fences: tuple[Fence, ...],
        *,
        failed: bool,
        consumer: Consumer | None,
        alone: bool,
    ) -> None:
        self.lease_states.pop(grant.id, None)
        if consumer is not None:
            consumer.end_frame(grant, fences, back=failed, alone=alone)
        elif not self.spares.take_back(grant, fences):
            self._released(self.core.release(grant, fences, failed=failed))

    def later(self, work: Callable[[], None]) -> None:
        """Have something done that may wait, for a finaliser; never waits, never raises."""
        if _process.pid == self.pid and self._driver is not None:
            self._driver.background(work)

    def lend(self, state: LeaseState) -> LeaseState:
        """Make a lease state for an array that outlives a lease: it keeps the block mapped as the lease does."""
        lender = state.lender()
        with self.lock:
            block = self.core.blocks.get(state.grant.bl)
            if block is not None:
                block.leases += 1
                lender.sent = True
        return lender

    def leave_to_arrays(self, lender: LeaseState) -> None:
        """Have a lease end with the arrays whose memory `lender` keeps mapped. The lock is held."""
        self.lease_states[lender.grant.id] = ref(lender)
        lender.sent = lender.released = False
        self.disown(lender.grant)

    def keep_array(self, grant: Grant, array: tuple[Any, Any, Any], most: int) -> None:
        """Keep an array with its block, for the frames to come."""
        with self.lock:
            block = self.core.blocks.get(grant.bl)
            if block is None or block.recalled:
                return
            if len(block.arrays) >= most:
                block.arrays.clear()
            block.arrays.append(array)

    def lent(self, state: LeaseState, fence: Fence | None, *, apart: bool) -> None:
        """Note that a channel has a lease. `apart`: arrays of the user's lease keep the block mapped as well."""
        self.spares.published(state.grant)
        self.spares.watch()
        state.seal()
        with self.lock:
            kept = self.lease_states.get(state.grant.id)
            if kept is not None and kept() is state:  # the lease may have come back meanwhile
                del self.lease_states[state.grant.id]
            block = self.core.blocks.get(state.grant.bl)
            if block is not None and fence is not None:
                block.used(fence)
            if apart:
                if state.tokens or state.unaccounted or state.promise is not None:
                    state.sent = True
                else:
                    self.disown(state.grant)

    def unsend(self, state: LeaseState, fence: Fence | None = None) -> None:
        """Give back a lease that may have been sent or not: nobody knows. `fence` stands for work on it."""
        with self.lock:
            self.lease_states.pop(state.grant.id, None)
            self.spares.published(state.grant)
            self.core.tell(Release(l=state.grant.id, fl=True, dt=() if fence is None else (fence,)))
            self._flush()
            state.sent = True

    def _released(self, idle: SessionBlock | None) -> None:
        if idle is not None:
            self._unmap(idle)
        self._flush()
        if self.orphaned and self.ended is None and not self.lease_states and self._driver is not None:
            self._driver.background(self.close)

    # Timelines and channels

    def adopt(self, timeline: int, *, own: bool) -> None:
        """Map the page of a timeline that the service has sent, unless another thread has done it."""
        with self.lock:
            # A session that went on without the page would take what its fences stand for as done.
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

    def keep(self, source: object, fence: Fence) -> None:
        """Keep what a stream copies from until it has done so."""
        self._kept.append((fence.wd, fence.v, source))
        self._drop_kept()

    def _drop_kept(self) -> None:
        own = self.timelines.own
        while self._kept and (own is None or own.reached(*self._kept[0][:2])):
            self._kept.popleft()

    def unsubscribe(self, consumer: Consumer) -> None:
        """Want no more frames, and give back those that nobody took; never waits, never raises."""
        if _process.pid == self.pid and not consumer.left:
            self.lock.later(partial(self._leave, consumer))

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
            for reference in list(self.lease_states.values()):
                state = reference()
                if state is not None and state.grant.bf in notice.bf:
                    state.lost = True

    # The end

    def lose(self, error: PoolbridgeError) -> None:
        """End the session because the connection failed. Leases still held keep their memory mapped.

        The socket is shut down, not closed: its driver closes it when nobody waits for it any more.
        """
        with self.lock:
            if self.ended is None:
                # A copy: the traceback of the one that is raised keeps every array in its frames alive.
                self.ended = type(error)(*error.args)
                self._drop_kept()
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
        for reference in list(self.lease_states.values()):
            state = reference()
            if state is not None:
                state.close()
        with self.lock:
            if self.ended is not None or not self.core.epoch:
                return None
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
        with self.lock:
            if self.ended is None and self.core.epoch:  # nobody waits for what the service says to it
                self._end_members()
                self.core.tell(Bye())
                self._flush()
        self.lose(ClientClosedError("the client is closed"))

    def close_when_unused(self) -> None:
        """End the session because its client was dropped; if arrays are alive, when the last of them is gone."""
        if self.lease_states:
            self.orphaned = True
        else:
            self.close()
