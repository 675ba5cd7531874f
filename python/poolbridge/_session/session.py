"""Implements a session, which connects a client to the service and keeps the connection's mappings and leases.

The blocking client and the asyncio client both use a session. The session itself never waits for the network.
"""

from __future__ import annotations

import os
import socket
import time
from _thread import start_new_thread
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet, ref

from poolbridge._order import fences as _fences
from poolbridge._order.captures import CAPTURES
from poolbridge._session.calls import Waiter
from poolbridge._session.resumption import Resumed, connect_again
from poolbridge._session.session_members import SessionMembers
from poolbridge._session.unconfirmed import MANY
from poolbridge._sys import error_texts as _error_texts, process as _process
from poolbridge._sys.log import LOG
from poolbridge._wire import received_errors as _received_errors
from poolbridge._wire.messages import Bye, Cancel, Forget, GrantReply, JoinReply, Reply, Seal, Wanted
from poolbridge.errors import (
    ClientClosedError,
    ConnectionLostError,
    ForkError,
    PoolbridgeError,
    ProtocolError,
)

if TYPE_CHECKING:
    from poolbridge._memory.session_blocks import SessionBlock
    from poolbridge._session.calls import Call
    from poolbridge._session.lease_state import Divider, LeaseState, Taker
    from poolbridge._wire.messages import Fence, Grant, Request
    from poolbridge._wire.transport import Transport

_OUTBOX_MAX = 65_536
_PATIENCE = 10.0


class Driver(Protocol):
    """Sends and receives a session's packets. `SocketReader` does so in threads, `LoopReader` in an event loop."""

    def want_write(self) -> None:
        """Make sure that `Session.flush` is called as soon as the socket accepts packets again. Never waits."""

    def reconnect(self, finish: Callable[[], None]) -> None:
        """Run `finish`, which replaces the connection or ends the session, where packets are processed. Never waits.

        From now on the driver waits for packets of the new connection, which has the descriptor of the old one.
        """

    def away(self) -> None:
        """Wait a while for the new connection, unless others have work to do in this thread."""

    def background(self, work: Callable[[], None]) -> None:
        """Let another thread run `work`, which may wait for a device. This method never waits and never raises."""


class Session(SessionMembers):
    """One connection to the service, with its mappings and leases. Thread-safe.

    Its base classes have what belongs together: `SessionMembers` the members of channels, `SessionReturns` what
    `Returns`, which has the leases that came back from channels, needs of a session, `SessionMemory` pools and mapped
    blocks. This class has packets, the end of leases, timelines, and the end of the session.

    Parameters
    ----------
    transport
        The connected socket, which the session owns and closes.
    """

    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self.core.later, self.core.lose_grant = self.lock.later, self.release_grant
        self.transport = transport
        self.orphaned = False
        self._bye: Call | None = None  # the request that the client sends when it is closed
        self._all_said = False  # whether the client is closed and sends nothing any more
        self._lost = False  # whether all that the end of the session needs was done
        self.patience = _PATIENCE
        self.tracer: Any = None
        self.concurrent = False  # whether other tasks of a thread work during an operation
        self.lost: set[int] = set()
        self._divisions: WeakSet[Divider] = WeakSet()
        self._fault: ProtocolError | None = None  # a protocol error found while sending
        self._driver: Driver | None = None
        self._resuming: list[int] = []  # the thread that takes the session up again, if there is one
        self.dial: Callable[[], Callable[[float], socket.socket | float]] | None = None  # connects to the service again

    def carried_by(self, driver: Driver) -> None:
        """Set the driver, which sends and receives this session's packets."""
        self._driver = driver

    def check_usable(self) -> None:
        """Raise if this session has ended or belongs to another process.

        Raises
        ------
        ForkError
            This is a forked child.
        ClosedError
            The client was closed, or the connection was lost.
        """
        if _process.pid != self.pid:
            raise ForkError(
                f"this client belongs to process {self.pid}, and this is a forked child: connect again in the child, "
                "and better start it by spawn or exec"
            )
        if self.ended is not None:
            raise type(self.ended)(str(self.ended))
        if self._bye is not None:
            raise _closed()

    @property
    def closed(self) -> bool:
        """Whether the client was closed, or the session has ended."""
        return self._bye is not None or self.ended is not None

    # Packets

    def ask(self, request: Request, reply_type: type[Reply], on_done: Callable[[], object]) -> Call:
        """Send a request without waiting. `on_done` is called when the reply or an error has arrived."""
        self.check_usable()
        try:
            with self.lock:
                # Check again under the lock: a request that starts after the session's end would wait for ever.
                self.check_usable()
                call = self.core.start(request, reply_type, on_done)
                self._flush()
        except BaseException:
            if request.number and self.ended is None:  # a signal handler raised, perhaps after the request was sent
                with self.lock:
                    self.core.forsake(request)
                    self._flush()
            raise
        return call

    def abandon(self, call: Call) -> None:
        """Stop waiting for a reply. If the reply still comes and grants a lease, release the lease."""
        if _process.pid != self.pid or self.ended is not None:
            return
        with self.lock:
            self.core.abandon(call)
            self._flush()

    def cancel(self, call: Call) -> None:
        """Ask the service to end the wait of a request. The reply still comes: an error, or the result."""
        with self.lock:
            self.core.tell(Cancel(request=call.number))
            self._flush()

    def flush(self) -> bool:
        """Send the packets of the outbox; return True if all packets were sent."""
        with self.lock:
            self._flush()
            return not self.core.outbox

    def _flush(self) -> None:
        outbox = self.core.outbox
        if self.ended is not None:
            outbox.clear()
            return
        try:
            kept = self.core.unconfirmed
            if len(kept.packets) > MANY:
                self.core.forget_confirmed()
            if self.transport.send(outbox, kept.packets if kept.token else None):
                if self._all_said:
                    self.transport.end_sending()
            else:
                if len(outbox) > _OUTBOX_MAX:
                    self.transport.shutdown()
                    raise ConnectionLostError(f"the service reads no packets, and {len(outbox)} wait to be sent")
                if self._driver is not None:
                    self._driver.want_write()
        except ConnectionLostError:
            # Replies may still be in the socket. The driver reads these replies, and then finds the connection closed.
            if self.core.unconfirmed.token:
                self.core.unconfirmed.keep(outbox)
            outbox.clear()
            if self._driver is None:
                raise
        except ProtocolError as error:
            # Do not call `lose` here: `lose` takes the lock, which the caller of `_flush` holds. The driver will find
            # the connection closed, call `receive`, and get an error with the text of `_fault`.
            outbox.clear()
            self._fault = ProtocolError(*error.args)
            self.transport.shutdown()

    def receive(self) -> bool:
        """Receive and process one packet.

        Returns
        -------
        bool
            False if no packet had arrived.

        Raises
        ------
        ClosedError, ProtocolError
            The session has ended. Every request that waits for its reply fails with the same error.
        """
        # A signal handler may raise an error after any step. Then the packet stays the next one, and the thread that
        # receives next repeats all steps. So each step does only what is missing.
        connection = self.transport.connections
        try:
            try:
                came = self.transport.receive()
            except ConnectionLostError as error:
                if not self._begins_resuming(error, connection):
                    raise
                return False
            if came is None:
                return False
            core = self.core
            with self.lock:
                for block in core.receive(*came):
                    self._unmap(block)
                if core.news:
                    self._hear()
                self.timelines.tidy()
                if core.outbox:
                    self._flush()
                if self._bye is not None:
                    self._end_if_unused()
                self.transport.processed()
        except PoolbridgeError as error:
            error = self._reason(error)
            self.lose(error)
            raise error from None
        return True

    def _begins_resuming(self, error: ConnectionLostError, connection: int) -> bool:
        """Take the session up again in another thread, after the service has died, unless it ends by `error`.

        A thread of its own is not interrupted by signals, and the event loop of an asyncio client does not wait. This
        method does not raise `error`: its frame would refer to the error, and the error to the frames of the program,
        whose arrays would stay until Python looks for reference cycles.
        """
        driver = self._driver
        with self.lock:
            if not self.core.unconfirmed.token or self.core.goodbye is not None or self.dial is None or driver is None:
                return False
            if self._fault is not None or self.ended is not None:
                return False
            if self._all_said and not self.core.outbox:
                return False  # the client is closed, and the service closes the connection, too
            if connection != self.transport.connections:
                return True  # there is another one already
            if not self._resuming:
                try:  # `extend` is a C function, so a signal handler that raises after it starts no second thread
                    self._resuming.extend(map(start_new_thread, (self._resume,), ((error, self.dial()),)))
                except RuntimeError:
                    return False
        driver.away()
        return True

    def _resume(self, error: ConnectionLostError, dial: Callable[[float], socket.socket | float]) -> None:
        began, again = time.monotonic(), None
        try:
            again = connect_again(self.core, dial, lambda: self.ended is not None)
        except (PoolbridgeError, OSError, MemoryError) as reason:
            error.__cause__ = reason
        if again is not None:
            LOG.info("the service died; its successor answered after %.3f seconds", time.monotonic() - began)
        self.reconnect(partial(self._resumed, again, error))

    def reconnect(self, finish: Callable[[], None]) -> None:
        """See `Driver`."""
        if self._driver is not None:
            self._driver.reconnect(finish)

    def _resumed(self, again: Resumed | None, error: ConnectionLostError) -> None:
        if again is None:
            self.lose(self._reason(error))
            return
        with self.lock:
            if self.ended is not None:
                again.sock.close()
                for _, descriptors in again.came:
                    descriptors.close()
                return
            core = self.core
            self._resuming.clear()
            try:
                idle = [block for packet in again.came for block in core.receive(*packet)]
            except PoolbridgeError as fault:
                self._fault, idle = ProtocolError(*fault.args), []
                again.sock.shutdown(socket.SHUT_RDWR)
            core.send_again(again.done)
            self.transport.replace(again.sock)
            for block in idle:
                self._unmap(block)
            if core.news:
                self._hear()
            self._flush()

    def _reason(self, error: PoolbridgeError) -> PoolbridgeError:
        """Return the error that explains why the session ends: `error`, or an error with the real reason."""
        if self._bye is not None:
            # While the client closes, it drops its blocks. A grant on a dropped block may still arrive, and leads to a
            # wrong `ProtocolError`.
            return _closed()
        if self._fault is not None:
            return ProtocolError(*self._fault.args)
        goodbye = self.core.goodbye
        if not isinstance(error, ConnectionLostError) or goodbye is None:
            return error
        if not self.core.epoch:  # the service has not accepted the session
            return _received_errors.exception(goodbye.code, goodbye.message)
        return ConnectionLostError(
            f"the service said goodbye ({goodbye.code}): {goodbye.message}. So {_error_texts.SESSION_LOST}"
        )

    # Leases

    def write_states(self, pool: int) -> list[LeaseState]:
        """Return the states of write leases in a pool, the newest first."""
        found = []
        for reference in reversed(list(self.lease_states.values())):
            state = reference()
            if state is not None and state.write and not state.released and state.grant.pool == pool:
                found.append(state)
        return found

    def was_sent(self, address: int) -> bool:
        """Whether an array at `address` was made in memory that this session has sent to a channel since then.

        The array on loan from a publisher was not sent yet. If the addresses for writing and for reading are the same,
        and this session also consumes frames of the pool, the array may be of a received frame; then return False.
        """
        with self.lock:
            states, on_loan = list(self.sent_states), self.returns.on_loan()
            consumed = {one.channel.pool for one in self.core.members if one.role == "consumer"}
        for state in states:
            memory, grant = state.memory, state.grant
            first = memory.address(write=True)
            if (
                first <= address < first + grant.nbytes
                and state.sent
                and state not in on_loan
                and (state.tokens or state.unaccounted)
                and not (grant.pool in consumed and memory.address(write=False) == first)
            ):
                return True
        return False

    def release_grant(self, grant: Grant, consumer: Taker | None = None) -> None:
        """Release a lease that has no `LeaseState`. Never waits, never raises; finalisers may call `release_grant`.

        Parameters
        ----------
        grant
            The lease's grant, or the grant that the consumer made for a frame.
        consumer
            The consumer that took the frame; None if the lease is not of a frame.
        """
        if _process.pid == self.pid:
            self.lock.later(partial(self._release, grant, (), failed=False, consumer=consumer, alone=True))

    def release_untaken(self, reply: object) -> None:
        """End what a reply grants, if a signal handler raised an error before the lease had a state, or the member."""
        if isinstance(reply, GrantReply) and reply.grant.id in self.core.untaken:
            self.release_grant(reply.grant)
        if isinstance(reply, JoinReply):
            self.unjoin(reply.number)

    def let_go(self, state: LeaseState, *, failed: bool, alone: bool = False) -> None:
        """Release the lease that `state` describes. Never waits, never raises.

        If the release must wait for the device, a background thread waits. `alone` says that no object refers to the
        state any more; see `Consumer.end_frame`.
        """
        if _process.pid != self.pid:
            return
        if state.counted:
            self.lock.later(partial(self.unown, state))
        if not state.owed:
            return
        fences = _fences.done_at_once(state)
        if fences is not None or self._driver is None:
            self.release(state, fences or (), failed=failed, alone=alone)
        else:
            self.later(partial(_fences.done, state, partial(self.release, state, failed=failed, alone=alone)))

    def release(self, state: LeaseState, fences: tuple[Fence, ...], *, failed: bool, alone: bool = False) -> None:
        """Release a lease. `fences` are reached when the work on the lease's memory is done. Never waits or raises."""
        consumer, sure = state.consumer, not state.unsure
        grant = state.seen() if consumer is None else state.grant
        self.lock.later(partial(self._release, grant, fences, failed=failed, consumer=consumer, alone=alone, sure=sure))
        state.owed = False

    def _release(
        self,
        grant: Grant,
        fences: tuple[Fence, ...],
        *,
        failed: bool,
        consumer: Taker | None,
        alone: bool,
        sure: bool = True,
    ) -> None:
        self.lease_states.pop(grant.id, None)
        if consumer is not None:
            consumer.end_frame(grant, fences, back=failed, alone=alone)
        elif not self.returns.take_back(grant, fences):
            self._released(self.core.release(grant, fences, failed=failed, sure=sure))

    def later(self, work: Callable[[], None]) -> None:
        """Run `work`, which may wait for streams, in the background.

        `later` never waits and never raises, so finalisers may call `later`. While the program captures a stream's work
        into a graph, `work` raises `StreamCaptureError`. Then `CAPTURES` calls `work` again later.
        """
        if _process.pid == self.pid and self._driver is not None:
            self._driver.background(partial(CAPTURES.run, work))

    def keep_mapped(self, state: LeaseState) -> LeaseState:
        """Make a `LeaseState` for an array that outlives the lease. The new state keeps the block mapped."""
        keeper = state.keeper()
        with self.lock:
            block = self.core.blocks.get(state.grant.block)
            if block is not None:
                block.leases += 1
                keeper.counted = keeper.sent = True
                if keeper.write:
                    self.sent_states.add(keeper)
        return keeper

    def leave_to_arrays(self, keeper: LeaseState) -> None:
        """See `SessionReturns.leave_to_arrays`."""
        self.lease_states[keeper.grant.id] = ref(keeper)
        keeper.released, keeper.owed, keeper.sent = False, True, False
        self.unown(keeper)

    def note_sent(self, state: LeaseState, fence: Fence | None, *, apart: bool) -> None:
        """Note that a channel has a lease now.

        `apart` says that arrays made from the user's lease may need the mapped block, and not only the channel. `fence`
        is reached when this session's work on the block is done.
        """
        with self.lock:
            self.returns.watch()
        state.seal()
        with self.lock:
            kept = self.lease_states.get(state.grant.id)
            if kept is not None and kept() is state:  # otherwise the lease has come back meanwhile
                del self.lease_states[state.grant.id]
            block = self.core.blocks.get(state.grant.block)
            if block is not None and fence is not None:
                block.used(fence)
            if apart:
                if state.tokens or state.unaccounted or state.promise is not None:
                    state.sent = True
                    self.sent_states.add(state)
                else:
                    self.unown(state)

    def _released(self, idle: SessionBlock | None) -> None:
        if idle is not None:
            self._unmap(idle)
        if self.core.outbox:
            self._flush()
        if self._bye is not None:
            self._end_if_unused()
        elif self.orphaned and self.ended is None and not self.lease_states and self._driver is not None:
            self._driver.background(self.close_when_unused)

    # Timelines and channels

    def adopt(self, timeline: int, *, own: bool) -> None:
        """Map a timeline's page, which the service has sent, unless another thread has mapped the page."""
        with self.lock:
            # If the session has ended, the page cannot be mapped, and the timeline's fences would count as reached. So
            # raise an error.
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

    def unsubscribe(self, consumer: Taker) -> None:
        """End a subscription. Never waits, never raises."""
        if _process.pid == self.pid and not consumer.left:
            self.lock.later(partial(self._leave, consumer))

    def add_division(self, division: Divider) -> None:
        """Add an arena, which gives memory back when somebody wants it."""
        with self.lock:
            self._divisions.add(division)

    def _hear(self) -> None:
        """Process the notices in `core.news`. The caller holds the lock."""
        while news := self.core.news:
            notice = news[0]
            if isinstance(notice, Forget):
                self.timelines.forget(notice.timelines)
            elif isinstance(notice, Wanted):
                self.returns.want(notice.pool)
                for division in list(self._divisions):
                    if division.pool == notice.pool:
                        division.give_back()
            else:
                self.lost.update(notice.buffers)
                for reference in list(self.lease_states.values()):
                    state = reference()
                    if state is not None and state.grant.buffer in notice.buffers:
                        state.lost = True
            del news[0]

    # Closing

    def lose(self, error: PoolbridgeError) -> None:
        """End the session because the connection failed. Leases that are alive keep their memory mapped.

        The session shuts the socket down. The driver closes the socket later, when no thread waits for packets.
        """
        self.lock.later(partial(self._lose, type(error), error.args))
        with self.lock:  # now it is done
            self.transport.shutdown()

    def _lose(self, kind: type[PoolbridgeError], args: tuple[Any, ...]) -> None:
        if self.ended is None:
            self.ended = kind(*args)
        if not self._lost:
            self._end_members()
            self.timelines.fail_promises("the connection of its producer ended before it completed its promise")
            self._let_go()
            self._lost = True
        self.core.lose(kind(*args))

    def begin_close(self) -> Waiter | None:
        """Close the client: end everything that no array needs. The connection lasts until the last array is gone.

        The client leaves its channels, releases the leases without arrays, and unmaps the blocks without leases. It
        sends `Bye`, so that the service removes the client's names. Idempotent.

        Returns
        -------
        Waiter or None
            A waiter that is done when the service has ended the session, or when it has removed the names and only
            leases that are still needed keep the session. None if the session has ended already.
        """
        if _process.pid != self.pid:
            return None
        with self.lock:
            if self.ended is not None or not self.core.epoch:
                return None
            if self._bye is None:
                self.core.abandon_all(_closed())
                self._bye = self.core.start(Bye(), Reply, self.core.tell_waiters)
        # A second call repeats all this, because a signal handler may have raised an error during the first call.
        for reference in list(self.lease_states.values()):
            state = reference()
            if state is not None:
                state.close()
        with self.lock:
            if self.ended is None:
                self._end_members()
                self.timelines.fail_promises("the client was closed before it completed its promise")
                for block in self.core.blocks.values():
                    block.recalled = True  # so that the block is unmapped when its last lease ends
                    block.arrays.clear()
            self._flush()
        waiter = Waiter(self._is_closed)
        with self.lock:
            self.core.waiters.append(waiter)
            self._end_if_unused()
        return waiter

    def _is_closed(self) -> bool:
        bye = self._bye
        return self.ended is not None or (
            bye is not None and bye.done and any(block.leases for block in list(self.core.blocks.values()))
        )

    @property
    def lingers(self) -> bool:
        """Whether the client is closed, and the service must still hear of leases and blocks of the client."""
        core, bye = self.core, self._bye
        if bye is None or self.ended is not None or _process.pid != self.pid:
            return False
        return bool(core.blocks or core.outbox) or core.unanswered > (0 if bye.done else 1)

    def _end_if_unused(self) -> None:
        core = self.core
        if self._bye is None or self._all_said or self.ended is not None:
            return
        if core.unanswered:
            return  # a reply may grant a lease on a block, which this session then releases
        for block in [block for block in core.blocks.values() if not block.leases]:
            self._unmap(block)
        if all(block.stuck for block in core.blocks.values()):
            self._all_said = True
            self._flush()
            self._give_up_pools()

    def close(self) -> None:
        """End the session at once. Memory that arrays use stays mapped until the arrays are gone. Idempotent."""
        if _process.pid != self.pid:
            self.transport.close()
            return
        with self.lock:
            if self.ended is None:
                self._end_members()
                if self._bye is None and self.core.epoch:
                    self.core.tell(Bye())
                self._all_said = True
                self._flush()
        self.lose(_closed())

    def close_when_unused(self) -> None:
        """Close the client because the program has dropped it: now, or when its last lease has ended.

        If a signal handler has raised an error while the program closed the client, close it now.
        """
        if self.lease_states and self._bye is None:
            self.orphaned = True
        else:
            self.begin_close()


def _closed() -> ClientClosedError:
    return ClientClosedError("the client is closed")
