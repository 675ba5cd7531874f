"""Kind ``vmm``: blocks that ``cuMemCreate`` allocates. Each block has a descriptor. Readers map a block read-only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from poolbridge._cuda import cuda as _cuda, imports as _cuda_imports
from poolbridge._memory.kind_gpu import GPUPool
from poolbridge._memory.kinds import BlockMemory, Kind
from poolbridge.errors import (
    ProtocolError,
)

if TYPE_CHECKING:
    from poolbridge._cuda.imports import VirtualBlock
    from poolbridge._sys.literals import Kind as KindName
    from poolbridge._wire.messages import Pool
    from poolbridge._wire.transport import Descriptors


class VMMBlock(BlockMemory):
    """One imported allocation. It is mapped at most twice: once for reading and once for writing."""

    def __init__(self, pool: VMMPool, block: VirtualBlock) -> None:
        self.pool: VMMPool = pool
        self._block = block

    def address(self, *, write: bool) -> int:
        """Return the address of the mapping for writing, or of the read-only mapping."""
        return self._block.address(write=write)

    def synchronize(self) -> None:
        """Wait for the device."""
        self.pool.synchronize()

    def close(self) -> None:
        """Unmap the block."""
        self._block.close()

    def evidence(self) -> dict[str, Any]:
        """Return what the driver knows about the address."""
        facts = _cuda.pointer_facts(self._block.address(write=False))
        return {"mapped": facts["memory_type"] == "CU_MEMORYTYPE_DEVICE", "route": self._block.route, **facts}


class VMMPool(GPUPool):
    """A pool whose blocks are imported one by one. The service exports the blocks, not the pool."""

    write_fault = "breaks the CUDA context, and every later CUDA call of this process fails"

    def __init__(self, kind: KindName, ordinal: int) -> None:
        super().__init__(kind, ordinal)
        self._blocks: WeakSet[VirtualBlock] = WeakSet()

    def map_block(self, size: int, export: bytes, descriptors: Descriptors) -> VMMBlock:
        """Import a block by its descriptor and close the descriptor."""
        if export:
            raise ProtocolError(f"the export of a vmm block has no bytes, got {len(export)}")
        fd = descriptors.one()
        try:
            block = _cuda_imports.VirtualBlock(self.ordinal, fd, size, self.others)
        finally:
            os.close(fd)
        self._blocks.add(block)
        return VMMBlock(self, block)

    def grant(self, ordinal: int) -> None:
        """Give the GPU `ordinal` access to the blocks that are mapped now. Later blocks also get this access."""
        for block in list(self._blocks):
            block.grant(ordinal)

    def close(self) -> None:
        """Do nothing: blocks are imported and closed one by one."""


class VMMKind(Kind):
    """Memory of an NVIDIA GPU that can be mapped read-only."""

    name = "vmm"

    def map_pool(self, pool: Pool, export: bytes, descriptors: Descriptors) -> VMMPool:  # noqa: ARG002
        """Find the GPU with the pool's UUID."""
        return VMMPool(self.name, _cuda.find_device(pool.du))
