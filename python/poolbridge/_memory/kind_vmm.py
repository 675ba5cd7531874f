"""Kind ``vmm``: ``cuMemCreate``, a descriptor for each block; what is leased to be read is mapped read-only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from poolbridge._cuda import cuda as _cuda
from poolbridge._cuda import imports as _cuda_imports
from poolbridge._memory.kind_gpu import GPUPool
from poolbridge._memory.kinds import BlockMemory, Kind
from poolbridge._sys.errors import ProtocolError

if TYPE_CHECKING:
    from poolbridge._cuda.imports import VirtualBlock
    from poolbridge._sys.literals import Kind as KindName
    from poolbridge._wire.messages import Pool
    from poolbridge._wire.transport import Descriptors


class VMMBlock(BlockMemory):
    """One allocation, imported once, and mapped up to two times."""

    def __init__(self, pool: VMMPool, block: VirtualBlock) -> None:
        self.pool: VMMPool = pool
        self._block = block

    def address(self, *, write: bool) -> int:
        """Address of the writable or of the read-only mapping."""
        return self._block.address(write=write)

    def synchronize(self) -> None:
        """Wait for the device."""
        self.pool.synchronize()

    def close(self) -> None:
        """Unmap."""
        self._block.close()

    def evidence(self) -> dict[str, Any]:
        """Say what the driver knows of the address."""
        facts = _cuda.pointer_facts(self._block.address(write=False))
        return {"mapped": facts["memory_type"] == "CU_MEMORYTYPE_DEVICE", "route": self._block.route, **facts}


class VMMPool(GPUPool):
    """Blocks of one GPU; the pool itself has nothing to import."""

    write_fault = "breaks the CUDA context, and every later CUDA call of this process fails"

    def __init__(self, kind: KindName, ordinal: int) -> None:
        super().__init__(kind, ordinal)
        self._blocks: WeakSet[VirtualBlock] = WeakSet()

    def map_block(self, size: int, export: bytes, descriptors: Descriptors) -> VMMBlock:
        """Import a block by its descriptor, which is closed."""
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
        """Let another GPU reach the blocks that are mapped; later ones are made so."""
        for block in list(self._blocks):
            block.grant(ordinal)

    def close(self) -> None:
        """Nothing to do: blocks were imported one by one."""


class VMMKind(Kind):
    """Memory of an NVIDIA GPU that can be read-only."""

    name = "vmm"

    def map_pool(self, pool: Pool, export: bytes, descriptors: Descriptors) -> VMMPool:  # noqa: ARG002
        """Find the GPU that the pool's UUID names."""
        return VMMPool(self.name, _cuda.find_device(pool.du))
