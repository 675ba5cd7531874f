"""Implements the kind ``device``: imports a CUDA memory pool of the service by the pool's file descriptor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolbridge._cuda import cuda as _cuda, pools as _pools
from poolbridge._memory.kind_gpu import GPUPool
from poolbridge._memory.kinds import BlockMemory, Kind
from poolbridge.errors import (
    ProtocolError,
)

if TYPE_CHECKING:
    from poolbridge._cuda.pools import ImportedBlock, ImportedPool
    from poolbridge._sys.literals import Kind as KindName
    from poolbridge._wire.messages import PoolInfo
    from poolbridge._wire.transport import Descriptors


class DeviceBlock(BlockMemory):
    """An imported allocation of the pool."""

    def __init__(self, pool: DevicePool, block: ImportedBlock) -> None:
        self.pool: DevicePool = pool
        self._block = block

    def address(self, *, write: bool) -> int:  # noqa: ARG002
        """Return the block's address for reading and for writing: CUDA cannot map a block of a pool read-only."""
        return self._block.address

    def synchronize(self) -> None:
        """Wait until the device has done its work."""
        self.pool.synchronize()

    def close(self) -> None:
        """Free this process's import of the block."""
        self._block.close()

    def evidence(self) -> dict[str, Any]:
        """Return what the package that imported the block, and the driver, know about the block's address."""
        return {
            "mapped": self._block.is_mapped,
            "route": self._block.route,
            **_cuda.pointer_facts(self._block.address),
        }


class DevicePool(GPUPool):
    """A pool that this process has imported."""

    def __init__(self, kind: KindName, ordinal: int, pool: ImportedPool) -> None:
        super().__init__(kind, ordinal)
        self._pool = pool

    def grant(self, ordinal: int) -> None:
        """Give the GPU `ordinal` access to the whole pool."""
        self._pool.grant(ordinal)

    def map_block(self, size: int, export: bytes, descriptors: Descriptors) -> DeviceBlock:  # noqa: ARG002
        """Import one block by `export`: 64 bytes that the CUDA driver made for this block in the service's process."""
        if len(export) != _pools.BLOB_BYTES:
            raise ProtocolError(f"the export of a device block has {_pools.BLOB_BYTES} bytes, got {len(export)}")
        return DeviceBlock(self, self._pool.import_block(export, size))

    def close(self) -> None:
        """Close this process's import of the pool."""
        self._pool.close()


class DeviceKind(Kind):
    """Memory of an NVIDIA GPU."""

    name = "device"

    def map_pool(self, pool: PoolInfo, export: bytes, descriptors: Descriptors) -> DevicePool:  # noqa: ARG002
        """Import the pool on the GPU that has its memory. Close the descriptor: the import itself keeps the memory."""
        ordinal = _cuda.find_device(pool.device_uuid)
        with descriptors.lent() as fd:
            return DevicePool(self.name, ordinal, _pools.import_pool(ordinal, fd))
