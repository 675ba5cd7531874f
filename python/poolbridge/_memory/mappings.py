"""Maps pools and blocks into this process. Each pool and block has one mapping for all sessions of the process.

A mapping counts its holders. The process unmaps the memory when no holder is left.

A process must not import one allocation twice: the driver returns the same address for both imports, and ends both
imports when the process frees one of them. A process can have several clients, so all clients of the process share one
register of mappings. A thread holds the register's lock during each import and each unmapping. The lock protects the
register and the driver calls. There is one exception to the rule: for some kinds of memory, only one GPU can use an
import. A process imports such memory once for each GPU that uses it.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from poolbridge._memory import kinds as _kinds
from poolbridge._sys.deferred import DeferringLock
from poolbridge._sys.error_texts import from_signal
from poolbridge.errors import (
    DeviceMemoryError,
    DriverError,
    ProtocolError,
    StreamCaptureError,
)

if TYPE_CHECKING:
    from poolbridge._memory.kinds import BlockMemory, PoolMemory
    from poolbridge._memory.session_blocks import SessionBlock, SessionPool

_M = TypeVar("_M", "PoolMemory", "BlockMemory")
Key = tuple[bytes, int, int | None]
_LAST_PATIENCE = 10.0


@dataclass(eq=False, slots=True)
class Mapping(Generic[_M]):
    """One mapping. `count` is the number of holders; `parent` is the mapping of a block's pool, and None for a pool."""

    key: Key
    memory: _M
    count: int = 1
    parent: Mapping[PoolMemory] | None = None


class Mappings:
    """The register of mappings. Thread-safe.

    Attributes
    ----------
    imports
        The number of pools and the number of blocks that this process has imported so far; for tests and diagnosis.
    """

    def __init__(self) -> None:
        self._lock = DeferringLock()
        self._pools: dict[Key, Mapping[PoolMemory]] = {}
        self._blocks: dict[Key, Mapping[BlockMemory]] = {}
        self._inherited: tuple[object, ...] = ()
        self._leaving = False
        self._pid = os.getpid()
        self.imports = {"pools": 0, "blocks": 0}

    def __len__(self) -> int:
        return len(self._pools) + len(self._blocks)

    def pool(self, epoch: bytes, known: SessionPool, device: int | str | None = None) -> Mapping[PoolMemory]:
        """Import a pool, or count one more holder if it is mapped. May block. Closes the export's descriptors.

        Parameters
        ----------
        epoch, known
            The service's epoch, and the pool to import.
        device
            The GPU that will work on the memory; None: the pool's own GPU. The caller has to call `reach` to give this
            GPU access.
        """
        kind = _kinds.load(known.info.kind)
        key = (epoch, known.info.id, kind.apart(known.info, device))
        with self._lock:
            try:
                mapping = self._pools.get(key)
                if mapping is None:
                    memory = kind.map_pool(known.info, known.export, known.descriptors)
                    self.imports["pools"] += 1
                    mapping = self._pools[key] = Mapping(key, memory)
                else:
                    mapping.count += 1
            finally:
                if key in self._pools:
                    known.descriptors.close()
            return mapping

    def reach(self, pool: Mapping[PoolMemory], ordinal: int) -> None:
        """Give the GPU `ordinal` access to the memory of a mapped pool. May block."""
        with self._lock:
            pool.memory.reach(ordinal)

    def block(self, epoch: bytes, pool: Mapping[PoolMemory], known: SessionBlock) -> Mapping[BlockMemory]:
        """Import a block, or count one more holder if it is mapped. May block. Closes the export's descriptors."""
        key = (epoch, known.id, pool.key[2])
        with self._lock:
            mapping = self._blocks.get(key)
            if mapping is None:
                memory = pool.memory.map_block(known.size, known.export, known.descriptors)
                self.imports["blocks"] += 1
                mapping = self._blocks[key] = Mapping(key, memory, parent=pool)
                pool.count += 1
            elif mapping.parent is not pool:
                raise ProtocolError(f"block {known.id} was mapped as part of another pool")
            else:
                mapping.count += 1
            known.descriptors.close()
            return mapping

    def give_up(
        self, mapping: Mapping[PoolMemory] | Mapping[BlockMemory], then: Callable[[bool], None] | None = None
    ) -> None:
        """Subtract one holder of `mapping`. If no holder is left, unmap the memory.

        Call `then` afterwards. Its argument says whether the memory could be unmapped: if not, the service must not
        free the memory. This method never waits, because finalisers call it.
        """
        self.giving_up(mapping, then)()

    def giving_up(
        self, mapping: Mapping[PoolMemory] | Mapping[BlockMemory], then: Callable[[bool], None] | None = None
    ) -> Callable[[], object]:
        """Return a function that does `give_up`. It is written in C, so no signal handler runs as it begins."""
        return partial(self._lock.later, partial(self._give_up, [mapping], [], then))

    def settle(self) -> None:
        """Wait until the memory is unmapped whose last holder has given it up, also if another thread unmaps it."""
        with self._lock:
            pass

    def stop_unmapping(self) -> None:
        """Stop, because the interpreter is about to end. Wait for a thread that is unmapping now.

        If a thread is still in a function of cuda.core when the interpreter ends, the process ends with SIGABRT as soon
        as that function returns.
        """
        if os.getpid() == self._pid:
            self._leaving = True
            self._lock.rest(_LAST_PATIENCE)

    def start_anew(self) -> None:
        """Forget, in a forked child, the mappings of the parent process: their memory is not mapped in the child."""
        # Keep the parent's mappings: if Python deleted a mapping, the child would unmap its address.
        self._inherited = self._inherited, self._pools, self._blocks
        self._lock = DeferringLock()
        self._pools, self._blocks = {}, {}
        self._pid = os.getpid()

    def _give_up(self, left: list[Mapping[Any]], errors: list[Exception], then: Callable[[bool], None] | None) -> None:
        """Subtract a holder of each mapping in `left`. A signal handler may end this call; then it is called again."""
        if self._leaving:
            return
        while left:
            mapping = left[0]
            if mapping.count > 1:
                mapping.count -= 1
                del left[0]  # no signal handler runs between these two steps
                continue
            (self._pools if mapping.parent is None else self._blocks).pop(mapping.key, None)
            try:
                try:
                    mapping.memory.close()
                except (DriverError, DeviceMemoryError, StreamCaptureError):
                    mapping.memory.close()  # try again: memory that stays mapped is lost until the process ends
            except Exception as error:
                if from_signal(error):
                    raise
                errors.append(error)
            left[:1] = [] if mapping.parent is None else [mapping.parent]
        if then is not None:
            then(not errors)
        if errors:
            raise errors[0]


MAPPINGS = Mappings()
"""The mappings of this process."""
atexit.register(MAPPINGS.stop_unmapping)
os.register_at_fork(after_in_child=MAPPINGS.start_anew)
