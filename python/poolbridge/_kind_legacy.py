"""Kind ``legacy``: ``cuIpcGetMemHandle``, 64 bytes and an offset; good only while the service lives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poolbridge import _cuda, _cuda_imports
from poolbridge._kind_gpu import GPUPool
from poolbridge._kinds import BlockMemory, Kind
from poolbridge._legacyhandle import LegacyHandle

if TYPE_CHECKING:
    from poolbridge._messages import Pool
    from poolbridge._transport import Descriptors


class LegacyBlock(BlockMemory):
    """One block, opened once."""

    def __init__(self, pool: LegacyPool, block: _cuda_imports.OpenedBlock, offset: int) -> None:
        self.pool: LegacyPool = pool
        self._block = block
        self._address = block.address + offset

    def address(self, *, write: bool) -> int:  # noqa: ARG002
        """Give the one address: legacy handles cannot be opened read-only."""
        return self._address

    def synchronize(self) -> None:
        """Wait for the device."""
        self.pool.synchronize()

    def close(self) -> None:
        """Close what was opened."""
        self._block.close()

    def evidence(self) -> dict[str, Any]:
        """Say what the driver knows of the address."""
        facts = _cuda.pointer_facts(self._block.address)
        return {"mapped": facts["memory_type"] == "CU_MEMORYTYPE_DEVICE", "route": "cuda.bindings", **facts}


class LegacyPool(GPUPool):
    """Blocks of one GPU; the pool itself has nothing to import."""

    def map_block(self, size: int, export: bytes, descriptors: Descriptors) -> LegacyBlock:  # noqa: ARG002
        """Open a block's handle."""
        handle = LegacyHandle.from_bytes(export)
        block, _ = handle.map(self.ordinal, size)
        return LegacyBlock(self, block, handle.offset)

    def grant(self, ordinal: int) -> None:
        """Let another GPU reach all memory of this one: the driver does not tell single blocks."""
        _cuda_imports.enable_peer(ordinal, self.ordinal)

    def close(self) -> None:
        """Nothing to do: blocks were opened one by one."""


class LegacyKind(Kind):
    """Memory of an NVIDIA GPU whose handle is bytes."""

    name = "legacy"

    def map_pool(self, pool: Pool, export: bytes, descriptors: Descriptors) -> LegacyPool:  # noqa: ARG002
        """Find the GPU that the pool's UUID names."""
        return LegacyPool(self.name, _cuda.find_device(pool.du))
