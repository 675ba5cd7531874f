"""Maps the pools and blocks of a session, and unmaps the pools and blocks that no lease uses any more."""

from __future__ import annotations

from _thread import start_new_thread
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING

from poolbridge._cuda import cuda as _cuda
from poolbridge._memory import dlpack as _dlpack
from poolbridge._memory.mappings import MAPPINGS, Mapping
from poolbridge._order.timelines import Timelines
from poolbridge._session.core import Core
from poolbridge._sys.deferred import DeferringLock
from poolbridge.errors import (
    ClientClosedError,
    NotFoundError,
    PoolbridgeError,
    ProtocolError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from poolbridge._memory.kinds import BlockMemory, PoolMemory
    from poolbridge._memory.session_blocks import SessionBlock
    from poolbridge._order.timeline import Timeline
    from poolbridge._wire.messages import PoolInfo


class SessionMemory(ABC):
    """The part of a session that maps memory.

    Attributes
    ----------
    core
        The state of the protocol for this session.
    timelines
        The session's own timeline, and the timelines of the fences that the session received.
    ended
        The error with which the session has ended; None while the session lasts.
    lock
        Guards the session's state.
    device
        The GPU that gets access to memory of other GPUs when the session maps such memory; None: no GPU.
    lone_uses
        The last fences of the streams that use frames of a pool that no lease counts, by the pool's id: words of the
        session's own timeline, and their values. To note a fence for each block would make each frame slower.
    """

    def __init__(self) -> None:
        self.core = Core()
        self.timelines = Timelines()
        self.ended: PoolbridgeError | None = None
        self.lock = DeferringLock()
        self.device: int | str | None = None
        self.lone_uses: dict[int, dict[int, int]] = {}
        self._pools: dict[int, Mapping[PoolMemory]] = {}

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the client was closed, or the session has ended."""

    @abstractmethod
    def _flush(self) -> None:
        """Send the packets of the outbox. The caller holds the lock."""

    @abstractmethod
    def _end_if_unused(self) -> None:
        """If the client is closed and nothing needs the connection any more, end it. The caller holds the lock."""

    def pool_info(self, pool_id: int) -> PoolInfo | None:
        """Return the description of a pool; None if this session has not opened the pool."""
        known = self.core.pools.get(pool_id)
        return known.info if known is not None else None

    def mapped(self, block_id: int) -> BlockMemory | None:
        """Return the mapping of a block; None if this session has not mapped the block."""
        known = self.core.blocks.get(block_id)
        return known.mapped.memory if known is not None and known.mapped is not None else None

    def map(self, block_id: int) -> BlockMemory:
        """Map a block on which this session has a lease, and the block's pool. May wait for the driver.

        Raises
        ------
        UnavailableError
            This process cannot map memory of this kind; the message says what is missing.
        NotFoundError
            The session does not know the block.
        ClientClosedError
            The client was closed while this call mapped memory.
        """
        known = self.core.blocks.get(block_id)
        if known is None:
            raise NotFoundError(f"block {block_id} is not known to this session")
        mapping = MAPPINGS.block(self.core.epoch, self._map_pool(known.pool), known)
        with self.lock:
            if known.mapped is None and not self.closed:
                known.mapped = mapping
                return mapping.memory
            kept = known.mapped
        MAPPINGS.give_up(mapping)
        if kept is None:
            raise ClientClosedError("the client was closed while it mapped memory")
        memory: BlockMemory = kept.memory
        return memory

    def _map_pool(self, pool_id: int) -> Mapping[PoolMemory]:
        mapping = self._pools.get(pool_id)
        if mapping is None:
            mapping = self._import_pool(pool_id)
        if self.device is not None and mapping.memory.device[0] == _dlpack.CUDA:
            MAPPINGS.reach(mapping, _cuda.ordinal_of(self.device))
        return mapping

    def _import_pool(self, pool_id: int) -> Mapping[PoolMemory]:
        known = self.core.pools.get(pool_id)
        if known is None:
            raise ProtocolError(f"pool {pool_id} was never opened by this session")
        mapping = MAPPINGS.pool(self.core.epoch, known, self.device)
        with self.lock:
            if not self.closed and pool_id not in self._pools:
                self._pools[pool_id] = mapping
                return mapping
        # Another thread has stored the same mapping, or the session has ended. `MAPPINGS.pool` has counted this session
        # as one more holder, so undo this count.
        MAPPINGS.give_up(mapping)
        if self.closed:
            raise ClientClosedError("the client was closed while it mapped memory")
        return mapping

    def _unmap(self, block: SessionBlock) -> None:
        """Unmap a block that no lease of this session needs, and tell the service. The caller holds the lock."""
        if block.unmapping:
            return
        mapping, own = block.mapped, self.timelines.own or self.timelines.closed
        if mapping is None:
            self.core.drop(block)
            self._flush()
            return
        uses = dict(block.uses)
        if block.lone:
            for word, value in self.lone_uses.get(block.pool, {}).copy().items():
                uses[word] = max(value, uses.get(word, 0))
        if uses and own is not None and not all(_done(own, *use) for use in uses.items()):
            after = partial(self._unmap_after, own, uses, mapping, block)
            work: Callable[[], object] = partial(start_new_thread, after, ())
        else:
            work = MAPPINGS.giving_up(mapping, partial(self._tried, block))
        block.mapped, block.unmapping = None, True
        work()  # no signal handler runs between these two steps

    def _unmap_after(
        self, own: Timeline, uses: dict[int, int], mapping: Mapping[BlockMemory], block: SessionBlock
    ) -> None:
        """Wait until this session's streams have done their work on a block, and then unmap the block."""
        for use in uses.items():
            while not own.page.wait(*use, 1.0):
                pass
        if not all(_done(own, *use) for use in uses.items()):
            mapping.memory.synchronize()
        MAPPINGS.give_up(mapping, partial(self._tried, block))

    def _tried(self, block: SessionBlock, unmapped: bool) -> None:
        self.lock.later(partial(self._unmapped, block, unmapped))

    def _unmapped(self, block: SessionBlock, unmapped: bool) -> None:
        if unmapped:
            self.core.drop(block)
            self._flush()
        else:
            block.stuck = True
        self._end_if_unused()

    def _let_go(self) -> None:
        for known in list(self.core.blocks.values()):
            known.recalled = True
            known.arrays.clear()
            if not known.leases:
                self._unmap(known)
        self._give_up_pools()
        self.core.close_descriptors()
        self.timelines.close()

    def _give_up_pools(self) -> None:
        for pool, mapping in list(self._pools.items()):
            work = MAPPINGS.giving_up(mapping)
            del self._pools[pool]
            work()  # no signal handler runs between these two steps


def _done(own: Timeline, word: int, value: int) -> bool:
    """Whether the word's stream has written `value` itself. False if the service has marked the word as dead.

    When the service shuts down, it marks all words as words of dead processes. The stream may still be working then.
    """
    return own.reached(word, value) and not own.page.died(word, value)
