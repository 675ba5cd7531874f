"""A session: the protocol's state, the mappings that belong to it, and the leases that use them.

The blocking and the asyncio client are both thin drivers around this; it never waits for the network itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol
from weakref import ReferenceType

from poolbridge import _order, _process
from poolbridge._core import Call, Core, KnownBlock
from poolbridge._deferred import DeferringLock
from poolbridge._errors import (
    ClientClosedError,
    ConnectionLostError,
    ForkError,
    NotFoundError,
    PoolbridgeError,
    ProtocolError,
)
from poolbridge._mappings import MAPPINGS, Mapping

if TYPE_CHECKING:
    from poolbridge._hold import Hold
    from poolbridge._kinds import BlockMemory, PoolMemory
    from poolbridge._messages import Dropped, Grant, Pool, Reply, Request
    from poolbridge._transport import Transport

_OUTBOX_MAX = 65_536


class Driver(Protocol):
    """What carries a session: a thread, or an event loop."""

    def want_write(self) -> None:
        """Call `Session.flush` when the socket takes packets again; never waits."""

    def background(self, work: Callable[[], None]) -> None:
        """Do work soon that may wait for a device, elsewhere; never waits, never raises."""


class Session:
    """One connection and what belongs to it. Thread-safe.

    Parameters
    ----------
    transport
        The connected socket; owned from now on.
    """

    def __init__(self, transport: Transport) -> None:
        self.core = Core()
        self.transport = transport
        self.pid = _process.pid
        self.ended: PoolbridgeError | None = None
        self.orphaned = False
        self.holds: dict[int, ReferenceType[Hold]] = {}
        self._driver: Driver | None = None
        self._lock = DeferringLock()
        self._pools: dict[int, Mapping[PoolMemory]] = {}

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
        with self._lock:
            # Again, for here it cannot change: a request that begins after the end would wait for ever.
            self.check_usable()
            call = self.core.start(request, reply_type, on_done)
            self._flush()
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
            while outbox:
                if not self.transport.send(outbox[0]):
                    if len(outbox) > _OUTBOX_MAX:
                        raise ConnectionLostError(f"the service has not taken {len(outbox)} packets: given up")
                    if self._driver is not None:
                        self._driver.want_write()
                    return
                outbox.popleft()
        except ConnectionLostError as error:
            # Replies that came before may still be there to be read; the reader will find the end of the connection.
            outbox.clear()
            if self._driver is None:
                raise
            del error

    def receive(self) -> bool:
        """Take one packet, if there is one.

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
            packet = self.transport.receive()
            if packet is None:
                return False
            with self._lock:
                for block in self.core.receive(*packet):
                    self._unmap(block)
                self._flush()
        except PoolbridgeError as error:
            if isinstance(error, ConnectionLostError) and self.core.goodbye:
                error = ConnectionLostError(f"the service said goodbye: {self.core.goodbye}")
            self.lose(error)
            raise error from None
        return True

    # Memory

    def pool_info(self, pool_id: int) -> Pool | None:
        """Describe a pool that this session has opened, or None."""
        known = self.core.pools.get(pool_id)
        return known.info if known is not None else None

    def mapped(self, block_id: int) -> BlockMemory | None:
        """Give a block's mapping if this session has it already."""
        known = self.core.blocks.get(block_id)
        return known.mapped.memory if known is not None and known.mapped is not None else None

    def map(self, block_id: int) -> BlockMemory:
        """Map a block that this session has a lease on, and its pool before it. May wait for the driver.

        Raises
        ------
        UnavailableError
            This process cannot map memory of this kind; the message says what is missing.
        """
        known = self.core.blocks.get(block_id)
        if known is None:
            raise NotFoundError(f"block {block_id} is not known to this session")
        mapping = MAPPINGS.block(self.core.epoch, self._map_pool(known.pool), known)
        with self._lock:
            if known.mapped is None and self.ended is None:
                known.mapped = mapping
                return mapping.memory
            kept = known.mapped
        MAPPINGS.give_up(mapping, _nothing)
        if kept is None:
            raise ClientClosedError("the client was closed while it mapped memory")
        memory: BlockMemory = kept.memory
        return memory

    def _map_pool(self, pool_id: int) -> Mapping[PoolMemory]:
        mapping = self._pools.get(pool_id)
        if mapping is None:
            known = self.core.pools.get(pool_id)
            if known is None:
                raise ProtocolError(f"pool {pool_id} was never opened by this session")
            mapping = MAPPINGS.pool(self.core.epoch, known)
            with self._lock:
                if self.ended is None and pool_id not in self._pools:
                    self._pools[pool_id] = mapping
                    return mapping
            # Another thread was faster; the mapping is the same, but this session holds it once.
            MAPPINGS.give_up(mapping, _nothing)
            if self.ended is not None:
                raise ClientClosedError("the client was closed while it mapped memory")
        return mapping

    def _unmap(self, block: KnownBlock) -> None:
        """Give up a block that no lease of this session needs, and say so. The lock is held."""
        mapping, block.mapped = block.mapped, None
        if mapping is None:
            self._unmapped(block)
        else:
            MAPPINGS.give_up(mapping, partial(self._lock.later, partial(self._unmapped, block)))

    def _unmapped(self, block: KnownBlock) -> None:
        self.core.drop(block)
        self._flush()

    # Leases

    def give_back(self, grant: Grant, *, failed: bool = False, memory: BlockMemory | None = None) -> None:
        """End a lease, from wherever the garbage collector may be: never waits, never raises.

        Parameters
        ----------
        grant
            The lease.
        failed
            What was written is incomplete.
        memory
            If a device may still work on this memory, the end of that work is waited for first, in the background.
        """
        if _process.pid != self.pid:
            return
        if memory is None or self._driver is None or self.ended is not None:
            self._lock.later(partial(self._release, grant, failed=failed))
        else:
            self._driver.background(partial(self._wait_and_release, grant, failed=failed, memory=memory))

    def _wait_and_release(self, grant: Grant, *, failed: bool, memory: BlockMemory) -> None:
        try:
            _order.before_hand_over(memory)
        finally:
            self._lock.later(partial(self._release, grant, failed=failed))

    def release(self, grant: Grant, *, failed: bool) -> None:
        """End a lease whose work on the device is done."""
        with self._lock:
            self._release(grant, failed=failed)

    def _release(self, grant: Grant, *, failed: bool) -> None:
        self.holds.pop(grant.id, None)
        idle = self.core.release(grant, failed=failed)
        if idle is not None:
            self._unmap(idle)
        self._flush()
        if self.orphaned and not self.holds and self._driver is not None:
            self._driver.background(self.close)

    # The end

    def lose(self, error: PoolbridgeError) -> None:
        """End the session because the connection failed. Leases still held keep their memory mapped.

        The socket is shut down, not closed: its driver closes it when nobody waits for it any more.
        """
        with self._lock:
            if self.ended is None:
                # A copy: the traceback of the one that is raised keeps every array in its frames alive.
                self.ended = type(error)(*error.args)
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
        from poolbridge._messages import Dropped

        for reference in list(self.holds.values()):
            hold = reference()
            if hold is not None:
                hold.close()
        with self._lock:
            if self.ended is not None or not self.core.epoch:
                return None
            idle = [block for block in self.core.blocks.values() if not block.leases]
            busy = bool(self.core.outbox) or bool(self.core.blocks)
            for block in idle:
                self._unmap(block)
        return Dropped(bl=()) if busy else None

    def close(self) -> None:
        """End the session. Idempotent. Memory that arrays use stays mapped until they are gone."""
        if _process.pid != self.pid:
            self.transport.close()
            return
        self.lose(ClientClosedError("the client is closed"))

    def close_when_unused(self) -> None:
        """End the session because its client was dropped; if arrays are alive, when the last of them is gone."""
        if self.holds:
            self.orphaned = True
        else:
            self.close()

    def _let_go(self) -> None:
        for known in list(self.core.blocks.values()):
            known.recalled = True
            if not known.leases:
                self._unmap(known)
        pools, self._pools = list(self._pools.values()), {}
        for mapping in pools:
            MAPPINGS.give_up(mapping, _nothing)
        self.core.close_descriptors()


def _nothing() -> None:
    pass
