"""Implements the kind ``device``: imports a CUDA memory pool of the service by the pool's file descriptor.

A block that is too large for a CUDA memory pool is physical memory of its own, and comes as blocks of kind ``vmm`` do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolbridge._cuda import cuda as _cuda, pools as _pools
from poolbridge._memory.kind_vmm import VMMBlock, VMMPool
from poolbridge._memory.kinds import BlockMemory, Kind
from poolbridge._memory.pool_imports import PoolImports

if TYPE_CHECKING:
    from poolbridge._cuda.pools import ImportedBlock, ImportedPool
    from poolbridge._sys.literals import Kind as KindName
    from poolbridge._wire.messages import PoolInfo
    from poolbridge._wire.transport import Descriptors


class DeviceBlock(BlockMemory):
    """An imported allocation of the pool."""

    def __init__(self, pool: DevicePool, number: int, block: ImportedBlock) -> None:
        self.pool: DevicePool = pool
        self._number = number
        self._block = block
        pool.imports.mapped(number)

    def address(self, *, write: bool) -> int:  # noqa: ARG002
        """Return the block's address for reading and for writing: CUDA cannot map a block of a pool read-only."""
        return self._block.address

    def close(self) -> None:
        """Free this process's import of the block."""
        self._block.close()
        self.pool.imports.unmapped(self._number)

    def evidence(self) -> dict[str, Any]:
        """Return what the package that imported the block, and the driver, know about the block's address."""
        return {
            "mapped": self._block.is_mapped,
            "route": self._block.route,
            **_cuda.pointer_facts(self._block.address),
        }


class DevicePool(VMMPool):
    """A pool that this process has imported."""

    write_fault = ""

    def __init__(self, kind: KindName, ordinal: int, export: bytes, descriptors: Descriptors) -> None:
        super().__init__(kind, ordinal)
        self.imports = PoolImports(self._import, export, descriptors)

    def _import(self, fd: int) -> ImportedPool:
        pool = _pools.import_pool(self.ordinal, fd)
        for ordinal in self.others:
            pool.grant(ordinal)
        return pool

    def grant(self, ordinal: int) -> None:
        """Give the GPU `ordinal` access to the whole pool."""
        self.imports.grant(lambda pool: pool.grant(ordinal))
        super().grant(ordinal)

    def map_block(self, size: int, export: bytes, descriptors: Descriptors) -> BlockMemory:
        """Import one block by `export`, which the CUDA driver made for this block in the service's process.

        A block without these bytes is in no CUDA memory pool, and comes with a descriptor of its own. Readers have no
        read-only mapping of it, because those of the kind's other blocks have none.
        """
        if not export:
            return VMMBlock(self, self.import_block(size, descriptors), protected=False)
        number, pool, blob = self.imports.import_for(export, descriptors)
        return DeviceBlock(self, number, pool.import_block(blob, size))

    def close(self) -> None:
        """Close this process's import of the pool."""
        self.imports.close()


class DeviceKind(Kind):
    """Memory of an NVIDIA GPU."""

    name = "device"

    def map_pool(self, pool: PoolInfo, export: bytes, descriptors: Descriptors) -> DevicePool:
        """Import the pool on the GPU that has its memory. Close the descriptor: the import itself keeps the memory."""
        return DevicePool(self.name, _cuda.find_device(pool.device_uuid), export, descriptors)
